// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckRequest;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.CompletableFuture;

/** A message leased to this client until {@link #leaseExpiresAt}: ack, nack or extend it. */
public final class ConsumeMessage extends Message {
  private final FilaClient client;
  private final int frameSize;
  // What its frame shares; null where nobody keeps leases, as with receive.
  private final Lease lease;
  // Guarded by the lease: somebody here keeps it alive.
  boolean isHeld;
  volatile boolean isLost;
  // Or about to be: a worker leaves it alone.
  volatile boolean isSettled;
  // Null until its lease was prolonged.
  volatile Instant extendedUntil;

  /** One that was received. */
  ConsumeMessage(dev.faisca.fila.internal.v1.Message raw, FilaClient client, int frameSize) {
    super(raw);
    this.client = client;
    this.frameSize = frameSize;
    this.lease = null;
  }

  /** One of a consumer's frame, held until it is let go. */
  ConsumeMessage(
      dev.faisca.fila.internal.v1.Message raw, FilaClient client, Lease lease, int frameSize) {
    super(raw);
    this.client = client;
    this.frameSize = frameSize;
    this.lease = lease;
    this.isHeld = true;
  }

  /** Nobody here needs the lease of this message to last any more. */
  void letGo() {
    if (lease.letGo(this)) {
      client.shared().leases.letGo(lease);
    }
  }

  /** Whether the lease has ended, as far as is known here. */
  boolean isOver() {
    return isLost || lease.isOver();
  }

  @Override
  int frameSize() {
    return frameSize;
  }

  /** Reports that the message was processed; it is gone. Fails as {@link FilaClient#ack} does. */
  public void ack() throws FilaException {
    Connection.await(ackAsync());
  }

  /** Like {@link #ack}, without waiting for the answer. */
  public CompletableFuture<Void> ackAsync() {
    return settling(client.ackAsync(acked()));
  }

  /** This message's ack. */
  Item<AckRequest> acked() {
    return Wire.ack(queue(), id(), leaseToken(), frameSize);
  }

  /** Reports that processing failed. Fails as {@link FilaClient#nack} does. */
  public void nack(String error) throws FilaException {
    nack(error, NackOptions.NONE);
  }

  /** Reports that processing failed, or has to wait. Fails as {@link FilaClient#nack} does. */
  public void nack(String error, NackOptions options) throws FilaException {
    Connection.await(nackAsync(error, options));
  }

  /** Like {@link #nack}, without waiting for the answer. */
  public CompletableFuture<Void> nackAsync(String error, NackOptions options) {
    return settling(client.nackAsync(queue(), id(), leaseToken(), error, options));
  }

  private CompletableFuture<Void> settling(CompletableFuture<Void> answer) {
    boolean wasSettled = isSettled;
    isSettled = true;
    answer.whenComplete((nothing, error) -> isSettled = error == null || wasSettled);
    return answer;
  }

  /** Prolongs the lease to the queue's visibility timeout from now, and returns its new end. */
  public Instant extend() throws FilaException {
    return extend(null);
  }

  /** Prolongs the lease to a time from now, and returns its new end. */
  public Instant extend(Duration duration) throws FilaException {
    Instant end = client.extend(queue(), id(), leaseToken(), duration);
    extendedUntil = end;
    return end;
  }

  @Override
  public Instant leaseExpiresAt() {
    Instant extended = extendedUntil;
    return extended == null ? super.leaseExpiresAt() : extended;
  }
}
