// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.faisca.fila.internal.v1.CreateQueueRequest;
import dev.faisca.fila.internal.v1.CreateQueueResponse;
import dev.faisca.fila.internal.v1.GetStatsRequest;
import dev.faisca.fila.internal.v1.GetStatsResponse;
import dev.faisca.fila.internal.v1.QueueConfig;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A queue is made if it is missing, and never changed. */
class QueueSetupTest extends BrokerTest {
  private static final QueueSettings THREE =
      QueueSettings.builder().maxAttempts(3).visibilityTimeout(Duration.ofSeconds(9)).build();

  @BeforeEach
  void thereIsNoQueue() {
    willAnswer(
        "CreateQueue", CreateQueueResponse.newBuilder().setDeadLetterQueue("orders.dlq").build());
  }

  private void exists(QueueConfig.Builder config) {
    broker.refuse("CreateQueue", Status.Code.ALREADY_EXISTS, "it exists", "QUEUE_ALREADY_EXISTS");
    willAnswer("GetStats", GetStatsResponse.newBuilder().setConfig(config).build());
  }

  private List<String> methods() {
    return broker.seen.stream().map(ScriptedBroker.Seen::method).toList();
  }

  @Test
  void aMissingQueueIsCreatedWithItsSettings() throws Exception {
    assertEquals("orders.dlq", client.ensureQueue("orders", THREE));
    CreateQueueRequest request = (CreateQueueRequest) sent("CreateQueue");
    assertEquals(3, request.getConfig().getMaxAttempts());
    assertEquals(List.of("CreateQueue"), methods());
  }

  @Test
  void aQueueWithTheSameSettingsIsLeftAlone() throws Exception {
    // What was not given is not compared.
    exists(
        QueueConfig.newBuilder()
            .setMaxAttempts(3)
            .setVisibilityTimeoutMs(9_000)
            .setMaxMessages(12));
    assertEquals("orders.dlq", client.ensureQueue("orders", THREE));
    assertEquals("orders.dlq", client.ensureQueue("orders"));
    assertEquals(1, ((GetStatsRequest) sent("GetStats")).getMaxKeys());
    assertEquals(List.of("CreateQueue", "GetStats", "CreateQueue", "GetStats"), methods());
  }

  @Test
  void everySettingThatDiffersIsNamedWithBothValues() {
    exists(
        QueueConfig.newBuilder()
            .setMaxAttempts(5)
            .setVisibilityTimeoutMs(9_000)
            .setOnFailureScript("-- one\n" + "x".repeat(80)));
    QueueSettings wanted =
        QueueSettings.builder()
            .maxAttempts(3)
            .visibilityTimeout(Duration.ofSeconds(9))
            .onFailureScript("-- two")
            .onHookError(HookErrorPolicy.REJECT)
            .build();
    QueueAlreadyExistsException error =
        assertThrows(
            QueueAlreadyExistsException.class, () -> client.ensureQueue("orders", wanted));
    String script = "\"-- one\\n" + "x".repeat(53) + "...\"";
    assertEquals(
        "queue \"orders\" exists with other settings: max_attempts is 5, not 3, on_failure_script"
            + " is "
            + script
            + ", not \"-- two\", on_hook_error is HOOK_ERROR_POLICY_UNSPECIFIED, not"
            + " HOOK_ERROR_POLICY_REJECT; updateQueue changes them",
        error.getMessage());
    assertEquals(
        List.of("QUEUE_ALREADY_EXISTS", "ALREADY_EXISTS", "orders"),
        List.of(error.reason(), error.code(), error.queue()));
    assertEquals(List.of("CreateQueue", "GetStats"), methods());
  }

  @Test
  void aQueueThatWasDeletedMeanwhileIsCreatedAgainOnce() {
    exists(QueueConfig.newBuilder());
    broker.refuse("GetStats", Status.Code.NOT_FOUND, "it is gone", "QUEUE_NOT_FOUND");
    assertThrows(QueueAlreadyExistsException.class, () -> client.ensureQueue("orders", THREE));
    assertEquals(List.of("CreateQueue", "GetStats", "CreateQueue", "GetStats"), methods());
  }
}
