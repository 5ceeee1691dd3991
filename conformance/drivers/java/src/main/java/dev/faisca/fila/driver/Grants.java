// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.ExtendResult;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.NackOptions;
import dev.faisca.fila.SettleResult;
import java.util.List;
import java.util.Map;

/** The operations that settle a grant, and acks that may make one up. */
final class Grants {
  private Grants() {}

  /** A call about many messages that were delivered. */
  static JsonObject many(
      FilaClient client, Request request, Map<String, ConsumeMessage> delivered)
      throws FilaException {
    List<ConsumeMessage> messages = request.texts("message_ids").map(delivered::get).toList();
    JsonObject ok = new JsonObject();
    ok.add(
        "results",
        switch (request.op()) {
          case "ack_many" -> Values.array(client.ackMany(messages), Grants::settled);
          case "nack_many" ->
              Values.array(client.nackMany(messages, request.text("error")), Grants::settled);
          default ->
              Values.array(client.extendMany(messages, request.millis("ms")), Grants::extended);
        });
    return ok;
  }

  private static JsonElement settled(SettleResult result) {
    return result.error() == null ? JsonNull.INSTANCE : Values.error(result.error());
  }

  private static JsonElement extended(ExtendResult result) {
    if (result.error() == null) {
      return Operations.lease(result.leaseExpiresAt());
    }
    JsonObject failed = new JsonObject();
    failed.add("error", Values.error(result.error()));
    return failed;
  }

  static JsonObject settle(FilaClient client, Request request) throws FilaException {
    String queue = request.text("queue");
    String token = request.text("lease_token");
    List<String> except = request.texts("except_message_ids").toList();
    JsonObject ok = new JsonObject();
    switch (request.text("op")) {
      case "ack_grant" -> ok.addProperty("messages", client.ackGrant(queue, token, except));
      case "nack_grant" -> {
        NackOptions options =
            new NackOptions(
                request.millis("retry_after_ms"),
                request.text("throttle_key"),
                request.isTrue("dead_letter"));
        String error = request.text("error");
        ok.addProperty("messages", client.nackGrant(queue, token, error, options, except));
      }
      default -> {
        return Operations.lease(client.extendGrant(queue, token, request.millis("ms"), except));
      }
    }
    return ok;
  }
}
