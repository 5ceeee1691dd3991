# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What a user may choose about a connection, checked when it is chosen. Knows nothing of gRPC.
module Fila
  # Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).
  #
  # Each of the three is a PEM file (`ca_file`) or a PEM text (`ca_pem`). Files are read when a
  # client is created, and again for every connection that is made after one was lost, so that
  # replacing them is enough. Without a CA the public roots that gRPC ships are trusted.
  # `server_name` is the name to expect in the broker's certificate if it is not the target's host.
  # Raises ArgumentError for half of a pair, or for both forms of one thing.
  class TlsOptions
    PEM_MARK = "-----BEGIN "

    attr_reader :ca_file, :cert_file, :key_file, :ca_pem, :cert_pem, :key_pem, :server_name

    def initialize(ca_file: nil, cert_file: nil, key_file: nil, ca_pem: nil, cert_pem: nil,
                   key_pem: nil, server_name: nil)
      is_half = (cert_file || cert_pem).nil? != (key_file || key_pem).nil?
      if is_half
        raise ArgumentError, "tls certificate and key go together; give both or neither: " \
                             "cert_file or cert_pem, and key_file or key_pem"
      end

      @ca_file, @ca_pem = one_of("ca", ca_file, ca_pem)
      @cert_file, @cert_pem = one_of("cert", cert_file, cert_pem)
      @key_file, @key_pem = one_of("key", key_file, key_pem)
      @server_name = server_name
      freeze
    end

    # Whether anything of it is a file.
    def files?
      [ca_file, cert_file, key_file].any?
    end

    # The key stays out of logs.
    def inspect
      "#<#{self.class} server_name=#{server_name.inspect}>"
    end
    alias to_s inspect

    private

    def one_of(name, file, pem)
      raise ArgumentError, "tls #{name}_file and #{name}_pem are one thing; give one" if file && pem
      return [file, pem] if pem.nil? || (pem.is_a?(String) && pem.include?(PEM_MARK))

      raise ArgumentError, "tls #{name}_pem is not a PEM text; a file's path is #{name}_file"
    end
  end

  # How long to wait between attempts, in seconds.
  #
  # The ceiling starts at `initial` and doubles up to `maximum`; each wait is a random part of it,
  # so that the clients of a broker that restarts do not all come back in the same instant.
  class Backoff
    # Doubling stops long before this; the bound keeps the power small after hours of trying.
    DOUBLINGS_MAX = 30
    private_constant :DOUBLINGS_MAX

    attr_reader :initial, :maximum

    def initialize(initial: 0.1, maximum: 5.0)
      unless initial.positive? && initial <= maximum
        raise ArgumentError,
              "backoff needs 0 < initial <= maximum, got #{initial} and #{maximum}"
      end

      @initial = initial
      @maximum = maximum
      freeze
    end

    # The wait before retry number `attempt`, counted from 0; `chance` is from 0 to 1.
    def delay(attempt, chance)
      chance * [maximum, initial * (2**[attempt, DOUBLINGS_MAX].min)].min
    end
  end
end
