# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# TLS, a client certificate and an API key; each only if its variable is set.
#
# FILA_CA names the CA's certificate, FILA_CERT and FILA_KEY the client's own, FILA_API_KEY the key.

require "fila"
require "securerandom"

def connect(&block)
  ca_file, cert_file, key_file = ENV.values_at("FILA_CA", "FILA_CERT", "FILA_KEY")
  tls = Fila::TlsOptions.new(ca_file:, cert_file:, key_file:) if ca_file || cert_file
  target = ENV.fetch("FILA_ADDR", "127.0.0.1:5555")
  Fila::Client.open(target, tls:, api_key: ENV.fetch("FILA_API_KEY", nil), &block)
end

connect do |client|
  queue = "secure-#{SecureRandom.hex(4)}"
  begin
    client.create_queue(queue)
  rescue Fila::UnauthenticatedError => e
    abort "the broker does not accept the API key: #{e.message}"
  rescue Fila::UnavailableError => e
    abort "no broker, or none with the right certificate: #{e.message}"
  end

  client.enqueue(queue, "for your eyes only")
  message = client.receive(queue, wait_ms: 2_000).first
  puts "received '#{message.payload}'"
  message.ack
  client.delete_queue(queue)
end
