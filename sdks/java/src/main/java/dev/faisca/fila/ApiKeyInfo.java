// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;
import java.util.List;

/**
 * One API key, without its secret.
 *
 * @param keyId names the key
 * @param name its name for people
 * @param createdAt when it was created; null if the broker does not say
 * @param expiresAt when it stops working; null means never
 * @param isSuperadmin true for a key that may do everything
 * @param acl what it may do
 */
public record ApiKeyInfo(
    String keyId,
    String name,
    Instant createdAt,
    Instant expiresAt,
    boolean isSuperadmin,
    List<AclEntry> acl) {}
