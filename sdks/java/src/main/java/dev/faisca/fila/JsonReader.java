// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** How a JSON library reads a text; a method reference such as {@code mapper::readValue}. */
@FunctionalInterface
public interface JsonReader<T> {
  /** Makes a value of the text. What it throws becomes the cause of the failure. */
  T read(String json, Class<T> type) throws Exception;
}
