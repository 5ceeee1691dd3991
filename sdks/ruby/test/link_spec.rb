# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Where a client is connected to, what is told of it, and what each call takes along.
RSpec.describe Fila::Client do
  describe "the connection" do
    let(:events) { [] }
    let(:kinds) { events.map(&:kind) }

    def watched(target, **options)
      open_client(target, on_connection: ->(event) { events << event }, backoff: Support::QUICK,
                          **options)
    end

    def said(kind)
      eventually(kind) { events.any? { |event| event.kind == kind } }
    end

    it "is told of once for each change, and never before it is used" do
      broker = start_broker(port: free_port)
      client = watched(broker.target)
      expect(events).to eq []
      3.times { client.enqueue("orders") }
      said(:connected)
      broker.stop
      said(:lost)
      5.times { expect { client.enqueue("orders") }.to raise_error(Fila::UnavailableError) }
      said(:unreachable)
      start_broker(port: broker.port)
      client.wait_ready
      eventually("a second connection") { events.length > 3 }
      expect(events.map(&:kind)).to eq %i[connected lost unreachable connected]
      expect(events[2].reason).to include "Connection refused"
      client.close
      expect(events.length).to eq 4
    end

    it "is in the log" do
      Fila.logger.level = Logger::INFO
      broker = start_broker(port: free_port)
      client = watched(broker.target)
      client.enqueue("orders")
      said(:connected)
      expect(@log.string).to eq ""
      broker.stop
      said(:lost)
      start_broker(port: broker.port)
      client.wait_ready
      eventually("a line") { @log.string.include?("there again") }
      name = "the connection to #{broker.target}"
      expect(@log.string).to match(/WARN.*#{name} was lost$/)
      expect(@log.string).to match(/INFO.*#{name} is there again after \d+\.\d s$/)
    end

    it "cannot be made where nobody is, and says why" do
      client = watched("127.0.0.1:#{free_port}")
      3.times { expect { client.enqueue("orders") }.to raise_error(Fila::UnavailableError) }
      said(:unreachable)
      expect(kinds).to eq [:unreachable]
      expect(@log.string).to match(/WARN.*cannot be made: .*Connection refused/)
    end

    it "is told of further changes when on_connection calls what is not there" do
      told = []
      client = open_client(on_connection: lambda { |event|
        told << event.kind
        raise NotImplementedError, "oh"
      })
      client.enqueue("orders", "x")
      eventually("connected") { told == [:connected] }
      broker.stop
      eventually("lost") { told.include?(:lost) }
      client.close
    end

    it "goes on when on_connection fails, or closes the client" do
      client = open_client(on_connection: ->(_) { raise KeyError, "oh" })
      expect(client.enqueue("orders", "x")).to start_with "x#"
      eventually("a line") { @log.string.include?("on_connection failed: KeyError: oh") }
      closing = open_client(on_connection: ->(_) { closing.close })
      begin
        closing.enqueue("orders", "x")
      rescue Fila::ClientClosedError
        nil
      end
      eventually("the end") { closing.inspect.end_with?("closed>") }
    end
  end

  describe "several addresses" do
    it "uses the first that answers, in text or in a list" do
      absent = "127.0.0.1:#{free_port}"
      [["#{absent}, #{broker.target}"], [[absent, broker.target]]].each do |target,|
        client = open_client(target)
        expect(client.enqueue("orders", "x")).to start_with "x#"
        expect(client.inspect).to eq %(#<Fila::Client "#{absent},#{broker.target}">)
      end
      other = start_broker
      open_client([broker.target, other.target]).enqueue("orders")
      expect([broker.seen.length, other.seen.length]).to eq [3, 0]
    end

    it "goes to another when one is lost, and resolves names" do
      one = start_broker(port: free_port)
      other = start_broker
      client = open_client("localhost:#{one.port},127.0.0.1:#{other.port}", backoff: Support::QUICK)
      client.enqueue("orders")
      one.stop
      eventually("the other") do
        client.enqueue("orders")
      rescue Fila::UnavailableError
        false
      end
      expect(other.calls("EnqueueBatch").length).to eq 1
    end

    it "reaches IPv4 and IPv6 in one list" do
      client = open_client("[::1]:#{free_port},#{broker.target}")
      expect(client.enqueue("orders", "x")).to start_with "x#"
    end

    it "is unavailable while no name can be resolved" do
      client = open_client("nowhere.invalid:1,elsewhere.invalid:2")
      expect { client.enqueue("orders") }
        .to raise_error(Fila::UnavailableError, /no name of nowhere\.invalid:1,.* can be resolved/)
    end

    it "names what is none" do
      expect { described_class.new([]) }.to raise_error(ArgumentError, /target is an empty list/)
      expect { described_class.new("a:1,") }.to raise_error(ArgumentError, /target "" is not host/)
      expect { described_class.new(["a:1", "dns:///b:1"]) }
        .to raise_error(ArgumentError, %r{target "dns:///b:1" is not host:port})
      expect { described_class.new("a:1,b:1", tls: Fila::TlsOptions.new) }
        .to raise_error(ArgumentError, /tls with several addresses needs server_name/)
    end

    it "holds all of them to the server name" do
      pair = { private_key: File.read(cert("server.key")),
               cert_chain: File.read(cert("server.pem")) }
      broker = start_broker(credentials: GRPC::Core::ServerCredentials.new(nil, [pair], false))
      tls = Fila::TlsOptions.new(ca_file: cert("ca.pem"), server_name: "localhost")
      client = open_client(["127.0.0.1:#{free_port}", broker.target], tls:, timeout: 15)
      expect(client.enqueue("orders", "x")).to start_with "x#"
    end
  end

  describe "an API key that is asked for" do
    it "is that of the moment, on calls and streams" do
      broker.script("Consume") { broker.stream(frame("a")) }
      keys = %w[one two three four]
      client = open_client(api_key: -> { keys.shift })
      client.enqueue("orders")
      client.list_queues
      client.consume("orders").first
      sent = broker.seen.map { |call| call.metadata["authorization"] }
      expect(sent.first(3)).to eq ["Bearer one", "Bearer two", "Bearer three"]
    end

    it "may be none" do
      open_client(api_key: -> {}).enqueue("orders")
      expect(broker.seen.first.metadata).not_to include "authorization"
    end

    it "fails its call alone where a library cannot be loaded" do
      answers = Array.new(5) { LoadError.new("cannot load such file -- vault") }
      client = open_client(api_key: -> { (error = answers.shift) ? raise(error) : "key" })
      5.times do
        expect { client.enqueue("orders") }
          .to raise_error(Fila::UnauthenticatedError, /LoadError: cannot load such file -- vault/)
      end
      expect(client.enqueue("orders", "x")).to start_with "x#"
    end

    it "fails its call with what it raises" do
      client = open_client(api_key: -> { raise KeyError, "vault" })
      text = "no API key, its source failed: KeyError: vault"
      message = Fila::EnqueueMessage.new(queue: "orders")
      [-> { client.enqueue("orders") }, -> { client.list_queues },
       -> { client.enqueue_many([message]).first.unwrap },
       -> { client.consume("orders").first }].each do |call|
        expect(&call).to raise_error(Fila::UnauthenticatedError, text) do |error|
          expect(error.cause).to be_a KeyError
        end
      end
      expect(broker.seen).to eq []
    end

    it "is asked again for a consumer when it is away" do
      broker.script("Consume") { broker.stream(frame("a")) }
      times = 0
      key = -> { (times += 1) > 2 ? "key" : raise(Fila::UnavailableError, "vault is away") }
      client = open_client(api_key: key, backoff: Support::QUICK)
      expect(client.consume("orders").first.id).to eq "a"
    end

    it "is not shown when it is none" do
      client = open_client(api_key: -> { "my key" })
      expect { client.enqueue("orders") }.to raise_error(Fila::UnauthenticatedError) do |error|
        expect(error.full_message).not_to include "my key"
      end
    end
  end

  describe "interceptors" do
    let(:recorder) do
      Class.new(GRPC::ClientInterceptor) do
        attr_reader :methods_seen

        def request_response(method:, metadata:, **)
          (@methods_seen ||= []) << method
          metadata["x-team"] = "blue"
          yield
        end

        def server_streamer(method:, **)
          (@methods_seen ||= []) << method
          yield
        end
      end.new
    end

    it "see calls and streams, and add to the metadata of calls" do
      broker.script("Consume") { broker.stream(frame("a")) }
      client = open_client(interceptors: [recorder], api_key: "key")
      client.enqueue("orders")
      client.consume("orders").first
      paths = %w[/fila.v1.FilaService/EnqueueBatch /fila.v1.FilaService/Consume]
      expect(recorder.methods_seen.first(2)).to eq paths
      expect(broker.seen.first.metadata).to include("x-team" => "blue",
                                                    "authorization" => "Bearer key")
    end
  end
end
