// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.Empty;
import com.google.protobuf.Int32Value;
import io.grpc.Deadline;
import io.grpc.MethodDescriptor;
import io.grpc.protobuf.ProtoUtils;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** Whether a broker answers, and serves: gRPC's health service. */
final class Health {
  // The request is empty and the answer one number in field 1. These two are the same on the wire,
  // and spare a dependency.
  static final MethodDescriptor<Empty, Int32Value> CHECK =
      MethodDescriptor.<Empty, Int32Value>newBuilder()
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("grpc.health.v1.Health/Check")
          .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(Int32Value.getDefaultInstance()))
          .build();

  static final int SERVING = 1;

  private Health() {}

  /** Asks once, and returns how long the answer took. */
  static Duration ping(Connection connection, Duration timeout) throws FilaException {
    long began = System.nanoTime();
    int status =
        connection.call(
            Call.once(CHECK, Empty.getDefaultInstance(), Int32Value::getValue, null), timeout);
    if (status != SERVING) {
      String text = "broker \"%s\" is not serving".formatted(connection.options().target());
      throw Errors.fromStatus(new CallFailure(text, "UNAVAILABLE", null, null, null, null));
    }
    return Duration.ofNanos(System.nanoTime() - began);
  }

  /** Asks until the broker serves, as often as the backoff says. */
  static void await(Connection connection, Duration timeout) throws FilaException {
    Deadline deadline = Connection.deadline(timeout);
    Duration patience = connection.options().timeout();
    FilaException failure = null;
    for (int attempt = 0; ; attempt++) {
      Duration left = left(deadline);
      try {
        ping(connection, left.compareTo(patience) < 0 ? left : patience);
        return;
      } catch (UnavailableException away) {
        failure = away;
      } catch (DeadlineExceededException silent) {
        // That nobody answered says less than why nobody could be reached.
        failure = failure == null ? silent : failure;
      }
      if (deadline.isExpired()) {
        String text =
            "broker \"%s\" was not ready within %s: %s"
                .formatted(connection.options().target(), timeout, failure.getMessage());
        throw Errors.fromStatus(
            new CallFailure(text, "DEADLINE_EXCEEDED", null, null, null, failure));
      }
      double chance = ThreadLocalRandom.current().nextDouble();
      Duration pause = connection.options().backoff().delay(attempt, chance);
      CompletableFuture<Void> over = new CompletableFuture<>();
      left = left(deadline);
      connection.after(
          left.compareTo(pause) < 0 ? left : pause, () -> over.complete(null));
      Connection.await(over);
    }
  }

  private static Duration left(Deadline deadline) {
    return Duration.ofNanos(deadline.timeRemaining(TimeUnit.NANOSECONDS));
  }
}
