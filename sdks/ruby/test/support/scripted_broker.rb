# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A broker that does what a test tells it: real gRPC over loopback, answers from a script.
#
# It records what arrived (method, request, metadata, deadline), so that tests look at the wire and
# not at the client's inside.

require "grpc/health/v1/health_services_pb"

# Answers every call with success unless `script` says otherwise.
class ScriptedBroker
  # What gRPC for Ruby makes of a deadline at the end of time.
  NO_DEADLINE = Time.at(-1)

  # One call as it arrived.
  Seen = Struct.new(:name, :request, :metadata, :deadline, :at) do
    # nil for a call that has no deadline.
    def seconds_left
      deadline == NO_DEADLINE ? nil : deadline - at
    end
  end

  CALLS = {
    "FilaService" => %w[
      Enqueue EnqueueBatch Consume Receive Ack Nack AckBatch NackBatch ExtendLease SettleGrants
    ],
    "FilaAdmin" => %w[
      CreateQueue UpdateQueue DeleteQueue ListQueues GetStats Redrive Peek Purge Pause Resume
      Explain CancelMessage ListThrottles SetConfig GetConfig DeleteConfig ListConfig CreateApiKey
      RevokeApiKey ListApiKeys SetAcl GetAcl
    ]
  }.freeze
  STREAMS = ["Consume"].freeze

  # A service for GRPC::RpcServer, by the contract's rule for the names of requests and answers.
  def self.service(name)
    definition = Class.new do
      include GRPC::GenericService
      self.marshal_class_method = :encode
      self.unmarshal_class_method = :decode
      self.service_name = "fila.v1.#{name}"
      CALLS.fetch(name).each do |call|
        response = Fila::V1.const_get("#{call}Response")
        rpc call.to_sym, Fila::V1.const_get("#{call}Request"),
            STREAMS.include?(call) ? stream(response) : response
      end
    end
    handled(definition, CALLS.fetch(name))
  end

  def self.handled(definition, calls)
    Class.new(definition) do
      define_method(:initialize) { |broker| @broker = broker }
      calls.each do |call|
        define_method(GRPC::GenericService.underscore(call)) do |request, context|
          @broker.answer(call, request, context)
        end
      end
    end
  end

  # gRPC's own service, which says whether a broker serves.
  class Health < Grpc::Health::V1::Health::Service
    def initialize(broker)
      super()
      @broker = broker
    end

    def check(request, context)
      @broker.answer("Check", request, context)
    end
  end

  SERVICES = [*CALLS.keys.map { |name| service(name) }, Health].freeze

  attr_reader :port

  # Yields itself before it answers anybody: a client may be waiting for its port.
  def initialize(port: 0, credentials: :this_port_is_insecure)
    @lock = Mutex.new
    @seen = []
    @ids = 0
    @is_stopping = false
    @scripts = { "EnqueueBatch" => method(:store), "AckBatch" => method(:settle),
                 "NackBatch" => method(:settle), "Check" => method(:serving) }
    @server = GRPC::RpcServer.new(
      pool_size: 80, poll_period: 0.05, pool_keep_alive: 5,
      # As the real one: a second broker must not be able to take over the port.
      server_args: { "grpc.so_reuseport" => 0, "grpc.max_receive_message_length" => 64 << 20 }
    )
    @port = @server.add_http2_port("127.0.0.1:#{port}", credentials)
    SERVICES.each { |service| @server.handle(service.new(self)) }
    yield self if block_given?
    @thread = Thread.new { @server.run }
    @server.wait_till_running(20)
  end

  def target
    "127.0.0.1:#{port}"
  end

  def script(call, &answer)
    @scripts[call] = answer
  end

  # The answer that a script would give if it were not replaced.
  def scripted(call)
    @scripts.fetch(call)
  end

  def seen
    @lock.synchronize { @seen.dup }
  end

  def calls(name)
    seen.select { |call| call.name == name }
  end

  def stop
    return if @is_stopping

    @is_stopping = true
    @server.stop
    @thread.join
  end

  def answer(call, request, context)
    @lock.synchronize do
      @seen << Seen.new(call, request, context.metadata, context.deadline, Time.now)
    end
    script = @scripts.fetch(call) { ->(*) { Fila::V1.const_get("#{call}Response").new } }
    script.arity == 1 ? script.call(request) : script.call(request, context)
  end

  def serving(_request)
    Grpc::Health::V1::HealthCheckResponse.new(status: :SERVING)
  end

  # The id of a message is its payload and a number, so that tests can tell whose it is.
  def store(request)
    results = request.messages.map do |message|
      number = @lock.synchronize { @ids += 1 }
      name = message.payload[0, 20].force_encoding(Encoding::UTF_8).scrub("?")
      Fila::V1::EnqueueResult.new(message_id: "#{name}##{number}")
    end
    Fila::V1::EnqueueBatchResponse.new(results:)
  end

  def settle(request)
    is_ack = request.is_a?(Fila::V1::AckBatchRequest)
    count = (is_ack ? request.acks : request.nacks).length
    kind = is_ack ? Fila::V1::AckBatchResponse : Fila::V1::NackBatchResponse
    kind.new(results: Array.new(count) { Fila::V1::ItemResult.new })
  end

  # A stream: what the block yields, and then nothing until the client leaves or the broker stops.
  # gRPC for Ruby tells a handler that the client left only when it sends, so the stream carries
  # empty frames. `ended` becomes true when the stream is over.
  def stream(*frames, ended: nil, idle: true)
    Enumerator.new do |out|
      frames.each { |frame| out << frame }
      while idle && !@is_stopping
        out << Fila::V1::ConsumeResponse.new
        sleep 0.02
      end
    ensure
      ended&.push(true)
    end
  end
end
