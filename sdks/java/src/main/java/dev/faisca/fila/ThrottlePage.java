// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.util.List;

/**
 * Some throttle keys, by key.
 *
 * @param throttles one row per key
 * @param totalCount how many there are, those beyond the limit included
 */
public record ThrottlePage(List<ThrottleKeyStats> throttles, long totalCount) {}
