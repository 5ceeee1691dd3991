# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "tempfile"

# Who the broker is, and who the client is.
RSpec.describe Fila::TlsOptions do
  def secure_broker(mutual: false)
    pair = { private_key: File.read(cert("server.key")), cert_chain: File.read(cert("server.pem")) }
    ca = mutual ? File.read(cert("ca.pem")) : nil
    start_broker(credentials: GRPC::Core::ServerCredentials.new(ca, [pair], mutual))
  end

  def enqueue(broker, target: broker.target, **options)
    tls = described_class.new(**options)
    open_client(target, tls:, timeout: 15).enqueue("orders", "x")
  end

  it "verifies a private CA" do
    expect(enqueue(secure_broker, ca_file: cert("ca.pem"))).to start_with "x#"
  end

  it "sends the API key over TLS" do
    broker = secure_broker
    tls = described_class.new(ca_file: cert("ca.pem"))
    open_client(broker.target, tls:, api_key: "key", timeout: 15).enqueue("orders")
    expect(broker.seen.first.metadata["authorization"]).to eq "Bearer key"
  end

  {
    "another CA's" => { ca_file: "other_ca.pem" },
    "for another name" => { ca_file: "ca.pem", server_name: "elsewhere" },
    "of no public CA" => {}
  }.each do |what, options|
    it "refuses a certificate that is #{what}" do
      broker = secure_broker
      options = options.to_h { |name, value| [name, name == :ca_file ? cert(value) : value] }
      expect { enqueue(broker, **options) }.to raise_error(Fila::UnavailableError)
      expect(broker.seen).to eq []
    end
  end

  it "lets a server name stand in for the target" do
    broker = secure_broker
    target = "dns:///127.0.0.1:#{broker.port}"
    options = { ca_file: cert("ca.pem"), server_name: "localhost" }
    expect(enqueue(broker, target:, **options)).to start_with "x#"
  end

  it "is needed where the broker wants it" do
    client = open_client(secure_broker.target)
    expect { client.enqueue("orders") }.to raise_error(Fila::UnavailableError)
  end

  it "proves the client where the broker asks" do
    broker = secure_broker(mutual: true)
    expect { enqueue(broker, ca_file: cert("ca.pem")) }.to raise_error(Fila::UnavailableError)
    own = { cert_file: cert("client.pem"), key_file: cert("client.key") }
    expect(enqueue(broker, ca_file: cert("ca.pem"), **own)).to start_with "x#"
  end

  it "names a bad file" do
    Tempfile.create("text.pem") do |text|
      text.write("not a certificate")
      text.flush
      missing = described_class.new(ca_file: "missing.pem")
      expect { Fila::Client.new(tls: missing) }.to raise_error(
        ArgumentError, 'cannot read tls ca_file "missing.pem": no such file or directory'
      )
      wrong = described_class.new(cert_file: cert("client.pem"), key_file: text.path)
      expect { Fila::Client.new(tls: wrong) }
        .to raise_error(ArgumentError, "tls key_file \"#{text.path}\" is not a PEM file")
    end
  end

  it "wants a certificate and its key together" do
    expect { described_class.new(cert_file: "a.pem") }
      .to raise_error(ArgumentError, /cert_file and key_file go together/)
    expect { described_class.new(key_file: "a.pem") }
      .to raise_error(ArgumentError, /cert_file and key_file go together/)
  end
end
