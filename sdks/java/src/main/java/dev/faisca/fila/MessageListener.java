// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.lang.System.Logger.Level;

/** Takes the messages of a consumer one after the other, see {@link Consumer#listen}. */
@FunctionalInterface
public interface MessageListener {

  /**
   * Processes one message and settles it, here or later. What it throws is what the message is
   * nacked with.
   */
  void onMessage(ConsumeMessage message) throws Exception;

  /** Is told the error that ended the consumer; nothing follows. By default it is logged. */
  default void onError(FilaException error) {
    Consumer.LOG.log(Level.ERROR, "a consumer has failed: " + error.getMessage(), error);
  }

  /** Is told that the consumer was closed; nothing follows. */
  default void onEnd() {}
}
