// SPDX-License-Identifier: AGPL-3.0-only
import static java.nio.charset.StandardCharsets.UTF_8;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.QueueSettings;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;

/** A worker that runs handlers side by side: failures are retried, hopeless ones dead-lettered. */
final class Worker {
  private static final int MESSAGES = 20;

  /** What a real worker does with a message; this one cannot stand the number 13. */
  static void handle(ConsumeMessage message) throws InterruptedException {
    Thread.sleep(20);
    if (new String(message.payload(), UTF_8).equals("13")) {
      throw new IllegalArgumentException("unlucky number");
    }
  }

  public static void main(String[] arguments) throws Exception {
    String target = System.getenv().getOrDefault("FILA_ADDR", "127.0.0.1:5555");
    try (FilaClient client = FilaClient.builder().target(target).build()) {
      String queue = "worker-" + UUID.randomUUID().toString().substring(0, 8);
      // The second failure of a message is its last.
      QueueSettings settings = QueueSettings.builder().maxAttempts(2).build();
      String deadLetters = client.createQueue(queue, settings);
      List<EnqueueMessage> messages = new ArrayList<>();
      for (int number = 0; number < MESSAGES; number++) {
        byte[] payload = String.valueOf(number).getBytes(UTF_8);
        messages.add(EnqueueMessage.to(queue).payload(payload).build());
      }
      client.enqueueMany(messages);

      // A worker that runs for ever would end with run() in place of start(), and needs no latch.
      CountDownLatch settled = new CountDownLatch(MESSAGES + 1); // one of them twice
      try (var worker =
          client
              .worker(queue, Worker::handle)
              .concurrency(5)
              .onEvent(event -> settled.countDown())
              .build()) {
        worker.start();
        settled.await();
      }

      ConsumeMessage letter = client.receive(deadLetters, 1, Duration.ofSeconds(2)).get(0);
      System.out.println((MESSAGES - 1) + " messages were processed");
      String payload = new String(letter.payload(), UTF_8);
      System.out.println("message " + payload + " is a dead letter: " + letter.lastError());
      letter.ack();
      client.deleteQueue(queue);
    }
  }
}
