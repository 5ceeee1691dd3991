// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.Timestamp;
import dev.faisca.fila.internal.v1.ConsumeResponse;
import dev.faisca.fila.internal.v1.MessageMetadata;
import dev.faisca.fila.internal.v1.MessageTimestamps;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * What the messages of one frame share: their lease, as this client's clock sees it, and which of
 * them are still held here. {@link Leases} makes it last.
 *
 * <p>Its length is the difference of two times of the broker's, counted from the frame's arrival,
 * so clocks that differ do no harm.
 */
final class Lease {
  final String queue;
  final String token;
  // 0 where the broker does not say when leases end: then they never do, as far as we know.
  final long nanos;
  final List<ConsumeMessage> messages;

  // When to extend it next, by System.nanoTime; guarded by the keeper.
  long due;
  private volatile long end;
  private volatile boolean isLost;
  private int heldCount;

  Lease(ConsumeResponse frame, FilaClient client, long arrivedAt) {
    var first = frame.getMessages(0);
    MessageMetadata metadata = first.getMetadata();
    this.queue = metadata.getQueueId();
    this.token = metadata.getLeaseToken();
    this.nanos = length(first.getTimestamps());
    this.heldCount = frame.getMessagesCount();
    this.messages = new ArrayList<>(heldCount);
    for (var raw : frame.getMessagesList()) {
      messages.add(new ConsumeMessage(raw, client, this, heldCount));
    }
    renew(arrivedAt);
  }

  private static long length(MessageTimestamps times) {
    if (!times.hasLeasedAt() || !times.hasLeaseExpiresAt()) {
      return 0;
    }
    Timestamp from = times.getLeasedAt();
    Timestamp until = times.getLeaseExpiresAt();
    long seconds = until.getSeconds() - from.getSeconds();
    return Math.max(0, TimeUnit.SECONDS.toNanos(seconds) + until.getNanos() - from.getNanos());
  }

  /** It lasts its whole length from this time on. */
  void renew(long from) {
    end = from + nanos;
    due = from + nanos / 2;
  }

  /** The broker says that it is not ours any more. */
  void lose() {
    isLost = true;
  }

  boolean isOver() {
    return isLost || nanos > 0 && nanosLeft() <= 0;
  }

  long nanosLeft() {
    return end - System.nanoTime();
  }

  /** One message less is held. Whether it was the last. */
  synchronized boolean letGo(ConsumeMessage message) {
    if (!message.isHeld) {
      return false;
    }
    message.isHeld = false;
    return --heldCount == 0;
  }

  synchronized List<ConsumeMessage> held() {
    return messages.stream().filter(message -> message.isHeld).toList();
  }
}
