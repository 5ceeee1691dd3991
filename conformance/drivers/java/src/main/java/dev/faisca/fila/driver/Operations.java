// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import dev.faisca.fila.Backoff;
import dev.faisca.fila.CancelledException;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.ConsumeOptions;
import dev.faisca.fila.Consumer;
import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.EnqueueResult;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaClientBuilder;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.NackOptions;
import dev.faisca.fila.TlsOptions;
import dev.faisca.fila.Tracing;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;

/** One method per operation of the protocol: a call of the SDK's public API, and its result. */
final class Operations {
  private static final double NANOS_PER_MS = 1e6;

  private final Map<String, FilaClient> clients = new ConcurrentHashMap<>();
  private final Map<String, Open> consumers = new ConcurrentHashMap<>();
  private final Workers workers = new Workers();

  /** A consumer, the messages it handed out by id, and an error that is still to be told. */
  private record Open(
      Consumer consumer,
      Map<String, ConsumeMessage> messages,
      AtomicReference<FilaException> error) {

    Open(Consumer consumer) {
      this(consumer, new ConcurrentHashMap<>(), new AtomicReference<>());
    }
  }

  /**
   * Makes the first call of the process, to nobody. It takes the runtime a second or more to load
   * what a call needs, which is neither the SDK's time nor that of the case that comes first.
   */
  static void warmUp() {
    try (FilaClient client = FilaClient.builder().target("127.0.0.1:1").build()) {
      client.enqueue(EnqueueMessage.to("nowhere").build());
    } catch (FilaException expected) {
      Values.error(expected);
    }
  }

  JsonObject run(Request request) throws Exception {
    return switch (request.op()) {
      case "hello" -> Values.hello();
      case "connect" -> connect(request);
      case "close" -> close(request);
      case "flush" -> flush(request);
      case "enqueue" -> enqueue(request);
      case "enqueue_many" -> enqueueMany(request);
      case "enqueue_concurrently" -> enqueueConcurrently(request);
      case "consume" -> consume(request);
      case "next" -> next(request);
      case "stop" -> stop(request);
      case "work" -> workers.work(client(request), request);
      case "handled" -> workers.handled(request);
      case "stop_worker" -> workers.stop(request);
      case "receive" -> receive(request);
      case "ack" -> ack(request);
      case "nack" -> nack(request);
      case "extend" -> extend(request);
      case "ack_concurrently" -> ackConcurrently(request);
      case "next_shared" -> nextShared(request);
      case "ack_many", "nack_many", "extend_many" ->
          Grants.many(client(request), request, consumer(request).messages);
      case "ping" -> ping(request);
      case "ack_grant", "nack_grant", "extend_grant" -> Grants.settle(client(request), request);
      case "settle" -> settle(request);
      case "process" -> process(request);
      case "with_span" -> withSpan(request);
      case "enqueue_ill_formed" -> enqueueIllFormed(request);
      default -> Administration.run(client(request), request);
    };
  }

  private JsonObject connect(Request request) {
    FilaClientBuilder builder = FilaClient.builder();
    request.ifPresent("target", field -> builder.target(field.getAsString()));
    request.ifPresent("api_key", field -> builder.apiKey(field.getAsString()));
    Request tls = request.nested("tls");
    if (tls != null) {
      builder.tls(tls(tls));
    }
    Request options = request.nested("options");
    if (options != null) {
      options.ifPresent("timeout_ms", field -> builder.timeout(options.millis("timeout_ms")));
      Duration initial = options.millis("backoff_initial_ms");
      Duration maximum = options.millis("backoff_maximum_ms");
      builder.backoff(
          new Backoff(
              initial == null ? Backoff.DEFAULT.initial() : initial,
              maximum == null ? Backoff.DEFAULT.maximum() : maximum));
    }
    clients.put(request.text("client"), builder.build());
    return new JsonObject();
  }

  private static TlsOptions tls(Request fields) {
    Path ca = fields.path("ca_file");
    TlsOptions tls = ca == null ? TlsOptions.systemRoots() : TlsOptions.ca(ca);
    Path cert = fields.path("cert_file");
    Path key = fields.path("key_file");
    if (cert != null || key != null) {
      tls = tls.withClientCertificate(cert, key);
    }
    return tls.withServerName(fields.text("server_name"));
  }

  private JsonObject ping(Request request) throws FilaException {
    JsonObject ok = new JsonObject();
    ok.addProperty("ms", client(request).ping().toNanos() / NANOS_PER_MS);
    return ok;
  }

  private JsonObject close(Request request) {
    client(request).close();
    return new JsonObject();
  }

  private JsonObject flush(Request request) throws FilaException {
    client(request).flush();
    return new JsonObject();
  }

  // --- Produce ----------------------------------------------------------------------------------

  private JsonObject enqueue(Request request) throws FilaException {
    JsonObject ok = new JsonObject();
    ok.addProperty("message_id", client(request).enqueue(Values.enqueueMessage(request)));
    return ok;
  }

  private JsonObject enqueueMany(Request request) throws FilaException {
    List<EnqueueMessage> messages = request.list("messages").map(Values::enqueueMessage).toList();
    JsonObject ok = new JsonObject();
    List<EnqueueResult> results = client(request).enqueueMany(messages);
    ok.add("results", Values.array(results, Operations::show));
    return ok;
  }

  private static JsonElement show(EnqueueResult result) {
    JsonObject shown = new JsonObject();
    if (result.error() != null) {
      shown.add("error", Values.error(result.error()));
      return shown;
    }
    shown.addProperty("message_id", result.messageId());
    shown.addProperty("duplicate", result.isDuplicate());
    return shown;
  }

  private JsonObject enqueueConcurrently(Request request)
      throws FilaException, InterruptedException {
    FilaClient client = client(request);
    EnqueueMessage message = Values.enqueueMessage(request);
    List<CompletableFuture<String>> started = new ArrayList<>();
    for (int count = request.number("count"); count > 0; count--) {
      started.add(client.enqueueAsync(message));
    }
    JsonArray ids = new JsonArray();
    for (CompletableFuture<String> future : started) {
      ids.add(await(future));
    }
    JsonObject ok = new JsonObject();
    ok.add("message_ids", ids);
    return ok;
  }

  /** Puts half of a surrogate pair, which no UTF-8 can say, where the request wants it. */
  private JsonObject enqueueIllFormed(Request request) throws FilaException {
    String text = "x\ud800y";
    EnqueueMessage.Builder message = EnqueueMessage.to(request.text("queue"));
    boolean isRefused = false;
    try {
      switch (request.text("where")) {
        case "header_key" -> message.header(text, "");
        case "header_value" -> message.header("key", text);
        case "fairness_key" -> message.fairnessKey(text);
        case "idempotency_key" -> message.idempotencyKey(text);
        default -> throw new UnsupportedOperationException("nowhere: " + request.text("where"));
      }
      client(request).enqueue(message.build());
    } catch (IllegalArgumentException refused) {
      isRefused = true;
    }
    JsonObject ok = new JsonObject();
    ok.addProperty("refused", isRefused);
    return ok;
  }

  // --- Consume ----------------------------------------------------------------------------------

  private JsonObject consume(Request request) throws FilaException {
    ConsumeOptions options = ConsumeOptions.DEFAULT;
    if (request.field("max_in_flight") != null) {
      options = options.withMaxInFlight(request.number("max_in_flight"));
    }
    if (request.field("batch_size") != null) {
      options = options.withBatchSize(request.number("batch_size"));
    }
    options = options.withVisibilityTimeout(request.millis("visibility_timeout_ms"));
    if (request.field("extend_leases") != null) {
      options = options.withExtendLeases(request.isTrue("extend_leases"));
    }
    Consumer consumer = client(request).consume(request.text("queue"), options);
    consumers.put(request.text("consumer"), new Open(consumer));
    return new JsonObject();
  }

  private JsonObject next(Request request) throws FilaException {
    Open open = consumer(request);
    FilaException held = open.error.getAndSet(null);
    if (held != null) {
      throw held;
    }
    long end = System.nanoTime() + request.millis("wait_ms").toNanos();
    JsonArray messages = new JsonArray();
    JsonObject ok = new JsonObject();
    ok.add("messages", messages);
    try {
      while (messages.size() < request.number("max")) {
        Duration left = Duration.ofNanos(end - System.nanoTime());
        Optional<ConsumeMessage> message = open.consumer.poll(left);
        if (message.isEmpty()) {
          break;
        }
        open.messages.put(message.get().id(), message.get());
        messages.add(Values.message(message.get()));
      }
      ok.addProperty("ended", open.consumer.isClosed());
    } catch (FilaException error) {
      if (messages.isEmpty() || error instanceof CancelledException) {
        throw error;
      }
      // First the messages, then the error that came after them.
      open.error.set(error);
      ok.addProperty("ended", false);
    }
    return ok;
  }

  private JsonObject nextShared(Request request) throws Exception {
    Readers readers = new Readers(consumer(request).consumer, request.number("count"));
    return readers.read(
        request.number("readers"), request.millis("wait_ms"), consumer(request).messages);
  }

  private JsonObject stop(Request request) {
    consumer(request).consumer.close();
    return new JsonObject();
  }

  private JsonObject receive(Request request) throws FilaException {
    List<ConsumeMessage> messages =
        client(request)
            .receive(
                request.text("queue"),
                request.field("max_messages") == null ? 0 : request.number("max_messages"),
                request.millis("wait_ms"),
                request.millis("visibility_timeout_ms"));
    JsonObject ok = new JsonObject();
    ok.add("messages", Values.array(messages, Values::message));
    return ok;
  }

  private JsonObject ack(Request request) throws FilaException {
    client(request)
        .ack(request.text("queue"), request.text("message_id"), request.text("lease_token"));
    return new JsonObject();
  }

  private JsonObject nack(Request request) throws FilaException {
    client(request)
        .nack(
            request.text("queue"),
            request.text("message_id"),
            request.text("lease_token"),
            request.text("error"),
            new NackOptions(
                request.millis("retry_after_ms"),
                request.text("throttle_key"),
                request.isTrue("dead_letter")));
    return new JsonObject();
  }

  private JsonObject extend(Request request) throws FilaException {
    return lease(
        client(request)
            .extend(
                request.text("queue"),
                request.text("message_id"),
                request.text("lease_token"),
                request.millis("ms")));
  }

  static JsonObject lease(Instant end) {
    JsonObject ok = new JsonObject();
    ok.addProperty("lease_expires_at_ms", Values.millis(end));
    return ok;
  }

  private JsonObject ackConcurrently(Request request) throws InterruptedException {
    FilaClient client = client(request);
    String queue = request.text("queue");
    List<CompletableFuture<Void>> started =
        request
            .list("acks")
            .map(ack -> client.ackAsync(queue, ack.text("message_id"), ack.text("lease_token")))
            .toList();
    JsonArray results = new JsonArray();
    for (CompletableFuture<Void> future : started) {
      try {
        await(future);
        results.add(JsonNull.INSTANCE);
      } catch (FilaException error) {
        results.add(Values.error(error));
      }
    }
    JsonObject ok = new JsonObject();
    ok.add("results", results);
    return ok;
  }

  private JsonObject settle(Request request) throws FilaException {
    ConsumeMessage message = consumer(request).messages.get(request.text("message_id"));
    switch (request.text("how")) {
      case "ack" -> message.ack();
      case "nack" -> message.nack(request.text("error"));
      case "extend" -> {
        return lease(message.extend(request.millis("ms")));
      }
      default -> throw new UnsupportedOperationException("cannot settle by " + request.text("how"));
    }
    return new JsonObject();
  }

  private JsonObject process(Request request) throws Exception {
    Tracing.processing(consumer(request).messages.get(request.text("message_id")), () -> null);
    return Spans.latest();
  }

  private JsonObject withSpan(Request request) throws Exception {
    return Spans.active(request.text("traceparent"), request.text("tracestate"))
        .wrap(() -> run(request.nested("then")))
        .call();
  }

  // --- What requests name -----------------------------------------------------------------------

  private FilaClient client(Request request) {
    FilaClient client = clients.get(request.text("client"));
    Duration timeout = request.millis("timeout_ms");
    return timeout == null ? client : client.withTimeout(timeout);
  }

  private Open consumer(Request request) {
    return consumers.get(request.text("consumer"));
  }

  private static <T> T await(CompletableFuture<T> future)
      throws FilaException, InterruptedException {
    try {
      return future.get();
    } catch (ExecutionException failed) {
      if (failed.getCause() instanceof FilaException error) {
        throw error;
      }
      throw new IllegalStateException(failed.getCause());
    }
  }
}
