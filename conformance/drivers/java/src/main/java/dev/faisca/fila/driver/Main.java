// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.faisca.fila.FilaException;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * The driver's end of the protocol: requests come in as lines, each runs in a thread of its own,
 * and what becomes of it goes out as a line. Knows no call of the SDK.
 */
final class Main {
  // What is under way may still answer at the end of input, within the 2 s of the protocol.
  private static final long LAST_WORDS_MS = 1_500;

  private final Operations operations = new Operations();
  private final Map<JsonElement, Thread> underWay = new ConcurrentHashMap<>();
  private final PrintStream replies =
      new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

  public static void main(String[] arguments) throws IOException, InterruptedException {
    Spans.record();
    Operations.warmUp();
    new Main().serve();
    // Clients and consumers may still be open.
    System.exit(0);
  }

  private void serve() throws IOException, InterruptedException {
    BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      JsonObject request = JsonParser.parseString(line).getAsJsonObject();
      JsonElement id = request.get("id");
      Thread thread = new Thread(() -> handle(id, request));
      thread.setDaemon(true);
      underWay.put(id, thread);
      thread.start();
    }
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(LAST_WORDS_MS);
    for (Thread thread : underWay.values()) {
      long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      thread.join(Math.max(left, 1));
    }
  }

  private void handle(JsonElement id, JsonObject fields) {
    JsonObject reply = new JsonObject();
    reply.add("id", id);
    try {
      Request request = new Request(fields);
      reply.add("ok", request.op().equals("cancel") ? cancel(request) : operations.run(request));
    } catch (FilaException error) {
      reply.add("error", Values.error(error));
    } catch (InterruptedException cancelled) {
      reply.add("error", Values.cancelled());
    } catch (IllegalArgumentException refused) {
      reply.add("error", Values.refused(refused));
    } catch (UnsupportedOperationException unknown) {
      reply.addProperty("unsupported", unknown.getMessage());
    } catch (Exception | LinkageError defect) {
      defect.printStackTrace();
      reply.addProperty("crashed", defect.toString());
    }
    underWay.remove(id);
    synchronized (replies) {
      replies.println(reply);
      replies.flush();
    }
  }

  private JsonObject cancel(Request request) {
    Thread target = underWay.get(request.field("target"));
    if (target != null) {
      target.interrupt();
    }
    return new JsonObject();
  }
}
