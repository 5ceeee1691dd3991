// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.Empty;
import com.google.protobuf.Int32Value;
import dev.faisca.fila.ConnectionEvent.Kind;
import io.grpc.CallOptions;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/**
 * Says what becomes of the connection, in the log and to the function that a user gave: each change
 * once, one after the other, in order. Is told the channel's states; changes nothing.
 */
final class Announcements {
  // A channel that has failed answers at once; only one that connects meanwhile may not.
  private static final int PROBE_S = 5;
  private static final double NANOS_PER_SECOND = 1e9;

  private final ManagedChannel channel;
  private final ClientOptions options;
  private final Function<Status, String> explain;
  // Guards all below. Nobody is told anything under it.
  private final Object lock = new Object();
  private final Deque<ConnectionEvent> untold = new ArrayDeque<>();
  private boolean isTelling;
  // Null as long as nothing has happened.
  private Kind last;
  private boolean isProbing;
  private long awaySince;

  Announcements(ManagedChannel channel, ClientOptions options, Function<Status, String> explain) {
    this.channel = channel;
    this.options = options;
    this.explain = explain;
  }

  /** The channel has changed, and is in this state now. */
  void saw(ConnectivityState state) {
    boolean mustProbe = false;
    synchronized (lock) {
      // Also where it is there again: the change that was told must have been another one's.
      if (last == Kind.CONNECTED) {
        awaySince = System.nanoTime();
        add(Kind.LOST, null);
      }
      if (state == ConnectivityState.READY) {
        add(Kind.CONNECTED, null);
      } else if (state == ConnectivityState.TRANSIENT_FAILURE) {
        mustProbe = last != Kind.UNREACHABLE && !isProbing;
        isProbing |= mustProbe;
      }
    }
    if (mustProbe) {
      probe();
    }
    tell();
  }

  /** A channel does not say why it failed, but a call through it does. */
  private void probe() {
    CallOptions soon = CallOptions.DEFAULT.withDeadlineAfter(PROBE_S, TimeUnit.SECONDS);
    ClientCalls.asyncUnaryCall(
        channel.newCall(Health.CHECK, soon),
        Empty.getDefaultInstance(),
        new StreamObserver<Int32Value>() {
          @Override
          public void onNext(Int32Value connectedMeanwhile) {}

          @Override
          public void onError(Throwable error) {
            probed(Status.fromThrowable(error));
          }

          @Override
          public void onCompleted() {
            probed(Status.OK);
          }
        });
  }

  private void probed(Status status) {
    synchronized (lock) {
      isProbing = false;
      boolean isAway = channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE;
      if (isAway && last != Kind.CONNECTED && last != Kind.UNREACHABLE) {
        if (last == null) {
          awaySince = System.nanoTime();
        }
        add(Kind.UNREACHABLE, status.isOk() ? null : explain.apply(status));
      }
    }
    tell();
  }

  private void add(Kind kind, String reason) {
    if (kind != Kind.CONNECTED || last != null) {
      log(kind, reason);
    }
    last = kind;
    untold.add(new ConnectionEvent(kind, reason));
  }

  private void log(Kind kind, String reason) {
    String target = options.target();
    if (kind == Kind.CONNECTED) {
      double seconds = (System.nanoTime() - awaySince) / NANOS_PER_SECOND;
      String away = String.format(Locale.ROOT, "%.1f", seconds);
      Consumer.LOG.log(
          Level.INFO, "connected to \"{0}\" again, after {1} s", target, away);
    } else if (kind == Kind.LOST) {
      Consumer.LOG.log(Level.WARNING, "connection to \"{0}\" was lost", target);
    } else {
      Consumer.LOG.log(Level.WARNING, "broker \"{0}\" is unreachable: {1}", target, reason);
    }
  }

  /** Hands out what is untold, unless another thread is at it. */
  private void tell() {
    while (true) {
      ConnectionEvent event;
      synchronized (lock) {
        if (isTelling || untold.isEmpty()) {
          return;
        }
        isTelling = true;
        event = untold.remove();
      }
      try {
        options.connectionListener().accept(event);
      } catch (Throwable failed) { // what Kotlin's functions throw, they need not declare
        Consumer.LOG.log(Level.WARNING, "onConnection has failed, which changes nothing", failed);
      } finally {
        synchronized (lock) {
          isTelling = false;
        }
      }
    }
  }
}
