// SPDX-License-Identifier: AGPL-3.0-only
import static java.nio.charset.StandardCharsets.UTF_8;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.Consumer;
import dev.faisca.fila.FilaClient;
import java.util.Map;
import java.util.UUID;

/** One message from a producer to a consumer. */
final class Quickstart {
  public static void main(String[] arguments) throws Exception {
    String target = System.getenv().getOrDefault("FILA_ADDR", "127.0.0.1:5555");
    try (FilaClient client = FilaClient.builder().target(target).build()) {
      String queue = "quickstart-" + UUID.randomUUID().toString().substring(0, 8);
      client.createQueue(queue);

      String messageId = client.enqueue(queue, Map.of("tenant", "acme"), "hello".getBytes(UTF_8));
      System.out.println("enqueued " + messageId);

      try (Consumer consumer = client.consume(queue)) {
        for (ConsumeMessage message : consumer) {
          String payload = new String(message.payload(), UTF_8);
          System.out.printf("received '%s' of %s%n", payload, message.headers().get("tenant"));
          message.ack();
          break;
        }
      }

      client.deleteQueue(queue);
    }
  }
}
