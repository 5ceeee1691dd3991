// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** How a JSON library writes a value; such as {@code mapper::writeValueAsString}. */
@FunctionalInterface
public interface JsonWriter<T> {
  /** Makes a text of the value. What it throws becomes the cause of the failure. */
  String write(T value) throws Exception;
}
