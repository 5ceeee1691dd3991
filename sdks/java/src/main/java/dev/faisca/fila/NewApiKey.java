// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * A key that was just created. Its secret is shown this once, and never by {@code toString}.
 *
 * @param keyId names the key in later calls; not a secret
 * @param secret what clients authenticate with
 */
public record NewApiKey(String keyId, String secret) {

  @Override
  public String toString() {
    return "NewApiKey(" + keyId + ")";
  }
}
