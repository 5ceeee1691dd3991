// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.Consumer;
import dev.faisca.fila.FilaException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Threads that all take messages from one consumer, and what each of them got. */
final class Readers {
  private final Consumer consumer;
  private final int count;
  // Ends when all of them together have enough, or one has failed.
  private final CompletableFuture<Void> end = new CompletableFuture<>();
  // Guarded by this object.
  private final List<List<ConsumeMessage>> taken = new ArrayList<>();
  private int total;

  Readers(Consumer consumer, int count) {
    this.consumer = consumer;
    this.count = count;
  }

  JsonObject read(int readers, Duration wait, Map<String, ConsumeMessage> delivered)
      throws FilaException, InterruptedException {
    for (int number = 0; number < readers; number++) {
      List<ConsumeMessage> mine = new ArrayList<>();
      synchronized (this) {
        taken.add(mine);
      }
      Thread thread = new Thread(() -> take(mine, delivered));
      thread.setDaemon(true);
      thread.start();
    }
    try {
      end.get(wait.toMillis(), TimeUnit.MILLISECONDS);
    } catch (TimeoutException enough) {
      // What was taken until now is the answer.
    } catch (ExecutionException failed) {
      if (failed.getCause() instanceof FilaException error) {
        throw error;
      }
      throw new IllegalStateException(failed.getCause());
    }
    return shown();
  }

  private void take(List<ConsumeMessage> mine, Map<String, ConsumeMessage> delivered) {
    try {
      while (!consumer.isClosed()) {
        // Whoever waits when the others have enough is left waiting until the consumer ends.
        ConsumeMessage message = consumer.poll(Duration.ofDays(1)).orElse(null);
        if (message == null) {
          return;
        }
        delivered.put(message.id(), message);
        if (!keep(mine, message)) {
          return;
        }
      }
    } catch (FilaException | RuntimeException error) {
      end.completeExceptionally(error);
    }
  }

  /** Whether more is wanted. */
  private synchronized boolean keep(List<ConsumeMessage> mine, ConsumeMessage message) {
    mine.add(message);
    total++;
    if (total >= count) {
      end.complete(null);
    }
    return total < count;
  }

  private synchronized JsonObject shown() {
    JsonArray all = new JsonArray();
    for (List<ConsumeMessage> mine : taken) {
      JsonArray ids = new JsonArray();
      mine.forEach(message -> ids.add(message.id()));
      all.add(ids);
    }
    JsonObject ok = new JsonObject();
    ok.add("taken", all);
    return ok;
  }
}
