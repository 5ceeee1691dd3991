// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import java.time.Duration;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * Holds a channel to the client's backoff. gRPC's own waits grow to two minutes and cannot be set,
 * so a broker that is back would stay unknown for that long.
 */
final class Reconnect {
  private final ManagedChannel channel;
  private final Backoff backoff;
  private final ScheduledExecutorService timer;
  private final Announcements announcements;
  private int attempts;
  private boolean isScheduled;

  private Reconnect(
      ManagedChannel channel,
      Backoff backoff,
      ScheduledExecutorService timer,
      Announcements announcements) {
    this.channel = channel;
    this.backoff = backoff;
    this.timer = timer;
    this.announcements = announcements;
  }

  static void watch(
      ManagedChannel channel,
      Backoff backoff,
      ScheduledExecutorService timer,
      Announcements announcements) {
    new Reconnect(channel, backoff, timer, announcements).look();
  }

  /** Only one thread at a time is here: each look asks for the next one. */
  private void look() {
    ConnectivityState state = channel.getState(false);
    if (state == ConnectivityState.SHUTDOWN) {
      return;
    }
    act(state);
    announcements.saw(state);
    channel.notifyWhenStateChanged(state, this::look);
  }

  private synchronized void act(ConnectivityState state) {
    if (state == ConnectivityState.READY) {
      attempts = 0;
    } else if (state == ConnectivityState.TRANSIENT_FAILURE) {
      schedule();
    }
  }

  private void schedule() {
    if (isScheduled) {
      return;
    }
    isScheduled = true;
    Duration delay = backoff.delay(attempts++, ThreadLocalRandom.current().nextDouble());
    try {
      timer.schedule(this::connect, delay.toNanos(), TimeUnit.NANOSECONDS);
    } catch (RejectedExecutionException closed) {
      // The client was closed in the meantime.
    }
  }

  private synchronized void connect() {
    isScheduled = false;
    // A channel that failed stays in that state until it is ready, so nobody else says when an
    // attempt has failed too.
    if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
      channel.resetConnectBackoff();
      schedule();
    }
  }
}
