// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.ExplainResponse;
import dev.faisca.fila.internal.v1.GetStatsResponse;
import dev.faisca.fila.internal.v1.ListThrottlesResponse;
import dev.faisca.fila.internal.v1.PeekResponse;
import dev.faisca.fila.internal.v1.PerFairnessKeyStats;
import dev.faisca.fila.internal.v1.PerThrottleKeyStats;
import java.time.Duration;
import java.util.List;

/** The answers of FilaAdmin as plain values, which hold nothing of the contract's classes. */
final class AdminAnswers {
  private AdminAnswers() {}

  static QueueInfo info(dev.faisca.fila.internal.v1.QueueInfo raw) {
    return new QueueInfo(
        raw.getName(),
        raw.getDepth(),
        raw.getInFlight(),
        raw.getActiveConsumers(),
        raw.getLeaderNodeId(),
        raw.getPaused(),
        raw.getDeadLetterOf(),
        raw.getDelayed());
  }

  static QueueConfig config(dev.faisca.fila.internal.v1.QueueConfig raw) {
    HookErrorPolicy policy = member(HookErrorPolicy.class, raw.getOnHookError());
    return new QueueConfig(
        raw.getOnEnqueueScript(),
        raw.getOnFailureScript(),
        Duration.ofMillis(raw.getVisibilityTimeoutMs()),
        raw.getMaxAttempts(),
        Duration.ofMillis(raw.getRetryDelayMs()),
        Duration.ofMillis(raw.getRetryDelayMaxMs()),
        Duration.ofMillis(raw.getDefaultTtlMs()),
        Duration.ofMillis(raw.getIdempotencyWindowMs()),
        raw.getMaxMessages(),
        policy == null ? HookErrorPolicy.DEFAULT : policy,
        Duration.ofMillis(raw.getHookTimeoutMs()),
        raw.getHookMemoryLimitBytes(),
        raw.getQuantum());
  }

  static QueueStats stats(GetStatsResponse raw) {
    return new QueueStats(
        raw.getDepth(),
        raw.getInFlight(),
        raw.getActiveFairnessKeys(),
        raw.getActiveConsumers(),
        raw.getQuantum(),
        raw.getPerKeyStatsList().stream().map(AdminAnswers::fairnessKey).toList(),
        raw.getPerThrottleStatsList().stream().map(AdminAnswers::throttleKey).toList(),
        raw.getLeaderNodeId(),
        raw.getReplicationCount(),
        counters(raw.getCounters()),
        config(raw.getConfig()),
        Duration.ofMillis(raw.getOldestPendingAgeMs()),
        raw.getDeadLetterOf(),
        raw.getConsumerCredit(),
        raw.getThrottled(),
        raw.hasHooks() ? hooks(raw.getHooks()) : null,
        raw.getDelayed(),
        raw.getPaused(),
        raw.getRoundKey());
  }

  private static FairnessKeyStats fairnessKey(PerFairnessKeyStats raw) {
    return new FairnessKeyStats(
        raw.getKey(),
        raw.getPendingCount(),
        raw.getCurrentDeficit(),
        raw.getWeight(),
        raw.getDelivered(),
        raw.getThrottled(),
        raw.getPaused(),
        raw.hasRoundPosition() ? raw.getRoundPosition() : null);
  }

  private static ThrottleKeyStats throttleKey(PerThrottleKeyStats raw) {
    return new ThrottleKeyStats(
        raw.getKey(),
        raw.getTokens(),
        raw.getRatePerSecond(),
        raw.getBurst(),
        raw.getPassed(),
        raw.getBlocked(),
        raw.getConcurrencyLimit(),
        raw.getInFlight(),
        Wire.moment(raw.hasPausedUntil(), raw.getPausedUntil()),
        raw.getWaiting(),
        raw.getPassedPerSecond(),
        raw.getBlockedPerSecond(),
        raw.getPattern(),
        raw.getUnset(),
        raw.getPaused());
  }

  static ThrottlePage throttles(ListThrottlesResponse raw) {
    return new ThrottlePage(
        raw.getThrottlesList().stream().map(AdminAnswers::throttleKey).toList(),
        raw.getTotalCount());
  }

  static List<Failure> failures(List<dev.faisca.fila.internal.v1.Failure> rows) {
    return rows.stream()
        .map(
            row ->
                new Failure(
                    Wire.moment(row.hasFailedAt(), row.getFailedAt()),
                    member(FailureCause.class, row.getCause()),
                    row.getError()))
        .toList();
  }

  private static QueueCounters counters(dev.faisca.fila.internal.v1.QueueCounters raw) {
    return new QueueCounters(
        raw.getEnqueued(),
        raw.getDelivered(),
        raw.getAcked(),
        raw.getNacked(),
        raw.getExpired(),
        raw.getDeadLettered(),
        raw.getTimedOut(),
        raw.getDuplicates());
  }

  private static HookStats hooks(dev.faisca.fila.internal.v1.HookStats raw) {
    return new HookStats(
        raw.getCalls(),
        raw.getFailures(),
        raw.getBypassed(),
        raw.getCircuitOpen(),
        raw.getLastError());
  }

  static PeekPage page(PeekResponse raw) {
    return new PeekPage(
        raw.getMessagesList().stream().map(AdminAnswers::peeked).toList(),
        raw.getNextPosition(),
        raw.getEndPosition());
  }

  private static PeekedMessage peeked(dev.faisca.fila.internal.v1.PeekedMessage raw) {
    MessageState state = member(MessageState.class, raw.getState());
    return new PeekedMessage(new Message(raw.getMessage()), state, raw.getPosition());
  }

  static Explanation explanation(ExplainResponse raw) {
    return new Explanation(
        raw.getSummary(),
        raw.getReasonsList().stream().map(AdminAnswers::reason).toList(),
        Wire.moment(raw.hasEstimatedAt(), raw.getEstimatedAt()),
        raw.getFairnessKey(),
        raw.getPendingCount(),
        raw.getAhead(),
        member(MessageState.class, raw.getState()),
        failures(raw.getFailuresList()),
        List.copyOf(raw.getUnsetThrottleKeysList()));
  }

  private static WaitReason reason(dev.faisca.fila.internal.v1.WaitReason raw) {
    return new WaitReason(
        member(WaitKind.class, raw.getKind()),
        raw.getDetail(),
        raw.getThrottleKey(),
        Wire.moment(raw.hasUntil(), raw.getUntil()),
        raw.getCount(),
        raw.getLimit());
  }

  /** A member of an enum; null for "unspecified" and for what a newer broker may send. */
  static <E extends Enum<E>> E member(Class<E> kind, Enum<?> raw) {
    for (E candidate : kind.getEnumConstants()) {
      if (raw.name().equals(prefix(raw) + candidate.name())) {
        return candidate;
      }
    }
    return null;
  }

  private static String prefix(Enum<?> raw) {
    String unspecified = raw.getDeclaringClass().getEnumConstants()[0].name();
    return unspecified.substring(0, unspecified.length() - "UNSPECIFIED".length());
  }
}
