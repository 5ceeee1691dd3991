// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** What became of one item of a batch: a value, or the error that stands in its place. */
record Outcome<T>(T value, FilaException error) {}
