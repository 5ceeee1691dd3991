# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# How a gRPC channel is set up: address, TLS, limits, keepalive. Makes no calls.

require "grpc"

require "fila/version"

module Fila
  # Makes channels, and checks what they are made from.
  module Channel
    # Below the 60 s after which NAT tables and load balancers forget idle connections, and above
    # the interval from which the broker takes pings for a flood.
    KEEPALIVE_TIME_MS = 20_000
    # With the above, a silent peer is noticed before a default lease of 30 s ends.
    KEEPALIVE_TIMEOUT_MS = 5_000
    # The time limit of one attempt to connect, TLS handshake included. gRPC calls it a minimum
    # backoff.
    CONNECT_TIMEOUT_MS = 5_000
    SCHEMES = %w[dns: ipv4: ipv6: unix: unix-abstract: vsock:].freeze
    ADDRESS = %r{\A(?:[^:/\s]+|\[[^/\s]+\]):(?<port>[0-9]+)\z}
    PORTS = (1..65_535)

    module_function

    def open(target, tls:, max_message_bytes:, backoff:)
      credentials = tls.nil? ? :this_channel_is_insecure : credentials(tls)
      GRPC::Core::Channel.new(target, arguments(tls, max_message_bytes, backoff), credentials)
    end

    # Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
    def checked_target(target)
      raise TypeError, "target must be a String, not #{target.class}" unless target.is_a?(String)
      return target if target.start_with?(*SCHEMES)

      found = ADDRESS.match(target)
      return target if found && PORTS.cover?(found[:port].to_i)

      raise ArgumentError, "target \"#{target}\" is not host:port, for example \"127.0.0.1:5555\""
    end

    # gRPC refuses other characters too, but with a text that repeats the key.
    def checked_api_key(api_key)
      return api_key if api_key.nil? || (api_key.is_a?(String) && api_key.match?(/\A[!-~]+\z/))

      raise ArgumentError, "api_key must be printable ASCII without spaces, and not empty"
    end

    def credentials(tls)
      key = pem("key_file", tls.key_file)
      certificate = pem("cert_file", tls.cert_file)
      GRPC::Core::ChannelCredentials.new(pem("ca_file", tls.ca_file), key, certificate)
    end

    def pem(option, path)
      return nil if path.nil?

      content = File.binread(path)
      # gRPC reports a file of another kind only in its own log, and then fails to connect.
      return content if content.include?("-----BEGIN ")

      raise ArgumentError, "tls #{option} \"#{path}\" is not a PEM file"
    rescue SystemCallError => e
      why = e.class.new.message.downcase
      raise ArgumentError, "cannot read tls #{option} \"#{path}\": #{why}"
    end

    def arguments(tls, max_message_bytes, backoff)
      arguments = {
        "grpc.primary_user_agent" => "fila-ruby/#{VERSION} grpc-ruby/#{GRPC::VERSION}",
        "grpc.max_send_message_length" => max_message_bytes,
        "grpc.max_receive_message_length" => max_message_bytes,
        "grpc.keepalive_time_ms" => KEEPALIVE_TIME_MS,
        "grpc.keepalive_timeout_ms" => KEEPALIVE_TIMEOUT_MS,
        # Without it newer versions of gRPC take a minute to notice, whatever the two above say.
        "grpc.http2.ping_timeout_ms" => KEEPALIVE_TIMEOUT_MS,
        "grpc.keepalive_permit_without_calls" => 1,
        # An idle stream carries no data, and by default pings stop after two without any.
        "grpc.http2.max_pings_without_data" => 0,
        # What is sent again is decided in this package, which knows what may be.
        "grpc.enable_retries" => 0,
        "grpc.initial_reconnect_backoff_ms" => (backoff.initial * 1000).round,
        "grpc.max_reconnect_backoff_ms" => (backoff.maximum * 1000).round,
        "grpc.min_reconnect_backoff_ms" => CONNECT_TIMEOUT_MS
      }
      arguments[GRPC::Core::Channel::SSL_TARGET] = tls.server_name if tls&.server_name
      arguments
    end
  end
  private_constant :Channel
end
