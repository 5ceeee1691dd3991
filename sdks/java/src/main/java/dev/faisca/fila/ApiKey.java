// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Status;
import io.grpc.StatusException;
import java.util.function.Supplier;

/** The key that calls carry: always the same, or what a function gives. Never shown. */
final class ApiKey {
  static final ApiKey NONE = new ApiKey(() -> null);

  private static final String REDACTED = "[redacted]";

  private final Supplier<String> function;
  // What a peer's text may repeat: the answer to a call that carried the key before this one, too.
  private String last = "";
  private String earlier = "";

  private ApiKey(Supplier<String> function) {
    this.function = function;
  }

  /** One that stays. Fails with IllegalArgumentException; null is none. */
  static ApiKey of(String key) {
    checked(key);
    return new ApiKey(() -> key);
  }

  /** One that is asked for with every call. */
  static ApiKey of(Supplier<String> function) {
    return new ApiKey(function);
  }

  private static String checked(String key) {
    // gRPC refuses other characters too, but with a text that repeats the key.
    if (key != null && !key.matches("[!-~]+")) {
      throw new IllegalArgumentException(
          "apiKey must be printable ASCII without spaces, and not empty");
    }
    return key == null ? "" : key;
  }

  /** The key as it is now; empty for none. Fails when the function does. */
  String get() throws StatusException {
    String key;
    try {
      key = checked(function.get());
    } catch (Throwable failed) { // what Kotlin's functions throw, they need not declare
      throw Status.UNAUTHENTICATED
          .withDescription("the function that gives the API key has failed: " + failed)
          .withCause(failed)
          .asException();
    }
    synchronized (this) {
      if (!key.equals(last)) {
        earlier = last;
        last = key;
      }
    }
    return key;
  }

  /** A text without the key. */
  synchronized String redacted(String text) {
    String safe = last.isEmpty() ? text : text.replace(last, REDACTED);
    return earlier.isEmpty() ? safe : safe.replace(earlier, REDACTED);
  }

  @Override
  public String toString() {
    return REDACTED;
  }
}
