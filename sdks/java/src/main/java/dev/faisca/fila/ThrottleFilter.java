// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * Which throttle keys to list.
 *
 * @param prefix what keys start with; empty means any
 * @param isUnset only keys in use that nobody configured
 * @param limit the most keys to return; 0 means 1000
 */
public record ThrottleFilter(String prefix, boolean isUnset, int limit) {
  /** All of them. */
  public static final ThrottleFilter ALL = new ThrottleFilter("", false, 0);

  /** Fails with IllegalArgumentException for a negative limit. */
  public ThrottleFilter {
    Wire.named("prefix", prefix);
    Wire.count("limit", limit);
  }

  /** The same for keys that start with a text. */
  public ThrottleFilter withPrefix(String prefix) {
    return new ThrottleFilter(prefix, isUnset, limit);
  }

  /** The same for keys in use that nobody configured. */
  public ThrottleFilter onlyUnset() {
    return new ThrottleFilter(prefix, true, limit);
  }

  /** The same up to a number. */
  public ThrottleFilter withLimit(int limit) {
    return new ThrottleFilter(prefix, isUnset, limit);
  }
}
