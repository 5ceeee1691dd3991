# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "openssl"
require "tempfile"
require "tmpdir"

# Who the broker is, and who the client is.
RSpec.describe Fila::TlsOptions do
  def secure_broker(mutual: false, port: 0)
    pair = { private_key: File.read(cert("server.key")), cert_chain: File.read(cert("server.pem")) }
    ca = mutual ? File.read(cert("ca.pem")) : nil
    start_broker(port:, credentials: GRPC::Core::ServerCredentials.new(ca, [pair], mutual))
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
    [{ cert_file: "a.pem" }, { key_file: "a.pem" }, { cert_pem: File.read(cert("client.pem")) },
     { key_pem: File.read(cert("client.key")) }].each do |half|
      expect { described_class.new(**half) }
        .to raise_error(ArgumentError, /\Atls certificate and key go together/)
    end
  end

  describe "from memory" do
    let(:pems) do
      { ca_pem: "ca.pem", cert_pem: "client.pem", key_pem: "client.key" }
        .transform_values { |name| File.read(cert(name)) }
    end

    it "is as good as from files, and mixes with them" do
      broker = secure_broker(mutual: true)
      expect(enqueue(broker, **pems)).to start_with "x#"
      mixed = pems.slice(:ca_pem, :key_pem).merge(cert_file: cert("client.pem"))
      expect(enqueue(broker, **mixed)).to start_with "x#"
    end

    it "names what is no PEM, without showing it" do
      expect { described_class.new(ca_pem: "ca.pem") }
        .to raise_error(ArgumentError, "tls ca_pem is not a PEM text; a file's path is ca_file")
      expect { described_class.new(ca_pem: pems[:ca_pem], ca_file: "ca.pem") }
        .to raise_error(ArgumentError, "tls ca_file and ca_pem are one thing; give one")
      expect(described_class.new(**pems).inspect).not_to include "BEGIN"
    end
  end

  describe "with files that are replaced" do
    # Certificates that were not there before: of a CA, and of this host by it.
    def issued(name, issuer: nil)
      key = OpenSSL::PKey::EC.generate("prime256v1")
      certificate = OpenSSL::X509::Certificate.new
      certificate.version = 2
      certificate.serial = issuer ? 2 : 1
      certificate.subject = OpenSSL::X509::Name.parse("/CN=#{name}")
      certificate.issuer = issuer ? issuer.first.subject : certificate.subject
      certificate.public_key = key
      certificate.not_before = Time.now - 60
      certificate.not_after = Time.now + 3600
      extend_certificate(certificate, issuer)
      [certificate.sign(issuer ? issuer.last : key, OpenSSL::Digest.new("SHA256")), key]
    end

    def extend_certificate(certificate, issuer)
      factory = OpenSSL::X509::ExtensionFactory.new
      rows = issuer ? [["subjectAltName", "IP:127.0.0.1"]] : [["basicConstraints", "CA:TRUE", true]]
      rows.each { |row| certificate.add_extension(factory.create_extension(*row)) }
    end

    # A broker of a CA on a port, which lets in clients of that CA alone.
    def broker_of(authority, port)
      certificate, key = issued("127.0.0.1", issuer: authority)
      pair = { private_key: key.to_pem, cert_chain: certificate.to_pem }
      ca = authority.first.to_pem
      start_broker(port:, credentials: GRPC::Core::ServerCredentials.new(ca, [pair], true))
    end

    def write(folder, authority)
      certificate, key = issued("client", issuer: authority)
      texts = { "ca" => authority.first, "cert" => certificate, "key" => key }
      texts.each { |name, made| File.write(File.join(folder, "#{name}.pem"), made.to_pem) }
    end

    def sent?(client)
      client.enqueue("orders", "x")
    rescue Fila::UnavailableError
      false
    end

    it "reads them again for its next connection" do
      Dir.mktmpdir do |folder|
        before = issued("before")
        after = issued("after")
        write(folder, before)
        broker = broker_of(before, free_port)
        files = %w[ca cert key].to_h { |name| [:"#{name}_file", File.join(folder, "#{name}.pem")] }
        texts = files.to_h { |name, path| [:"#{name[/[a-z]+/]}_pem", File.read(path)] }
        client, unchanging = [files, texts].map do |options|
          open_client(broker.target, tls: described_class.new(**options), backoff: Support::QUICK)
        end
        expect([sent?(client), sent?(unchanging)]).to all(be_truthy)
        broker.stop
        broker = broker_of(after, broker.port)
        expect([sent?(client), sent?(unchanging)]).to all(be false)
        write(folder, after)
        eventually("a connection with new files") { sent?(client) }
        expect(sent?(unchanging)).to be false
        expect(broker.seen.length).to eq 1
      end
    end

    it "keeps what it has while a file is missing" do
      Dir.mktmpdir do |folder|
        path = File.join(folder, "ca.pem")
        FileUtils.cp(cert("ca.pem"), path)
        broker = secure_broker(port: free_port)
        client = open_client(broker.target, tls: described_class.new(ca_file: path),
                                            backoff: Support::QUICK)
        expect(sent?(client)).to be_truthy
        FileUtils.rm(path)
        broker.stop
        eventually("the loss") { !sent?(client) }
        secure_broker(port: broker.port)
        eventually("a connection") { sent?(client) }
      end
    end
  end
end
