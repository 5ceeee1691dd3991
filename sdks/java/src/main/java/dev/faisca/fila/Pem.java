// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Certificates or a key, in a file or in a text. Errors name the option and the file. */
final class Pem {
  private static final String MARK = "-----BEGIN ";
  private static final Pattern KEY =
      Pattern.compile("-----BEGIN PRIVATE KEY-----([^-]*)-----END PRIVATE KEY-----");

  private final String option;
  // One of them is null.
  private final Path file;
  private final String text;

  Pem(String option, Path file) {
    this.option = option;
    this.file = file;
    this.text = null;
  }

  Pem(String option, String text) {
    this.option = option;
    this.file = null;
    this.text = text;
  }

  /** All certificates that are there now. Fails with IllegalArgumentException. */
  X509Certificate[] certificates() {
    byte[] content = read().getBytes(StandardCharsets.ISO_8859_1);
    try {
      X509Certificate[] found =
          CertificateFactory.getInstance("X.509")
              .generateCertificates(new ByteArrayInputStream(content))
              .toArray(X509Certificate[]::new);
      if (found.length == 0) {
        throw broken("it holds no certificate", null);
      }
      return found;
    } catch (GeneralSecurityException error) {
      throw broken(error.getMessage(), error);
    }
  }

  /** The private key that is there now, for a certificate with a public key of this algorithm. */
  PrivateKey privateKey(String algorithm) {
    Matcher found = KEY.matcher(read());
    if (!found.find()) {
      throw broken("it holds no PKCS #8 key; `openssl pkcs8 -topk8 -nodes` makes one", null);
    }
    try {
      byte[] content = Base64.getMimeDecoder().decode(found.group(1));
      return KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(content));
    } catch (IllegalArgumentException | GeneralSecurityException error) {
      throw broken("it holds no %s key as the certificate has".formatted(algorithm), error);
    }
  }

  private String read() {
    String content = text;
    if (file != null) {
      try {
        content = Files.readString(file, StandardCharsets.ISO_8859_1);
      } catch (IOException error) {
        throw new IllegalArgumentException(
            "cannot read tls %s: %s".formatted(this, why(error)), error);
      }
    }
    if (!content.contains(MARK)) {
      String wayOut = file == null ? "; for a file give a Path" : "";
      throw new IllegalArgumentException("tls %s is not PEM%s".formatted(this, wayOut));
    }
    return content;
  }

  private IllegalArgumentException broken(String why, Exception cause) {
    return new IllegalArgumentException("tls %s cannot be used: %s".formatted(this, why), cause);
  }

  private static String why(IOException error) {
    if (error instanceof NoSuchFileException) {
      return "no such file";
    }
    return error instanceof AccessDeniedException ? "permission denied" : error.getMessage();
  }

  /** Names it, and shows nothing of a text. */
  @Override
  public String toString() {
    return file == null ? option : "%s \"%s\"".formatted(option, file);
  }
}
