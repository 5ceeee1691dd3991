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
        "cannot read tls caFile \"" + missing + "\": no such file",
        refused(TlsOptions.ca(missing)));
    Path text = Files.writeString(folder.resolve("text.pem"), "not a certificate");
    assertEquals(
        "tls keyFile \"" + text + "\" is not a PEM file",
        refused(TRUSTED.withClientCertificate(file("client.pem"), text)));
    Path broken =
        Files.writeString(
            folder.resolve("broken.pem"),
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assertTrue(refused(TlsOptions.ca(broken)).startsWith("tls files cannot be used: "));
    assertThrows(IllegalArgumentException.class, () -> new TlsOptions(null, text, null, null));
  }

  private String refused(TlsOptions tls) {
    return assertThrows(IllegalArgumentException.class, () -> FilaClient.builder().tls(tls).build())
        .getMessage();
  }
}
