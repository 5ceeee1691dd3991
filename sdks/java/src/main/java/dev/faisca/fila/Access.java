// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AclPermission;
import dev.faisca.fila.internal.v1.CreateApiKeyRequest;
import dev.faisca.fila.internal.v1.FilaAdminGrpc;
import dev.faisca.fila.internal.v1.GetAclRequest;
import dev.faisca.fila.internal.v1.ListApiKeysRequest;
import dev.faisca.fila.internal.v1.RevokeApiKeyRequest;
import dev.faisca.fila.internal.v1.SetAclRequest;
import java.time.Instant;
import java.util.List;
import java.util.Locale;

/** Who may do what: requests about API keys and their permissions, and their answers. No I/O. */
final class Access {
  private Access() {}

  static Call<?, ?, NewApiKey> createApiKey(
      String name, List<AclEntry> acl, Instant expiresAt, boolean isSuperadmin) {
    CreateApiKeyRequest request =
        CreateApiKeyRequest.newBuilder()
            .setName(Wire.named("name", name))
            .setExpiresAtMs(expiry(expiresAt))
            .setSuperadmin(isSuperadmin)
            .addAllAcl(raw(acl))
            .build();
    return Call.once(
        FilaAdminGrpc.getCreateApiKeyMethod(),
        request,
        answer -> new NewApiKey(answer.getKeyId(), answer.getSecret()),
        null);
  }

  static Call<?, ?, Void> revokeApiKey(String keyId) {
    RevokeApiKeyRequest request =
        RevokeApiKeyRequest.newBuilder().setKeyId(Wire.named("keyId", keyId)).build();
    return Call.once(FilaAdminGrpc.getRevokeApiKeyMethod(), request, answer -> null, null);
  }

  static Call<?, ?, List<ApiKeyInfo>> listApiKeys() {
    return Call.repeatable(
        FilaAdminGrpc.getListApiKeysMethod(),
        ListApiKeysRequest.getDefaultInstance(),
        answer -> answer.getKeysList().stream().map(Access::info).toList(),
        null);
  }

  static Call<?, ?, Void> setAcl(String keyId, List<AclEntry> acl) {
    SetAclRequest request =
        SetAclRequest.newBuilder().setKeyId(Wire.named("keyId", keyId)).addAllAcl(raw(acl)).build();
    return Call.once(FilaAdminGrpc.getSetAclMethod(), request, answer -> null, null);
  }

  static Call<?, ?, Acl> getAcl(String keyId) {
    GetAclRequest request = GetAclRequest.newBuilder().setKeyId(Wire.named("keyId", keyId)).build();
    return Call.repeatable(
        FilaAdminGrpc.getGetAclMethod(),
        request,
        answer -> new Acl(entries(answer.getAclList()), answer.getSuperadmin()),
        null);
  }

  /** 0 for a key that never expires, and never 0 for one that does. */
  private static long expiry(Instant expiresAt) {
    return expiresAt == null ? 0 : Math.max(expiresAt.toEpochMilli(), 1);
  }

  private static List<AclPermission> raw(List<AclEntry> acl) {
    return acl.stream()
        .map(
            entry ->
                AclPermission.newBuilder()
                    .setKind(entry.permission().name().toLowerCase(Locale.ROOT))
                    .setPattern(Wire.named("pattern", entry.pattern()))
                    .build())
        .toList();
  }

  private static List<AclEntry> entries(List<AclPermission> raw) {
    return raw.stream()
        .map(entry -> new AclEntry(permission(entry.getKind()), entry.getPattern()))
        .toList();
  }

  private static Permission permission(String kind) {
    for (Permission permission : Permission.values()) {
      if (permission.name().equalsIgnoreCase(kind)) {
        return permission;
      }
    }
    return null;
  }

  private static ApiKeyInfo info(dev.faisca.fila.internal.v1.ApiKeyInfo raw) {
    return new ApiKeyInfo(
        raw.getKeyId(),
        raw.getName(),
        Wire.moment(raw.hasCreatedAt(), raw.getCreatedAt()),
        Wire.moment(raw.hasExpiresAt(), raw.getExpiresAt()),
        raw.getSuperadmin(),
        entries(raw.getAclList()));
  }
}
