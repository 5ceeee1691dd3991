// SPDX-License-Identifier: AGPL-3.0-only
/**
 * Java client for Fila. The public types of this package are the API; everything else, the
 * generated {@code internal} package included, may change.
 *
 * <p>Start with {@link dev.faisca.fila.FilaClient#builder()}.
 */
package dev.faisca.fila;
