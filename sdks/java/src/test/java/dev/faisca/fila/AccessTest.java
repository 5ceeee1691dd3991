// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import com.google.protobuf.Timestamp;
import dev.faisca.fila.internal.v1.AclPermission;
import dev.faisca.fila.internal.v1.CreateApiKeyRequest;
import dev.faisca.fila.internal.v1.CreateApiKeyResponse;
import dev.faisca.fila.internal.v1.GetAclResponse;
import dev.faisca.fila.internal.v1.ListApiKeysResponse;
import dev.faisca.fila.internal.v1.RevokeApiKeyRequest;
import dev.faisca.fila.internal.v1.RevokeApiKeyResponse;
import dev.faisca.fila.internal.v1.SetAclRequest;
import dev.faisca.fila.internal.v1.SetAclResponse;
import java.time.Instant;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Every call about API keys sends what it was given, and reads what it gets into plain values. */
class AccessTest extends BrokerTest {
  private static final Timestamp NINE = Timestamp.newBuilder().setSeconds(9).build();

  @Test
  void apiKeysAndTheirPermissions() throws Exception {
    AclPermission raw =
        AclPermission.newBuilder().setKind("consume").setPattern("orders.*").build();
    AclPermission newer = AclPermission.newBuilder().setKind("own").setPattern("*").build();
    List<AclEntry> acl = List.of(new AclEntry(Permission.CONSUME, "orders.*"));
    Instant nine = Instant.ofEpochSecond(9);
    willAnswer(
        "CreateApiKey", CreateApiKeyResponse.newBuilder().setKeyId("id").setSecret("hush").build());
    willAnswer("RevokeApiKey", RevokeApiKeyResponse.getDefaultInstance());
    willAnswer("SetAcl", SetAclResponse.getDefaultInstance());
    willAnswer("GetAcl", GetAclResponse.newBuilder().addAcl(raw).addAcl(newer).build());
    ListApiKeysResponse.Builder keys = ListApiKeysResponse.newBuilder();
    keys.addKeysBuilder().setKeyId("id").setName("n").setCreatedAt(NINE).addAcl(raw);
    willAnswer("ListApiKeys", keys.build());

    NewApiKey created = client.createApiKey("n", acl, nine, true);
    assertEquals(new NewApiKey("id", "hush"), created);
    assertFalse(created.toString().contains("hush"));
    assertEquals(
        CreateApiKeyRequest.newBuilder()
            .setName("n")
            .setExpiresAtMs(9000)
            .setSuperadmin(true)
            .addAcl(raw)
            .build(),
        sent("CreateApiKey"));
    client.createApiKey("n", acl);
    client.createApiKey("n", acl, Instant.EPOCH, false);
    assertEquals(
        List.of(9000L, 0L, 1L),
        broker.calls("CreateApiKey").stream()
            .map(call -> ((CreateApiKeyRequest) call.request()).getExpiresAtMs())
            .toList());
    client.revokeApiKey("id");
    assertEquals(RevokeApiKeyRequest.newBuilder().setKeyId("id").build(), sent("RevokeApiKey"));
    client.setAcl("id", acl);
    assertEquals(SetAclRequest.newBuilder().setKeyId("id").addAcl(raw).build(), sent("SetAcl"));
    assertEquals(
        new Acl(List.of(acl.get(0), new AclEntry(null, "*")), false), client.getAcl("id"));
    assertEquals(List.of(new ApiKeyInfo("id", "n", nine, null, false, acl)), client.listApiKeys());
  }
}
