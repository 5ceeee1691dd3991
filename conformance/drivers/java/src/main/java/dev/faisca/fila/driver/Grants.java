// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.NackOptions;
import java.util.List;
import java.util.Map;

/** The operations that settle a grant, and acks that may make one up. */
final class Grants {
  private Grants() {}

  /** Acks messages that a consumer handed out. */
  static JsonObject ack(FilaClient client, Request request, Map<String, ConsumeMessage> delivered)
      throws FilaException {
    JsonArray results = new JsonArray();
    for (var result : client.ackMany(request.texts("message_ids").map(delivered::get).toList())) {
      results.add(result.error() == null ? JsonNull.INSTANCE : Values.error(result.error()));
    }
    JsonObject ok = new JsonObject();
    ok.add("results", results);
    return ok;
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
