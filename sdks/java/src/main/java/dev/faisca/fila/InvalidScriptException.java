// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The Lua source does not compile or defines no hook. */
public final class InvalidScriptException extends InvalidArgumentException {
  private static final long serialVersionUID = 1L;

  InvalidScriptException(CallFailure failure) {
    super("the Lua source does not compile or defines no hook", failure);
  }
}
