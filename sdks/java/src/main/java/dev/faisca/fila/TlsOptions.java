// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.nio.file.Path;
import java.util.Objects;

/**
 * Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).
 * Each is a PEM file, or PEM in a text; keys are PKCS #8. Files are read again for every connection
 * that is made, so replacing them rotates them.
 */
public final class TlsOptions {
  private static final TlsOptions SYSTEM_ROOTS = new TlsOptions(null, null, null, null);

  private final Pem ca;
  private final Pem cert;
  private final Pem key;
  private final String serverName;

  private TlsOptions(Pem ca, Pem cert, Pem key, String serverName) {
    this.ca = ca;
    this.cert = cert;
    this.key = key;
    this.serverName = serverName;
  }

  /** Trusts the roots of the Java runtime. */
  public static TlsOptions systemRoots() {
    return SYSTEM_ROOTS;
  }

  /** Trusts certificate authorities of a file, usually one's own. */
  public static TlsOptions ca(Path file) {
    return new TlsOptions(new Pem("ca", Objects.requireNonNull(file, "ca")), null, null, null);
  }

  /** Trusts certificate authorities of a text in PEM. */
  public static TlsOptions ca(String pem) {
    return new TlsOptions(new Pem("ca", Objects.requireNonNull(pem, "ca")), null, null, null);
  }

  /** The same with a certificate that proves this client, and its key, of files. */
  public TlsOptions withClientCertificate(Path certFile, Path keyFile) {
    checkPair(certFile, keyFile);
    return new TlsOptions(ca, new Pem("cert", certFile), new Pem("key", keyFile), serverName);
  }

  /** The same with a certificate that proves this client, and its key, of texts in PEM. */
  public TlsOptions withClientCertificate(String certPem, String keyPem) {
    checkPair(certPem, keyPem);
    return new TlsOptions(ca, new Pem("cert", certPem), new Pem("key", keyPem), serverName);
  }

  private static void checkPair(Object cert, Object key) {
    if (cert == null || key == null) {
      throw new IllegalArgumentException(
          "tls cert and key go together; %s is missing".formatted(cert == null ? "cert" : "key"));
    }
  }

  /** The same with another name to expect in the broker's certificate than the target's host. */
  public TlsOptions withServerName(String serverName) {
    return new TlsOptions(ca, cert, key, serverName);
  }

  /** Null for the roots of the Java runtime. */
  Pem ca() {
    return ca;
  }

  /** Null for a client that proves nothing. */
  Pem cert() {
    return cert;
  }

  Pem key() {
    return key;
  }

  String serverName() {
    return serverName;
  }
}
