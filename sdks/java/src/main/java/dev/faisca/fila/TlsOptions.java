// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.nio.file.Path;

/**
 * Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).
 * Files are PEM, keys PKCS #8, and are read when a client is built.
 *
 * @param caFile who signed the broker's certificate; null trusts the system's roots
 * @param certFile the client's own certificate; null if it has none
 * @param keyFile the key of that certificate; null if it has none
 * @param serverName the name to expect in the broker's certificate; null for the target's host
 */
public record TlsOptions(Path caFile, Path certFile, Path keyFile, String serverName) {

  /** Fails with IllegalArgumentException when only one of certificate and key is given. */
  public TlsOptions {
    if ((certFile == null) != (keyFile == null)) {
      throw new IllegalArgumentException(
          "tls certFile and keyFile go together; give both or neither");
    }
  }

  /** Trusts the roots of the Java runtime. */
  public static TlsOptions systemRoots() {
    return new TlsOptions(null, null, null, null);
  }

  /** Trusts one certificate authority, usually one's own. */
  public static TlsOptions ca(Path caFile) {
    return new TlsOptions(caFile, null, null, null);
  }

  /** The same with a certificate that proves this client. */
  public TlsOptions withClientCertificate(Path certFile, Path keyFile) {
    return new TlsOptions(caFile, certFile, keyFile, serverName);
  }

  /** The same with another name to expect in the broker's certificate. */
  public TlsOptions withServerName(String serverName) {
    return new TlsOptions(caFile, certFile, keyFile, serverName);
  }
}
