// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.FieldMask;
import com.google.protobuf.Timestamp;
import dev.faisca.fila.internal.v1.CancelMessageRequest;
import dev.faisca.fila.internal.v1.CancelMessageResponse;
import dev.faisca.fila.internal.v1.ConfigEntry;
import dev.faisca.fila.internal.v1.CreateQueueRequest;
import dev.faisca.fila.internal.v1.CreateQueueResponse;
import dev.faisca.fila.internal.v1.DeleteConfigRequest;
import dev.faisca.fila.internal.v1.DeleteConfigResponse;
import dev.faisca.fila.internal.v1.DeleteQueueRequest;
import dev.faisca.fila.internal.v1.DeleteQueueResponse;
import dev.faisca.fila.internal.v1.ExplainRequest;
import dev.faisca.fila.internal.v1.ExplainResponse;
import dev.faisca.fila.internal.v1.GetConfigResponse;
import dev.faisca.fila.internal.v1.GetStatsRequest;
import dev.faisca.fila.internal.v1.GetStatsResponse;
import dev.faisca.fila.internal.v1.ListConfigRequest;
import dev.faisca.fila.internal.v1.ListConfigResponse;
import dev.faisca.fila.internal.v1.ListQueuesResponse;
import dev.faisca.fila.internal.v1.ListThrottlesRequest;
import dev.faisca.fila.internal.v1.ListThrottlesResponse;
import dev.faisca.fila.internal.v1.PauseRequest;
import dev.faisca.fila.internal.v1.PauseResponse;
import dev.faisca.fila.internal.v1.PeekRequest;
import dev.faisca.fila.internal.v1.PeekResponse;
import dev.faisca.fila.internal.v1.PerThrottleKeyStats;
import dev.faisca.fila.internal.v1.PurgeRequest;
import dev.faisca.fila.internal.v1.PurgeResponse;
import dev.faisca.fila.internal.v1.RedriveRequest;
import dev.faisca.fila.internal.v1.RedriveResponse;
import dev.faisca.fila.internal.v1.ResumeRequest;
import dev.faisca.fila.internal.v1.ResumeResponse;
import dev.faisca.fila.internal.v1.SetConfigRequest;
import dev.faisca.fila.internal.v1.SetConfigResponse;
import dev.faisca.fila.internal.v1.UpdateQueueRequest;
import dev.faisca.fila.internal.v1.UpdateQueueResponse;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

/** Every administrative call sends what it was given, and reads what it gets into plain values. */
class AdminTest extends BrokerTest {
  private static final Timestamp NINE = Timestamp.newBuilder().setSeconds(9).build();

  private static QueueSettings.Builder everySetting() {
    return QueueSettings.builder()
        .onEnqueueScript("e")
        .onFailureScript("f")
        .visibilityTimeout(Duration.ofMillis(1))
        .maxAttempts(2)
        .retryDelay(Duration.ofMillis(3))
        .retryDelayMax(Duration.ofMillis(4))
        .defaultTtl(Duration.ofMillis(5))
        .idempotencyWindow(Duration.ofMillis(6))
        .maxMessages(7)
        .onHookError(HookErrorPolicy.REJECT)
        .hookTimeout(Duration.ofMillis(8))
        .hookMemoryLimitBytes(9)
        .quantum(10);
  }

  private static dev.faisca.fila.internal.v1.QueueConfig everyRawSetting() {
    return dev.faisca.fila.internal.v1.QueueConfig.newBuilder()
        .setOnEnqueueScript("e")
        .setOnFailureScript("f")
        .setVisibilityTimeoutMs(1)
        .setMaxAttempts(2)
        .setRetryDelayMs(3)
        .setRetryDelayMaxMs(4)
        .setDefaultTtlMs(5)
        .setIdempotencyWindowMs(6)
        .setMaxMessages(7)
        .setOnHookError(dev.faisca.fila.internal.v1.HookErrorPolicy.HOOK_ERROR_POLICY_REJECT)
        .setHookTimeoutMs(8)
        .setHookMemoryLimitBytes(9)
        .setQuantum(10)
        .build();
  }

  private static QueueConfig everyReadSetting() {
    return new QueueConfig(
        "e",
        "f",
        Duration.ofMillis(1),
        2,
        Duration.ofMillis(3),
        Duration.ofMillis(4),
        Duration.ofMillis(5),
        Duration.ofMillis(6),
        7,
        HookErrorPolicy.REJECT,
        Duration.ofMillis(8),
        9,
        10);
  }

  @Test
  void queuesAreCreatedWithAllTheirSettings() throws Exception {
    willAnswer(
        "CreateQueue", CreateQueueResponse.newBuilder().setDeadLetterQueue("orders.dlq").build());
    assertEquals("orders.dlq", client.createQueue("orders", everySetting().build()));
    assertEquals(
        CreateQueueRequest.newBuilder().setName("orders").setConfig(everyRawSetting()).build(),
        sent("CreateQueue"));
    assertEquals("orders.dlq", client.createQueue("orders"));
  }

  @Test
  void anUpdateNamesWhatItSets() throws Exception {
    willAnswer(
        "UpdateQueue", UpdateQueueResponse.newBuilder().setConfig(everyRawSetting()).build());
    QueueSettings some = QueueSettings.builder().maxAttempts(0).quantum(1).quantum(2).build();
    assertEquals(everyReadSetting(), client.updateQueue("orders", some));
    assertEquals(
        UpdateQueueRequest.newBuilder()
            .setQueue("orders")
            .setConfig(dev.faisca.fila.internal.v1.QueueConfig.newBuilder().setQuantum(2))
            .setUpdateMask(FieldMask.newBuilder().addPaths("max_attempts").addPaths("quantum"))
            .build(),
        sent("UpdateQueue"));
    // The mask knows every field of the contract by its name.
    List<String> names =
        dev.faisca.fila.internal.v1.QueueConfig.getDescriptor().getFields().stream()
            .map(field -> field.getName())
            .toList();
    assertEquals(names, everySetting().build().mask().getPathsList());
  }

  @Test
  void queuesAreListedAndDeleted() throws Exception {
    willAnswer(
        "DeleteQueue", DeleteQueueResponse.newBuilder().setMessages(3).setDeadLetters(2).build());
    willAnswer(
        "ListQueues",
        ListQueuesResponse.newBuilder()
            .addQueues(
                dev.faisca.fila.internal.v1.QueueInfo.newBuilder()
                    .setName("orders.dlq")
                    .setDepth(1)
                    .setInFlight(2)
                    .setActiveConsumers(3)
                    .setLeaderNodeId(4)
                    .setPaused(true)
                    .setDeadLetterOf("orders")
                    .setDelayed(5))
            .build());
    assertEquals(
        List.of(new QueueInfo("orders.dlq", 1, 2, 3, 4, true, "orders", 5)), client.listQueues());
    assertEquals(new DeletedQueue(3, 2), client.deleteQueue("orders"));
    assertEquals(new DeletedQueue(3, 2), client.deleteQueueKeepingDeadLetters("orders"));
    DeleteQueueRequest.Builder request = DeleteQueueRequest.newBuilder().setQueue("orders");
    assertEquals(
        List.of(request.build(), request.setKeepDeadLetters(true).build()),
        broker.calls("DeleteQueue").stream().map(call -> call.request()).toList());
  }

  private static PerThrottleKeyStats rawThrottle() {
    return PerThrottleKeyStats.newBuilder()
        .setKey("mail")
        .setTokens(0.5)
        .setRatePerSecond(1.5)
        .setBurst(2.5)
        .setPassed(3)
        .setBlocked(4)
        .setConcurrencyLimit(5)
        .setInFlight(6)
        .setPausedUntil(NINE)
        .setWaiting(7)
        .setPassedPerSecond(8.5)
        .setBlockedPerSecond(9.5)
        .setPattern("mai*")
        .setUnset(true)
        .setPaused(true)
        .build();
  }

  private static ThrottleKeyStats throttle() {
    Instant nine = Instant.ofEpochSecond(9);
    return new ThrottleKeyStats(
        "mail", 0.5, 1.5, 2.5, 3, 4, 5, 6, nine, 7, 8.5, 9.5, "mai*", true, true);
  }

  private static List<dev.faisca.fila.internal.v1.Failure> rawFailures() {
    return List.of(
        dev.faisca.fila.internal.v1.Failure.newBuilder()
            .setFailedAt(NINE)
            .setCause(dev.faisca.fila.internal.v1.FailureCause.FAILURE_CAUSE_MAX_ATTEMPTS)
            .setError("boom")
            .build(),
        dev.faisca.fila.internal.v1.Failure.newBuilder().setCauseValue(99).build());
  }

  private static List<Failure> failures() {
    return List.of(
        new Failure(Instant.ofEpochSecond(9), FailureCause.MAX_ATTEMPTS, "boom"),
        new Failure(null, null, ""));
  }

  @Test
  void throttleKeysAreListedPausedAndResumed() throws Exception {
    willAnswer(
        "ListThrottles",
        ListThrottlesResponse.newBuilder().addThrottles(rawThrottle()).setTotalCount(7).build());
    willAnswer("Pause", PauseResponse.getDefaultInstance());
    willAnswer("Resume", ResumeResponse.getDefaultInstance());
    ThrottleFilter filter = ThrottleFilter.ALL.withPrefix("mail").onlyUnset().withLimit(1);
    assertEquals(new ThrottlePage(List.of(throttle()), 7), client.listThrottles(filter));
    assertEquals(
        ListThrottlesRequest.newBuilder().setPrefix("mail").setUnset(true).setLimit(1).build(),
        sent("ListThrottles"));
    client.pauseThrottle("stripe");
    client.pauseThrottle("stripe", Duration.ofMinutes(1));
    client.resumeThrottle("stripe");
    PauseRequest.Builder pause = PauseRequest.newBuilder().setThrottleKey("stripe");
    assertEquals(
        List.of(pause.build(), pause.setDurationMs(60_000).build()),
        broker.calls("Pause").stream().map(call -> call.request()).toList());
    assertEquals(
        ResumeRequest.newBuilder().setThrottleKey("stripe").build(), sent("Resume"));
    assertThrows(IllegalArgumentException.class, () -> ThrottleFilter.ALL.withLimit(-1));
  }

  @Test
  void statsAreReadInFull() throws Exception {
    GetStatsResponse.Builder answer =
        GetStatsResponse.newBuilder()
            .setDepth(1)
            .setInFlight(2)
            .setActiveFairnessKeys(3)
            .setActiveConsumers(4)
            .setQuantum(5)
            .setDelayed(6)
            .setPaused(true)
            .setLeaderNodeId(10)
            .setReplicationCount(11)
            .setRoundKey("zeta")
            .setConfig(everyRawSetting())
            .setOldestPendingAgeMs(7)
            .setDeadLetterOf("x")
            .setConsumerCredit(8)
            .setThrottled(9);
    answer
        .addPerKeyStatsBuilder()
        .setKey("acme")
        .setPendingCount(1)
        .setCurrentDeficit(-2)
        .setWeight(3)
        .setDelivered(4)
        .setThrottled(5)
        .setPaused(true);
    answer.addPerKeyStatsBuilder().setKey("zeta").setRoundPosition(0);
    answer.addPerThrottleStats(rawThrottle());
    answer
        .getCountersBuilder()
        .setEnqueued(1)
        .setDelivered(2)
        .setAcked(3)
        .setNacked(4)
        .setExpired(5)
        .setDeadLettered(6)
        .setTimedOut(7)
        .setDuplicates(8);
    willAnswer("GetStats", answer.build());
    QueueStats withoutHooks = client.stats("orders", 17);
    assertEquals(
        GetStatsRequest.newBuilder().setQueue("orders").setMaxKeys(17).build(), sent("GetStats"));
    assertNull(withoutHooks.hooks());
    answer.getHooksBuilder().setCalls(1).setFailures(2).setBypassed(3).setCircuitOpen(true);
    willAnswer("GetStats", answer.build());
    assertEquals(
        new QueueStats(
            1,
            2,
            3,
            4,
            5,
            List.of(
                new FairnessKeyStats("acme", 1, -2, 3, 4, 5, true, null),
                new FairnessKeyStats("zeta", 0, 0, 0, 0, 0, false, 0)),
            List.of(throttle()),
            10,
            11,
            new QueueCounters(1, 2, 3, 4, 5, 6, 7, 8),
            everyReadSetting(),
            Duration.ofMillis(7),
            "x",
            8,
            9,
            new HookStats(1, 2, 3, true, ""),
            6,
            true,
            "zeta"),
        client.stats("orders"));
  }

  @Test
  void peekShowsMessagesAsTheyLie() throws Exception {
    PeekResponse.Builder answer = PeekResponse.newBuilder().setNextPosition(8).setEndPosition(9);
    dev.faisca.fila.internal.v1.Message.Builder failed =
        ScriptedBroker.message("a", new byte[0]).toBuilder();
    failed.getMetadataBuilder().addAllFailures(rawFailures());
    answer
        .addMessagesBuilder()
        .setMessage(failed)
        .setState(dev.faisca.fila.internal.v1.MessageState.MESSAGE_STATE_DELAYED)
        .setPosition(7);
    answer.addMessagesBuilder().setStateValue(99);
    willAnswer("Peek", answer.build());
    PeekOptions options =
        PeekOptions.DEFAULT
            .withLimit(5)
            .withPositions(3, 30)
            .withFairnessKey("acme")
            .withState(MessageState.LEASED)
            .withoutPayload();
    PeekPage page = client.peek("orders", options);
    assertEquals("a", page.messages().get(0).message().id());
    assertEquals(failures(), page.messages().get(0).message().failures());
    assertEquals(MessageState.DELAYED, page.messages().get(0).state());
    assertEquals(7, page.messages().get(0).position());
    assertNull(page.messages().get(1).state());
    assertEquals(List.of(8L, 9L), List.of(page.nextPosition(), page.endPosition()));
    assertEquals(
        PeekRequest.newBuilder()
            .setQueue("orders")
            .setLimit(5)
            .setFromPosition(3)
            .setUntilPosition(30)
            .setFairnessKey("acme")
            .setState(dev.faisca.fila.internal.v1.MessageState.MESSAGE_STATE_LEASED)
            .setExcludePayload(true)
            .build(),
        sent("Peek"));
  }

  @Test
  void operatingAQueue() throws Exception {
    willAnswer("Purge", PurgeResponse.newBuilder().setPurged(3).build());
    willAnswer("Pause", PauseResponse.getDefaultInstance());
    willAnswer("Resume", ResumeResponse.getDefaultInstance());
    willAnswer("Redrive", RedriveResponse.newBuilder().setRedriven(4).build());
    willAnswer("CancelMessage", CancelMessageResponse.getDefaultInstance());
    assertEquals(3, client.purge("orders", "acme"));
    client.pause("orders", null);
    client.resume("orders", "acme");
    RedriveOptions options =
        RedriveOptions.ALL
            .withCount(5)
            .withFairnessKey("acme")
            .withErrorContaining("boom")
            .withMessageIds(List.of("a", "b"));
    assertEquals(4, client.redrive("orders.dlq", options));
    client.cancel("orders", "m");
    assertEquals(
        PurgeRequest.newBuilder().setQueue("orders").setFairnessKey("acme").build(), sent("Purge"));
    assertEquals(PauseRequest.newBuilder().setQueue("orders").build(), sent("Pause"));
    assertEquals(
        ResumeRequest.newBuilder().setQueue("orders").setFairnessKey("acme").build(),
        sent("Resume"));
    assertEquals(
        RedriveRequest.newBuilder()
            .setDlqQueue("orders.dlq")
            .setCount(5)
            .setFairnessKey("acme")
            .setErrorContains("boom")
            .addMessageIds("a")
            .addMessageIds("b")
            .build(),
        sent("Redrive"));
    assertEquals(
        CancelMessageRequest.newBuilder().setQueue("orders").setMessageId("m").build(),
        sent("CancelMessage"));
  }

  @Test
  void explainSaysWhy() throws Exception {
    ExplainResponse.Builder answer =
        ExplainResponse.newBuilder()
            .setSummary("s")
            .setEstimatedAt(NINE)
            .setFairnessKey("acme")
            .setPendingCount(1)
            .setAhead(2)
            .setState(dev.faisca.fila.internal.v1.MessageState.MESSAGE_STATE_PENDING)
            .addAllFailures(rawFailures())
            .addUnsetThrottleKeys("mail");
    answer
        .addReasonsBuilder()
        .setKind(dev.faisca.fila.internal.v1.WaitKind.WAIT_KIND_NO_CREDIT)
        .setDetail("d")
        .setThrottleKey("t")
        .setUntil(NINE)
        .setCount(3)
        .setLimit(4);
    willAnswer("Explain", answer.build());
    Instant nine = Instant.ofEpochSecond(9);
    Explanation expected =
        new Explanation(
            "s",
            List.of(new WaitReason(WaitKind.NO_CREDIT, "d", "t", nine, 3, 4)),
            nine,
            "acme",
            1,
            2,
            MessageState.PENDING,
            failures(),
            List.of("mail"));
    assertEquals(expected, client.explainKey("orders", "acme"));
    assertEquals(expected, client.explainMessage("orders", "m"));
    assertEquals(
        ExplainRequest.newBuilder().setQueue("orders").setFairnessKey("acme").build(),
        broker.seen.get(0).request());
    assertEquals(
        ExplainRequest.newBuilder().setQueue("orders").setMessageId("m").build(),
        broker.seen.get(1).request());
  }

  @Test
  void runtimeConfiguration() throws Exception {
    willAnswer("SetConfig", SetConfigResponse.getDefaultInstance());
    willAnswer("GetConfig", GetConfigResponse.newBuilder().setValue("v").build());
    willAnswer("DeleteConfig", DeleteConfigResponse.getDefaultInstance());
    willAnswer(
        "ListConfig",
        ListConfigResponse.newBuilder()
            .addEntries(ConfigEntry.newBuilder().setKey("a").setValue("1"))
            .addEntries(ConfigEntry.newBuilder().setKey("b").setValue("2"))
            .build());
    client.setConfig("k", "v");
    client.setConfigAll(new TreeMap<>(Map.of("rate", "5", "burst", "")));
    assertEquals(
        SetConfigRequest.newBuilder()
            .addEntries(ConfigEntry.newBuilder().setKey("burst"))
            .addEntries(ConfigEntry.newBuilder().setKey("rate").setValue("5"))
            .build(),
        broker.calls("SetConfig").get(1).request());
    assertEquals("v", client.getConfig("k"));
    client.deleteConfig("k");
    assertEquals(Map.of("a", "1", "b", "2"), client.listConfig("p"));
    assertEquals(
        SetConfigRequest.newBuilder().setKey("k").setValue("v").build(), sent("SetConfig"));
    assertEquals(DeleteConfigRequest.newBuilder().setKey("k").build(), sent("DeleteConfig"));
    assertEquals(ListConfigRequest.newBuilder().setPrefix("p").build(), sent("ListConfig"));
  }

  @Test
  void whatMustBeNamedIsNamed() {
    NullPointerException missing =
        assertThrows(NullPointerException.class, () -> client.deleteQueue(null));
    assertEquals("queue must not be null", missing.getMessage());
    assertThrows(IllegalArgumentException.class, () -> PeekOptions.DEFAULT.withLimit(-1));
    assertThrows(IllegalArgumentException.class, () -> RedriveOptions.ALL.withCount(-1));
    assertThrows(IllegalArgumentException.class, () -> ConsumeOptions.DEFAULT.withMaxInFlight(-1));
  }
}
