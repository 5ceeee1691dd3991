// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.faisca.fila.Backpressure;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.DeadLetter;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.Worker;
import dev.faisca.fila.WorkerBuilder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** The operations of workers, and the handler that does what each message says. */
final class Workers {
  private static final int EXIT_STATUS = 9;

  private final Map<String, Working> workers = new ConcurrentHashMap<>();

  /** A worker and what its handlers have done so far, which its monitor guards. */
  private static final class Working {
    private Worker worker;
    private final List<JsonObject> handled = new ArrayList<>();
    private final List<Integer> batches = new ArrayList<>();
    private int running;
    private int mostRunning;

    private void handle(List<ConsumeMessage> messages, boolean isBatch) throws Exception {
      synchronized (this) {
        running++;
        mostRunning = Math.max(mostRunning, running);
        if (isBatch) {
          batches.add(messages.size());
        }
      }
      try {
        doWhatItSays(messages.get(0));
      } finally {
        synchronized (this) {
          running--;
          messages.forEach(message -> handled.add(shown(message)));
          notifyAll();
        }
      }
    }
  }

  JsonObject work(FilaClient client, Request request) throws FilaException {
    Working working = new Working();
    WorkerBuilder<?> builder =
        request.field("batch_size") == null
            ? client.worker(
                request.text("queue"), message -> working.handle(List.of(message), false))
            : client.batchWorker(
                request.text("queue"),
                request.number("batch_size"),
                messages -> working.handle(messages, true));
    request.ifPresent("concurrency", field -> builder.concurrency(field.getAsInt()));
    request.ifPresent("prefetch", field -> builder.prefetch(field.getAsInt()));
    builder.visibilityTimeout(request.millis("visibility_timeout_ms"));
    builder.handlerTimeout(request.millis("handler_timeout_ms"));
    request.ifPresent("grace_ms", field -> builder.grace(request.millis("grace_ms")));
    working.worker = builder.build().start();
    workers.put(request.text("worker"), working);
    return new JsonObject();
  }

  JsonObject handled(Request request) throws InterruptedException {
    Working working = workers.get(request.text("worker"));
    long end = System.nanoTime() + request.millis("wait_ms").toNanos();
    JsonArray handled = new JsonArray();
    JsonArray batches = new JsonArray();
    JsonObject ok = new JsonObject();
    synchronized (working) {
      while (working.handled.size() < request.number("count")) {
        long nanos = end - System.nanoTime();
        if (nanos <= 0) {
          break;
        }
        TimeUnit.NANOSECONDS.timedWait(working, nanos);
      }
      working.handled.forEach(handled::add);
      working.batches.forEach(batches::add);
      ok.addProperty("running", working.running);
      ok.addProperty("most_running", working.mostRunning);
    }
    ok.add("handled", handled);
    ok.add("batches", batches);
    return ok;
  }

  JsonObject stop(Request request) throws FilaException {
    Worker worker = workers.get(request.text("worker")).worker;
    worker.stop();
    worker.join();
    return new JsonObject();
  }

  private static JsonObject shown(ConsumeMessage message) {
    JsonObject shown = new JsonObject();
    shown.addProperty("message_id", message.id());
    shown.addProperty("payload", Base64.getEncoder().encodeToString(message.payload()));
    shown.addProperty("attempt_count", message.attemptCount());
    return shown;
  }

  private static void doWhatItSays(ConsumeMessage message) throws Exception {
    String payload = new String(message.payload(), StandardCharsets.UTF_8);
    if (payload.isEmpty()) {
      return;
    }
    Request say = new Request(JsonParser.parseString(payload).getAsJsonObject());
    if (say.field("sleep_ms") != null) {
      Thread.sleep(say.millis("sleep_ms").toMillis());
    }
    String then = say.field("then") == null ? "return" : say.text("then");
    switch (then) {
      case "return" -> {}
      case "fail" -> throw new Exception(say.text("text"));
      case "dead_letter" -> throw new DeadLetter(say.text("text"));
      case "backpressure" ->
          throw new Backpressure(say.millis("retry_after_ms"), say.text("throttle_key"));
      case "ack" -> message.ack();
      case "exit" -> Runtime.getRuntime().halt(EXIT_STATUS);
      default -> throw new UnsupportedOperationException("a handler cannot " + then);
    }
  }
}
