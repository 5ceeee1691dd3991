// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * One permission on one pattern.
 *
 * @param permission what is allowed; null for a permission newer than this client
 * @param pattern {@code orders} for one queue, {@code orders.*} for a prefix, {@code *} for all
 */
public record AclEntry(Permission permission, String pattern) {}
