// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What happens around the handling of each message, or batch, of a {@link Worker}.
 *
 * @param <M> a {@link ConsumeMessage}, or a list of them
 */
@FunctionalInterface
public interface Middleware<M> {

  /** Handles a message by calling the next one, or instead of it. Its outcome is what counts. */
  void handle(M message, Handler<M> next) throws Exception;
}
