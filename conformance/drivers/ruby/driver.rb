# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The conformance driver of the Ruby SDK: JSON lines in, calls of the public API, JSON lines out.
# ../../PROTOCOL.md says what each request and each reply means. Every request has a thread of its
# own, and is cancelled as Ruby cancels: by raising in that thread.

require "fila"
require "json"

require_relative "handled"
require_relative "operating"
require_relative "shared"
require_relative "span"

# Carries out requests and turns outcomes into replies.
class Driver
  include Operating

  FEATURES = %w[
    tracing mtls admin nack_many around error_fields shared_consumer ill_formed_text
  ].freeze
  # A text that UTF-8 cannot say.
  ILL_FORMED = "x\xFFy"
  # Raised in the thread of a request that is to be cancelled. Not a StandardError, so that nothing
  # takes it for a failure of the call.
  Cancelled = Class.new(Exception) # rubocop:disable Lint/InheritException
  Unsupported = Class.new(StandardError)
  # What a handler of a worker fails with.
  Failed = Class.new(StandardError)
  # A consumer, and the messages that it handed out, by id.
  Opened = Struct.new(:consumer, :messages)

  def initialize(output)
    @output = output
    @lock = Mutex.new
    @clients = {}
    @consumers = {}
    @workers = {}
    @requests = {}
  end

  # Starts a request. Its thread can be cancelled only while it is in the SDK.
  def start(request)
    Thread.handle_interrupt(Cancelled => :never) do
      @lock.synchronize { @requests[request["id"]] = Thread.new { answer(request) } }
    end
  end

  # Waits for the requests under way, but not for long.
  def finish(seconds)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    @lock.synchronize { @requests.values }.each do |thread|
      thread.join([deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC), 0].max)
    end
  end

  private

  def answer(request)
    reply = outcome(request)
    @lock.synchronize do
      @requests.delete(request["id"])
      @output.puts(JSON.generate({ "id" => request["id"] }.merge(reply)))
      @output.flush
    end
  end

  def outcome(request)
    { "ok" => Thread.handle_interrupt(Cancelled => :immediate) { perform(request) } }
  rescue Cancelled
    { "error" => { "kind" => "cancelled", "message" => "cancelled", "retryable" => false } }
  rescue Fila::Error => e
    { "error" => describe(e) }
  rescue Unsupported => e
    { "unsupported" => e.message }
  rescue StandardError => e
    { "crashed" => e.full_message(highlight: false) }
  end

  def perform(request)
    name = "op_#{request["op"]}"
    raise Unsupported, "no such op: #{request["op"]}" unless respond_to?(name, true)

    send(name, request)
  end

  # The kind is the class's own name: QueueNotFoundError is queue_not_found.
  def describe(error)
    name = error.class.name.delete_prefix("Fila::").delete_suffix("Error")
    kind = name.gsub(/(?<!\A)([A-Z])/, '_\1').downcase
    same = %i[code reason queue message_id].to_h { |field| [field, error.public_send(field)] }
    { kind:, message: error.message, retryable: error.retryable?, **same }
  end

  def client(request)
    @lock.synchronize { @clients.fetch(request["client"]) }
  end

  def opened(request)
    @lock.synchronize { @consumers.fetch(request["consumer"]) }
  end

  # The named fields that are there, as keyword arguments. `timeout_ms` is one wherever it is there.
  def options(request, *names)
    found = names.to_h { |name| [name, request[name.name]] }
    found[:timeout] = seconds(request["timeout_ms"])
    found.compact
  end

  def seconds(milliseconds)
    milliseconds && (milliseconds / 1000.0)
  end

  def milliseconds(time)
    time && (time.to_r * 1000).to_i
  end

  # Runs the block for every element at once, each on a thread of its own, in the active span.
  def concurrently(elements)
    context = OpenTelemetry::Context.current
    threads = elements.map do |element|
      Thread.new { OpenTelemetry::Context.with_current(context) { yield element } }
            .tap { |thread| thread.report_on_exception = false }
    end
    threads.map(&:value)
  end

  # --- Connecting --------------------------------------------------------------------------------

  def op_hello(_request)
    { "sdk" => "fila-client", "sdk_version" => Fila::VERSION, "language" => "ruby",
      "features" => FEATURES }
  end

  def op_connect(request)
    given = request["options"] || {}
    tls = request["tls"] && Fila::TlsOptions.new(**request["tls"].transform_keys(&:to_sym))
    backoff = { initial: seconds(given["backoff_initial_ms"]),
                maximum: seconds(given["backoff_maximum_ms"]) }.compact
    backoff = backoff.empty? ? nil : Fila::Backoff.new(**backoff)
    settings = { tls:, backoff:, api_key: request["api_key"],
                 timeout: seconds(given["timeout_ms"]) }.compact
    connected = Fila::Client.new(*[request["target"]].compact, **settings)
    @lock.synchronize { @clients[request["client"]] = connected }
    {}
  end

  def op_ping(request)
    { "ms" => client(request).ping(**options(request)) * 1000 }
  end

  def op_close(request)
    client(request).close
    {}
  end

  def op_flush(request)
    client(request).flush(**options(request))
    {}
  end

  # --- Producing ---------------------------------------------------------------------------------

  def fields(request)
    found = options(request, :headers, :fairness_key, :weight, :throttle_keys, :throttle_cost,
                    :delay_ms, :ttl_ms, :idempotency_key)
    at = request["deliver_at_ms"]
    found[:deliver_at] = Time.at(Rational(at, 1000)) if at
    found
  end

  def payload(request)
    request["payload"]&.unpack1("m0")
  end

  def op_enqueue(request)
    positional = [request["queue"], payload(request)].compact
    { "message_id" => client(request).enqueue(*positional, **fields(request)) }
  end

  def op_enqueue_many(request)
    messages = request["messages"].map do |given|
      named = { queue: given["queue"], payload: payload(given) }.compact
      Fila::EnqueueMessage.new(**named, **fields(given))
    end
    results = client(request).enqueue_many(messages, **options(request)).map do |result|
      next { "error" => describe(result.error) } if result.error

      { "message_id" => result.message_id, "duplicate" => result.duplicate? }
    end
    { "results" => results }
  end

  def op_enqueue_concurrently(request)
    ids = concurrently(1..request["count"]) { op_enqueue(request)["message_id"] }
    { "message_ids" => ids }
  end

  def op_enqueue_ill_formed(request)
    named = case request["where"]
            when "header_key" then { headers: { ILL_FORMED => "x" } }
            when "header_value" then { headers: { "x" => ILL_FORMED } }
            else { request["where"].to_sym => ILL_FORMED }
            end
    client(request).enqueue(request["queue"], **named)
    { "refused" => false }
  rescue ArgumentError, Fila::Error
    { "refused" => true }
  end

  # --- Consuming ---------------------------------------------------------------------------------

  def op_consume(request)
    named = options(request, :max_in_flight, :batch_size, :visibility_timeout_ms, :extend_leases)
    consumer = client(request).consume(request["queue"], **named)
    @lock.synchronize { @consumers[request["consumer"]] = Opened.new(consumer, {}) }
    {}
  end

  def op_next(request)
    consumer, handed_out = opened(request).to_a
    messages = take(consumer, request["max"], seconds(request["wait_ms"]))
    @lock.synchronize { messages.each { |message| handed_out[message.id] = message } }
    { "messages" => messages.map { |message| shown(message) }, "ended" => consumer.closed? }
  end

  def take(consumer, max, seconds)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    messages = []
    while messages.length < max
      timeout = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
      message = consumer.pop(timeout:)
      break if message.nil?

      messages << message
    end
    messages
  rescue Fila::Error
    # The consumer raises it again once these have been taken.
    raise if messages.empty?

    messages
  end

  def op_next_shared(request)
    consumer, handed_out = opened(request).to_a
    taken = Shared.new(consumer, request["readers"])
                  .take(request["count"], seconds(request["wait_ms"]))
    @lock.synchronize { taken.flatten.each { |message| handed_out[message.id] = message } }
    { "taken" => taken.map { |messages| messages.map(&:id) } }
  end

  def op_stop(request)
    opened(request).consumer.close
    {}
  end

  def op_receive(request)
    named = options(request, :max_messages, :wait_ms, :visibility_timeout_ms)
    messages = client(request).receive(request["queue"], **named)
    { "messages" => messages.map { |message| shown(message) } }
  end

  def shown(message)
    same = %i[id queue headers fairness_key weight throttle_keys attempt_count lease_token
              last_error].to_h { |name| [name, message.public_send(name)] }
    { **same, payload: [message.payload].pack("m0"),
              failures: message.failures.map { |failure| shown_failure(failure) },
              enqueued_at_ms: milliseconds(message.enqueued_at),
              lease_expires_at_ms: milliseconds(message.lease_expires_at) }
  end

  def shown_failure(failure)
    { failed_at_ms: milliseconds(failure.failed_at), cause: failure.cause, error: failure.error }
  end

  # --- Working -----------------------------------------------------------------------------------

  def op_work(request)
    named = options(request, :concurrency, :batch_size, :prefetch, :visibility_timeout_ms)
    named[:handler_timeout] = seconds(request["handler_timeout_ms"])
    named[:grace] = seconds(request["grace_ms"])
    log = Handled.new
    worker = client(request).worker(request["queue"], **named.compact) do |given|
      messages = Array(given)
      log.during(messages) { handle(messages.first) }
    end
    thread = Thread.new { worker.run(signals: false) }
    thread.report_on_exception = false
    @lock.synchronize { @workers[request["worker"]] = [worker, thread, log] }
    {}
  end

  # Does what the message says.
  def handle(message)
    asked = message.payload.empty? ? {} : JSON.parse(message.payload)
    sleep(seconds(asked["sleep_ms"])) if asked["sleep_ms"]
    case asked["then"]
    when "fail" then raise Failed, asked["text"]
    when "dead_letter" then raise Fila::DeadLetter, asked["text"]
    when "backpressure"
      raise Fila::Backpressure.new(seconds(asked["retry_after_ms"]),
                                   throttle_key: asked["throttle_key"])
    when "ack" then message.ack
    when "exit" then exit!(9)
    end
  end

  def op_handled(request)
    _, _, log = @lock.synchronize { @workers.fetch(request["worker"]) }
    log.shown(request["count"], seconds(request["wait_ms"]))
  end

  def op_stop_worker(request)
    worker, thread, = @lock.synchronize { @workers.fetch(request["worker"]) }
    worker.stop
    thread.value
    {}
  end

  # --- Settling ----------------------------------------------------------------------------------

  def op_ack(request)
    client(request).ack(request["queue"], request["message_id"], **options(request, :lease_token))
    {}
  end

  def op_nack(request)
    positional = [request["queue"], request["message_id"], request["error"]].compact
    named = options(request, :lease_token, :retry_after_ms, :throttle_key, :dead_letter)
    client(request).nack(*positional, **named)
    {}
  end

  def op_extend(request)
    positional = [request["queue"], request["message_id"], request["ms"]].compact
    ends_at = client(request).extend_lease(*positional, **options(request, :lease_token))
    { "lease_expires_at_ms" => milliseconds(ends_at) }
  end

  def op_ack_grant(request)
    named = options(request, :except_message_ids)
    { "messages" => client(request).ack_grant(request["queue"], request["lease_token"], **named) }
  end

  def op_nack_grant(request)
    positional = [request["queue"], request["lease_token"], request["error"]].compact
    named = options(request, :except_message_ids, :retry_after_ms, :throttle_key, :dead_letter)
    { "messages" => client(request).nack_grant(*positional, **named) }
  end

  def op_extend_grant(request)
    positional = [request["queue"], request["lease_token"], request["ms"]].compact
    ends_at = client(request).extend_grant(*positional, **options(request, :except_message_ids))
    { "lease_expires_at_ms" => milliseconds(ends_at) }
  end

  def delivered(request)
    held = opened(request).messages
    request["message_ids"].map { |id| held.fetch(id) }
  end

  def op_ack_many(request)
    outcomes = client(request).ack_many(delivered(request))
    { "results" => outcomes.map { |error| error && describe(error) } }
  end

  def op_nack_many(request)
    outcomes = client(request).nack_many(delivered(request), *[request["error"]].compact)
    { "results" => outcomes.map { |error| error && describe(error) } }
  end

  def op_extend_many(request)
    outcomes = client(request).extend_many(delivered(request), *[request["ms"]].compact)
    results = outcomes.map do |outcome|
      next { "error" => describe(outcome) } if outcome.is_a?(Fila::Error)

      { "lease_expires_at_ms" => milliseconds(outcome) }
    end
    { "results" => results }
  end

  def op_ack_concurrently(request)
    results = concurrently(request["acks"]) do |ack|
      op_ack(request.merge(ack))
      nil
    rescue Fila::Error => e
      describe(e)
    end
    { "results" => results }
  end

  def op_settle(request)
    message = opened(request).messages.fetch(request["message_id"])
    case request["how"]
    when "ack" then message.ack
    when "nack" then message.nack(*[request["error"]].compact)
    when "extend"
      ends_at = message.extend_lease(*[request["ms"]].compact)
      return { "lease_expires_at_ms" => milliseconds(ends_at) }
    end
    {}
  end

  def op_process(request)
    Fila::Tracing.processing(opened(request).messages.fetch(request["message_id"])) { nil }
    OpenTelemetry::Tracer.told
  end

  # --- About requests ----------------------------------------------------------------------------

  def op_cancel(request)
    @lock.synchronize { @requests[request["target"]] }&.raise(Cancelled)
    {}
  end

  def op_with_span(request)
    span = OpenTelemetry::Span.of(request["traceparent"], request["tracestate"])
    OpenTelemetry::Trace.with_span(span) { perform(request["then"]) }
  end
end

# At once, whatever is open: what is under way at the broker is not this process's to finish.
trap("TERM") { exit!(0) }

driver = Driver.new($stdout)
$stdin.each_line { |line| driver.start(JSON.parse(line)) }
driver.finish(1)
exit!(0)
