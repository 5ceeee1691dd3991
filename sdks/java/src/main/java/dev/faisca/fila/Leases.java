// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.GrantSettlement;
import dev.faisca.fila.internal.v1.LeaseExtension;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Keeps the leases of what a client's consumers hold: frames are extended at half of their length,
 * for as long again, all that are due at a moment by one request.
 *
 * <p>A frame's own error ends it. What hits the whole request is tried again until the lease ends.
 * It works per frame; messages only tell it when the last one of a frame is not held any more.
 */
final class Leases {
  // Longer than a moment's trouble, and often enough within a lease of some seconds.
  private static final long PAUSE_NANOS = TimeUnit.SECONDS.toNanos(1);
  private static final int ATTEMPTS_PER_LEASE_MAX = 10;
  private static final long NEVER = Long.MAX_VALUE;

  private final Connection connection;
  // Guards all below, and when each lease is due.
  private final Object lock = new Object();
  private final Set<Lease> kept = new HashSet<>();
  // Leases whose extension is under way, which are not due meanwhile.
  private final Set<Lease> asked = new HashSet<>();
  private Future<?> alarm;
  private long alarmAt;

  Leases(Connection connection) {
    this.connection = connection;
  }

  void keep(Lease lease) {
    if (lease.nanos == 0) {
      return;
    }
    synchronized (lock) {
      kept.add(lease);
      wakeAt(lease.due);
    }
  }

  void letGo(Lease lease) {
    synchronized (lock) {
      kept.remove(lease);
    }
  }

  int keptCount() {
    synchronized (lock) {
      return kept.size();
    }
  }

  private void wakeAt(long time) {
    if (alarm != null && alarmAt - time <= 0) {
      return;
    }
    if (alarm != null) {
      alarm.cancel(false);
    }
    alarmAt = time;
    Duration left = Duration.ofNanos(Math.max(0, time - System.nanoTime()));
    alarm = connection.at(Connection.deadline(left), this::look);
  }

  private void look() {
    List<Lease> due = new ArrayList<>();
    synchronized (lock) {
      alarm = null;
      kept.removeIf(Lease::isOver);
      long now = System.nanoTime();
      long next = NEVER;
      for (Lease lease : kept) {
        if (asked.contains(lease)) {
          continue;
        }
        if (lease.due - now <= 0) {
          due.add(lease);
        } else {
          next = next == NEVER || lease.due - next < 0 ? lease.due : next;
        }
      }
      asked.addAll(due);
      if (next != NEVER) {
        wakeAt(next);
      }
    }
    extend(due);
  }

  private void extend(List<Lease> leases) {
    if (!connection.hasGrants()) {
      extendMessages(leases);
      return;
    }
    for (int from = 0; from < leases.size(); from += BatchRpc.ITEMS_MAX) {
      List<Lease> some = leases.subList(from, Math.min(leases.size(), from + BatchRpc.ITEMS_MAX));
      extendFrames(some);
    }
  }

  private void extendFrames(List<Lease> leases) {
    List<Item<GrantSettlement>> items = new ArrayList<>(leases.size());
    leases.forEach(lease -> items.add(Grants.extend(lease)));
    long sentAt = System.nanoTime();
    connection
        .send(Grants.SETTLE.call(items), Connection.deadline(patience(leases)), Map.of())
        .whenComplete(
            (outcomes, error) -> {
              if (error instanceof UnimplementedException) {
                connection.forgetGrants();
                extendMessages(leases);
                return;
              }
              for (int index = 0; index < leases.size(); index++) {
                Lease lease = leases.get(index);
                if (error != null) {
                  putOff(lease);
                } else if (outcomes.get(index).error() != null) {
                  lease.lose();
                  forget(lease);
                } else {
                  extended(lease, sentAt);
                }
              }
            });
  }

  /** What a broker wants that knows no grants: each message that is held by its name. */
  private void extendMessages(List<Lease> leases) {
    for (Lease lease : leases) {
      List<ConsumeMessage> held = lease.held();
      if (held.isEmpty()) {
        forget(lease);
        continue;
      }
      Duration duration = Duration.ofNanos(lease.nanos);
      List<Item<LeaseExtension>> items =
          held.stream().map(m -> Wire.extend(m.queue(), m.id(), m.leaseToken(), duration)).toList();
      long sentAt = System.nanoTime();
      connection
          .send(Wire.EXTEND.call(items), Connection.deadline(patience(List.of(lease))), Map.of())
          .whenComplete(
              (outcomes, error) -> {
                if (error != null) {
                  putOff(lease);
                  return;
                }
                for (int index = 0; index < held.size(); index++) {
                  held.get(index).isLost |= outcomes.get(index).error() != null;
                }
                extended(lease, sentAt);
              });
    }
  }

  /** A request is no use for longer than the leases that it should extend last. */
  private Duration patience(List<Lease> leases) {
    long nanos = 1;
    for (Lease lease : leases) {
      nanos = Math.max(nanos, lease.nanosLeft());
    }
    return Duration.ofNanos(Math.min(nanos, connection.options().timeout().toNanos()));
  }

  private void extended(Lease lease, long sentAt) {
    synchronized (lock) {
      asked.remove(lease);
      lease.renew(sentAt);
      if (kept.contains(lease)) {
        wakeAt(lease.due);
      }
    }
  }

  private void putOff(Lease lease) {
    synchronized (lock) {
      asked.remove(lease);
      long pause = Math.min(PAUSE_NANOS, lease.nanos / ATTEMPTS_PER_LEASE_MAX);
      lease.due = System.nanoTime() + pause;
      if (kept.contains(lease)) {
        wakeAt(lease.due);
      }
    }
  }

  private void forget(Lease lease) {
    synchronized (lock) {
      asked.remove(lease);
      kept.remove(lease);
    }
  }
}
