// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.util.List;

/**
 * What an API key may do.
 *
 * @param entries its permissions
 * @param isSuperadmin true for a key that may do everything
 */
public record Acl(List<AclEntry> entries, boolean isSuperadmin) {}
