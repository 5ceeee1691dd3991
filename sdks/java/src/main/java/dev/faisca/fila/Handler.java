// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What a {@link Worker} does with a message, or with a batch of them.
 *
 * @param <M> a {@link ConsumeMessage}, or a list of them
 */
@FunctionalInterface
public interface Handler<M> {

  /**
   * Processes a message. Returning acks it, unless it was settled here; {@link Backpressure} puts
   * it off, {@link DeadLetter} gives it up, and whatever else is thrown is what it is nacked with.
   */
  void handle(M message) throws Exception;
}
