// SPDX-License-Identifier: AGPL-3.0-only
/**
 * A real broker for tests. It comes with the client, because it is small and needs nothing that the
 * client does not.
 */
package dev.faisca.fila.testing;
