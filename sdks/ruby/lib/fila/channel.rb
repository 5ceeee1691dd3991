# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# How a gRPC channel is set up: addresses, TLS, limits, keepalive. Makes no calls. When a channel is
# made is the business of link.rb.

require "grpc"
require "socket"

require "fila/errors"
require "fila/options"
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
    NEVER_MS = (1 << 31) - 1
    SCHEMES = %w[dns: ipv4: ipv6: unix: unix-abstract: vsock:].freeze
    ADDRESS = %r{\A(?:[^:/\s]+|\[[^/\s]+\]):(?<port>[0-9]+)\z}
    PORTS = (1..65_535)

    # What a channel is made from and may change while the process runs: where it leads, as gRPC
    # wants to hear it, and the PEM texts of its certificates.
    Ingredients = Struct.new(:uri, :certificates)

    module_function

    # Reads and resolves what a channel is made from. Raises ArgumentError for a file that is none,
    # UnavailableError when no name of a list can be resolved.
    def ingredients(addresses, tls)
      Ingredients.new(uri(addresses), tls && certificates(tls))
    end

    # Whether its ingredients may be others tomorrow.
    def changeable?(addresses, tls)
      addresses.length > 1 || (tls&.files? ? true : false)
    end

    def open(ingredients, addresses:, tls:, max_message_bytes:, backoff:)
      credentials = tls.nil? ? :this_channel_is_insecure : credentials(ingredients)
      arguments = arguments(tls, max_message_bytes, backoff)
      # gRPC would take the whole list for the broker's name.
      arguments["grpc.default_authority"] = addresses.first if addresses.length > 1
      GRPC::Core::Channel.new(ingredients.uri, arguments, credentials)
    end

    # The addresses of one target: several may be a list, or in one String with commas.
    def checked_addresses(target, tls)
      addresses = target.is_a?(Array) ? target : listed(target)
      raise ArgumentError, "target is an empty list; give a host:port" if addresses.empty?

      addresses.each { |address| checked_address(address, is_alone: addresses.length == 1) }
      if addresses.length > 1 && tls && tls.server_name.nil?
        raise ArgumentError, "tls with several addresses needs server_name: gRPC for Ruby holds " \
                             "all of them to one name"
      end
      addresses
    end

    def listed(target)
      return [target] unless target.is_a?(String) && !target.start_with?(*SCHEMES)

      target.include?(",") ? target.split(",", -1).map(&:strip) : [target]
    end

    # Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
    def checked_address(address, is_alone:)
      raise TypeError, "target must be a String, not #{address.class}" unless address.is_a?(String)
      return if is_alone && address.start_with?(*SCHEMES)

      found = ADDRESS.match(address)
      return if found && PORTS.cover?(found[:port].to_i)

      raise ArgumentError, "target \"#{address}\" is not host:port, for example \"127.0.0.1:5555\""
    end

    # gRPC resolves one name by itself, but takes lists of numeric addresses only, of one family. An
    # IPv4 address has a form as IPv6, which gRPC connects to as the former.
    def uri(addresses)
      return addresses.first if addresses.length == 1

      found = addresses.flat_map { |address| resolved(address) }
      raise UnavailableError, "no name of #{addresses.join(",")} can be resolved" if found.empty?
      return "ipv4:#{found.map(&:inspect_sockaddr).join(",")}" if found.all?(&:ipv4?)

      "ipv6:#{found.map { |each| "[#{as_ipv6(each)}]:#{each.ip_port}" }.join(",")}"
    end

    # Names that cannot be resolved now are left out: others may be reached.
    def resolved(address)
      host, _, port = address.rpartition(":")
      Addrinfo.getaddrinfo(host.delete("[]"), port, nil, :STREAM)
    rescue SocketError
      []
    end

    def as_ipv6(address)
      address.ipv4? ? "::ffff:#{address.ip_address}" : address.ip_address.gsub("%", "%25")
    end

    def credentials(ingredients)
      ca, cert, key = ingredients.certificates
      GRPC::Core::ChannelCredentials.new(ca, key, cert)
    end

    def certificates(tls)
      [tls.ca_pem || pem("ca_file", tls.ca_file),
       tls.cert_pem || pem("cert_file", tls.cert_file),
       tls.key_pem || pem("key_file", tls.key_file)]
    end

    def pem(option, path)
      return nil if path.nil?

      content = File.binread(path)
      # gRPC reports a file of another kind only in its own log, and then fails to connect.
      return content if content.include?(TlsOptions::PEM_MARK)

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
        # Newer versions of gRPC leave a broker that nobody calls for half an hour.
        "grpc.client_idle_timeout_ms" => NEVER_MS,
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
