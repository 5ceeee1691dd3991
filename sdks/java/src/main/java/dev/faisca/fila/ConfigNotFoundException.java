// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** No runtime configuration entry has that key. */
public final class ConfigNotFoundException extends FilaException {
  private static final long serialVersionUID = 1L;

  ConfigNotFoundException(CallFailure failure) {
    super("no runtime configuration entry has that key", failure);
  }
}
