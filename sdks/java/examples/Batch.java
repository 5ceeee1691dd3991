// SPDX-License-Identifier: AGPL-3.0-only
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.EnqueueResult;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.SettleResult;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.stream.IntStream;

/** Many messages at a time, both ways: what a load job or a pipeline does. */
final class Batch {
  private static final int MESSAGES = 10_000;

  public static void main(String[] arguments) throws Exception {
    String target = System.getenv().getOrDefault("FILA_ADDR", "127.0.0.1:5555");
    Duration timeout = Duration.ofSeconds(30);
    try (FilaClient client = FilaClient.builder().target(target).timeout(timeout).build()) {
      String queue = "batch-" + UUID.randomUUID().toString().substring(0, 8);
      client.createQueue(queue);

      long start = System.nanoTime();
      byte[] payload = "x".repeat(256).getBytes();
      // With a key for each message the client may send a request again when the broker was away.
      List<EnqueueMessage> messages =
          IntStream.range(0, MESSAGES)
              .mapToObj(
                  row ->
                      EnqueueMessage.to(queue)
                          .header("row", String.valueOf(row))
                          .payload(payload)
                          .idempotencyKey(queue + "-" + row)
                          .build())
              .toList();
      List<EnqueueResult> results = client.enqueueMany(messages);
      long stored = results.stream().filter(result -> result.error() == null).count();
      report("stored", stored, start);

      start = System.nanoTime();
      long drained = 0;
      List<ConsumeMessage> received = client.receive(queue, 1_000, Duration.ZERO);
      while (!received.isEmpty()) {
        List<SettleResult> outcomes = client.ackMany(received);
        drained += outcomes.stream().filter(outcome -> outcome.error() == null).count();
        received = client.receive(queue, 1_000, Duration.ZERO);
      }
      report("drained", drained, start);

      client.deleteQueue(queue);
    }
  }

  private static void report(String verb, long count, long start) {
    double perSecond = count / ((System.nanoTime() - start) / 1e9);
    System.out.printf(Locale.ROOT, "%s %,d messages at %,.0f/s%n", verb, count, perSecond);
  }
}
