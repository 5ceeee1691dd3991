// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** What to do with a message whose on_enqueue hook fails. */
public enum HookErrorPolicy {
  /** Let it in under the fairness key "default", with no throttle keys. */
  DEFAULT,
  /** Refuse the enqueue, so that nobody escapes a limit by making a script fail. */
  REJECT
}
