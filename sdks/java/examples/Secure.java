// SPDX-License-Identifier: AGPL-3.0-only
import static java.nio.charset.StandardCharsets.UTF_8;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.TlsOptions;
import dev.faisca.fila.UnauthenticatedException;
import dev.faisca.fila.UnavailableException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;

/**
 * TLS, a client certificate and an API key; each only if its variable is set. FILA_CA names the
 * CA's certificate, FILA_CERT and FILA_KEY the client's own, FILA_API_KEY the key.
 */
final class Secure {
  private static Path file(String variable) {
    String name = System.getenv(variable);
    return name == null ? null : Path.of(name);
  }

  private static FilaClient connect() {
    Path ca = file("FILA_CA");
    Path cert = file("FILA_CERT");
    TlsOptions tls = ca == null ? null : TlsOptions.ca(ca);
    if (cert != null) {
      tls =
          (tls == null ? TlsOptions.systemRoots() : tls)
              .withClientCertificate(cert, file("FILA_KEY"));
    }
    return FilaClient.builder()
        .target(System.getenv().getOrDefault("FILA_ADDR", "127.0.0.1:5555"))
        .tls(tls)
        .apiKey(System.getenv("FILA_API_KEY"))
        .build();
  }

  public static void main(String[] arguments) throws Exception {
    try (FilaClient client = connect()) {
      String queue = "secure-" + UUID.randomUUID().toString().substring(0, 8);
      try {
        client.createQueue(queue);
      } catch (UnauthenticatedException error) {
        System.err.println("the broker does not accept the API key: " + error.getMessage());
        System.exit(1);
      } catch (UnavailableException error) {
        System.err.println("no broker, or none with the right certificate: " + error.getMessage());
        System.exit(1);
      }

      client.enqueue(queue, Map.of(), "for your eyes only".getBytes(UTF_8));
      ConsumeMessage message = client.receive(queue, 1, Duration.ofSeconds(2)).get(0);
      System.out.printf("received '%s'%n", new String(message.payload(), UTF_8));
      message.ack();
      client.deleteQueue(queue);
    }
  }
}
