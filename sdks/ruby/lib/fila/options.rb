# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What a user may choose about a connection, checked when it is chosen. Knows nothing of gRPC.
module Fila
  # Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).
  #
  # Files are PEM and are read when a client is created. Without `ca_file` the public roots that
  # gRPC ships are trusted. `server_name` is the name to expect in the broker's certificate if it is
  # not the target's host. Raises ArgumentError for a certificate without its key.
  class TlsOptions
    attr_reader :ca_file, :cert_file, :key_file, :server_name

    def initialize(ca_file: nil, cert_file: nil, key_file: nil, server_name: nil)
      if cert_file.nil? != key_file.nil?
        raise ArgumentError, "tls cert_file and key_file go together; give both or neither"
      end

      @ca_file = ca_file
      @cert_file = cert_file
      @key_file = key_file
      @server_name = server_name
      freeze
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
