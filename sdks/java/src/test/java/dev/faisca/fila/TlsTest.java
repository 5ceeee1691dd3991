// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.TlsServerCredentials;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Who may be talked to, and who may talk. */
class TlsTest extends BrokerTest {
  private static final TlsOptions TRUSTED = TlsOptions.ca(file("ca.pem"));

  private static Path file(String name) {
    try {
      return Path.of(TlsTest.class.getResource("/certs/" + name).toURI());
    } catch (URISyntaxException impossible) {
      throw new IllegalArgumentException(impossible);
    }
  }

  private ScriptedBroker secure(boolean isMutual) {
    TlsServerCredentials.Builder credentials = TlsServerCredentials.newBuilder();
    try {
      credentials.keyManager(file("server.pem").toFile(), file("server.key").toFile());
      if (isMutual) {
        credentials
            .trustManager(file("ca.pem").toFile())
            .clientAuth(TlsServerCredentials.ClientAuth.REQUIRE);
      }
    } catch (IOException broken) {
      throw new UncheckedIOException(broken);
    }
    return start(new ScriptedBroker(0, credentials.build(), broker -> {}));
  }

  private FilaClient connect(ScriptedBroker broker, TlsOptions tls) {
    return connect(builder().target(broker.target()).tls(tls));
  }

  @Test
  void aPrivateCaIsVerified() throws Exception {
    FilaClient client = connect(secure(false), TRUSTED);
    assertTrue(client.enqueue(message("x")).startsWith("x#"));
  }

  @Test
  void aCertificateThatDoesNotProveTheBrokerIsRefused() {
    ScriptedBroker secure = secure(false);
    for (TlsOptions wrong :
        List.of(
            TlsOptions.ca(file("other_ca.pem")),
            TRUSTED.withServerName("elsewhere"),
            TlsOptions.systemRoots())) {
      FilaClient client = connect(secure, wrong);
      assertThrows(UnavailableException.class, () -> client.enqueue(message("x")));
    }
    assertEquals(List.of(), secure.seen);
  }

  @Test
  void aServerNameStandsInForTheTarget() throws Exception {
    connect(secure(false), TRUSTED.withServerName("localhost")).enqueue(message("x"));
  }

  @Test
  void plaintextToATlsPortIsUnavailable() {
    FilaClient client = connect(secure(false), null);
    assertThrows(UnavailableException.class, () -> client.enqueue(message("x")));
  }

  @Test
  void mutualTlsNeedsTheClientsCertificate() throws Exception {
    ScriptedBroker secure = secure(true);
    FilaClient nobody = connect(secure, TRUSTED);
    assertThrows(UnavailableException.class, () -> nobody.enqueue(message("x")));
    TlsOptions known = TRUSTED.withClientCertificate(file("client.pem"), file("client.key"));
    connect(secure, known).enqueue(message("x"));
  }

  @Test
  void aBadTlsFileIsNamed(@TempDir Path folder) throws Exception {
    Path missing = folder.resolve("missing.pem");
    assertEquals(
        "cannot read tls ca \"" + missing + "\": no such file",
        refused(TlsOptions.ca(missing)));
    Path text = Files.writeString(folder.resolve("text.pem"), "not a certificate");
    assertEquals(
        "tls key \"" + text + "\" is not PEM",
        refused(TRUSTED.withClientCertificate(file("client.pem"), text)));
    Path broken =
        Files.writeString(
            folder.resolve("broken.pem"),
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assertTrue(
        refused(TlsOptions.ca(broken)).startsWith("tls ca \"" + broken + "\" cannot be used: "));
    assertEquals(
        "tls key \"" + file("client.pem") + "\" cannot be used: it holds no PKCS #8 key; "
            + "`openssl pkcs8 -topk8 -nodes` makes one",
        refused(TRUSTED.withClientCertificate(file("client.pem"), file("client.pem"))));
    assertEquals(
        "tls key \"%s\" is not the key of tls cert \"%s\""
            .formatted(file("server.key"), file("client.pem")),
        refused(TRUSTED.withClientCertificate(file("client.pem"), file("server.key"))));
    assertEquals(
        "tls ca is not PEM; for a file give a Path", refused(TlsOptions.ca(broken.toString())));
    IllegalArgumentException half =
        assertThrows(
            IllegalArgumentException.class, () -> TRUSTED.withClientCertificate(text, null));
    assertEquals("tls cert and key go together; key is missing", half.getMessage());
  }

  @Test
  void whatIsInMemoryNeedsNoFiles() throws Exception {
    ScriptedBroker secure = secure(true);
    TlsOptions inMemory =
        TlsOptions.ca(Files.readString(file("ca.pem")))
            .withClientCertificate(
                Files.readString(file("client.pem")), Files.readString(file("client.key")));
    connect(secure, inMemory).enqueue(message("x"));
    assertEquals(1, secure.seen.size());
  }

  private static void copy(Path folder, String from, String to) throws IOException {
    Files.copy(file(from), folder.resolve(to), StandardCopyOption.REPLACE_EXISTING);
  }

  private ScriptedBroker mutual(int port, String authority, String certificate) {
    try {
      TlsServerCredentials.Builder credentials =
          TlsServerCredentials.newBuilder()
              .keyManager(
                  file(certificate + ".pem").toFile(), file(certificate + ".key").toFile())
              .trustManager(file(authority).toFile())
              .clientAuth(TlsServerCredentials.ClientAuth.REQUIRE);
      return start(new ScriptedBroker(port, credentials.build(), broker -> {}));
    } catch (IOException broken) {
      throw new UncheckedIOException(broken);
    }
  }

  private static void eventuallyEnqueues(FilaClient client) throws InterruptedException {
    eventually(
        () -> {
          try {
            return client.enqueue(message("x")).startsWith("x#");
          } catch (FilaException away) {
            return false;
          }
        });
  }

  @Test
  void filesThatAreReplacedHoldForTheNextConnection(@TempDir Path folder) throws Exception {
    copy(folder, "ca.pem", "ca.pem");
    copy(folder, "client.pem", "client.pem");
    copy(folder, "client.key", "client.key");
    TlsOptions files =
        TlsOptions.ca(folder.resolve("ca.pem"))
            .withClientCertificate(folder.resolve("client.pem"), folder.resolve("client.key"));
    int port = freePort();
    ScriptedBroker first = mutual(port, "ca.pem", "server");
    FilaClient client =
        connect(builder().target(first.target()).tls(files).backoff(QUICK));
    client.enqueue(message("x"));
    first.close();
    // Everybody has new certificates, of an authority that nobody had known.
    ScriptedBroker second = mutual(port, "second_ca.pem", "second_server");
    UnavailableException stranger =
        assertThrows(UnavailableException.class, () -> client.enqueue(message("x")));
    assertTrue(stranger.getMessage().startsWith("cannot reach "), stranger.getMessage());
    copy(folder, "second_ca.pem", "ca.pem");
    copy(folder, "second_client.pem", "client.pem");
    copy(folder, "second_client.key", "client.key");
    eventuallyEnqueues(client);
    assertEquals(1, second.seen.size());
  }

  @Test
  void inTheMiddleOfARotationWhatWasThereBeforeHolds(@TempDir Path folder) throws Exception {
    copy(folder, "ca.pem", "ca.pem");
    copy(folder, "client.pem", "client.pem");
    copy(folder, "client.key", "client.key");
    TlsOptions files =
        TlsOptions.ca(folder.resolve("ca.pem"))
            .withClientCertificate(folder.resolve("client.pem"), folder.resolve("client.key"));
    int port = freePort();
    FilaClient client =
        connect(builder().target("127.0.0.1:" + port).tls(files).backoff(QUICK));
    Files.delete(folder.resolve("ca.pem"));
    copy(folder, "second_client.pem", "client.pem");
    try (Logged logged = new Logged()) {
      mutual(port, "ca.pem", "server");
      eventuallyEnqueues(client);
      assertTrue(logged.has("no such file; what was read before stays in force"));
      assertTrue(logged.has("is not the key of tls cert"), logged.lines()::toString);
    }
  }

  @Test
  void eachMemberOfAClusterIsHeldToItsOwnName() throws Exception {
    // The certificate names localhost and 127.0.0.1, and not the first member.
    ScriptedBroker secure = secure(false);
    String targets = "elsewhere.invalid:1,127.0.0.1:" + secure.port();
    connect(builder().target(targets).tls(TRUSTED)).enqueue(message("x"));
    FilaClient misled = connect(builder().target(targets).tls(TRUSTED.withServerName("elsewhere")));
    assertThrows(UnavailableException.class, () -> misled.enqueue(message("x")));
  }

  private String refused(TlsOptions tls) {
    return assertThrows(IllegalArgumentException.class, () -> FilaClient.builder().tls(tls).build())
        .getMessage();
  }
}
