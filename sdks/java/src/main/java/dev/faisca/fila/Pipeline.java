// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.PipelineRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import io.grpc.ClientCall;
import io.grpc.Deadline;
import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Batch requests in order through one stream, and through the next one after it was lost. A message
 * of a stream costs a fraction of a call. What a caller sees is what a unary call would show it.
 *
 * <pre>
 *  waiting --written--&gt; under way --answers, in order--&gt; caller
 *     |                    |
 *     '-- next stream      '-- the stream's end, deadline, cancelled: the outcome is unknown
 * </pre>
 *
 * <p>Who gives up keeps its place in the stream, and its answer is thrown away. When nobody waits
 * for what is under way any more the stream is cancelled, as a call would be.
 */
final class Pipeline {
  // More than the coalescers have under way together. What others have beyond it waits here, where
  // it can still be taken back.
  static final int REQUESTS_UNDER_WAY_MAX = 16;

  private static final String NOT_SENT =
      "no answer to earlier requests came in time; this one was not sent";
  private static final String NOT_ANSWERED = "no answer came in time; the outcome is unknown";

  private final Connection connection;
  // Guards everything below, and what can change in a stream. Nobody is told anything under it.
  private final Object lock = new Object();
  private final Deque<Request<?, ?, ?>> waiting = new ArrayDeque<>();
  private Stream current;
  private String openingKey = "";
  // Requests whose callers have not got an answer and have not given up.
  private int callers;

  Pipeline(Connection connection) {
    this.connection = connection;
  }

  /** Sends one request; its answer is what the call's would be. */
  <Q, A, T> CompletableFuture<T> send(
      Piped<Q, A> piped,
      Call<Q, A, T> call,
      PipelineRequest message,
      Deadline deadline,
      String key) {
    Request<Q, A, T> request = new Request<>(piped, call, message, deadline);
    synchronized (lock) {
      renew(key);
      callers++;
      waiting.add(request);
      write();
    }
    Future<?> timer = connection.at(deadline, request::expire);
    request.whenComplete(
        (value, error) -> {
          timer.cancel(false);
          left();
        });
    return request;
  }

  boolean isOpen() {
    synchronized (lock) {
      return current != null;
    }
  }

  /** Lets the broker end a stream that nobody waits for, if it does in time. */
  void close(Deadline deadline) {
    Stream last;
    synchronized (lock) {
      last = current;
      current = null;
      if (last == null || !last.underWay.isEmpty()) {
        return;
      }
      last.call.halfClose();
    }
    try {
      last.ended.await(deadline.timeRemaining(TimeUnit.NANOSECONDS), TimeUnit.NANOSECONDS);
    } catch (InterruptedException hurried) {
      Thread.currentThread().interrupt();
    }
  }

  /** A stream carries the key that it was opened with; with another there is another one. */
  private void renew(String key) {
    if (key.equals(openingKey)) {
      return;
    }
    openingKey = key;
    if (current != null) {
      // What is under way is still answered, and then it ends.
      current.call.halfClose();
      current = null;
    }
  }

  /** Hands what waits to the stream, as far as it takes it. The lock is held. */
  private void write() {
    while (!waiting.isEmpty()) {
      if (waiting.peek().isDone()) {
        waiting.remove();
        continue;
      }
      if (current == null) {
        open();
      } else if (current.underWay.size() >= REQUESTS_UNDER_WAY_MAX || !current.call.isReady()) {
        return;
      }
      // The first goes out at once, with the stream: there is nothing to wait for.
      Request<?, ?, ?> request = waiting.remove();
      request.isSent = true;
      current.underWay.add(request);
      current.call.sendMessage(request.message);
    }
  }

  private void open() {
    current = new Stream(connection.pipeline(openingKey));
    current.call.start(current, new Metadata());
    current.call.request(REQUESTS_UNDER_WAY_MAX);
  }

  private void left() {
    synchronized (lock) {
      callers--;
      if (callers == 0 && current != null && !current.underWay.isEmpty()) {
        current.call.cancel("nobody waits for its answers", null);
        current = null;
      }
    }
  }

  /** One request and its caller. */
  private final class Request<Q, A, T> extends CompletableFuture<T> {
    private final Piped<Q, A> piped;
    private final Call<Q, A, T> call;
    private final PipelineRequest message;
    private final Deadline deadline;
    private volatile boolean isSent;
    private volatile CompletableFuture<T> instead;

    Request(Piped<Q, A> piped, Call<Q, A, T> call, PipelineRequest message, Deadline deadline) {
      this.piped = piped;
      this.call = call;
      this.message = message;
      this.deadline = deadline;
    }

    /** Takes the answer; false if it is none to this request. */
    boolean answer(PipelineResponse answer) {
      if (answer.getAnswerCase() == PipelineResponse.AnswerCase.ERROR) {
        completeExceptionally(connection.refusal(answer.getError()));
      } else if (answer.getAnswerCase() == piped.kind()) {
        try {
          complete(call.read().apply(piped.get().apply(answer)));
        } catch (RuntimeException defect) {
          completeExceptionally(defect);
        }
      } else {
        return false;
      }
      return true;
    }

    void fail(Status status, Metadata trailers) {
      completeExceptionally(
          connection.failure(status, trailers, call.queue(), call.messageId()));
    }

    void expire() {
      fail(Status.DEADLINE_EXCEEDED.withDescription(isSent ? NOT_ANSWERED : NOT_SENT), null);
    }

    /** The broker knows no pipelines, so this was not applied. */
    void sendAlone() {
      if (isDone()) {
        return;
      }
      instead = connection.sendAlone(call, deadline, Map.of());
      instead.whenComplete(
          (value, error) -> {
            if (error == null) {
              complete(value);
            } else {
              completeExceptionally(error);
            }
          });
      if (isCancelled()) {
        instead.cancel(true);
      }
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
      boolean isFirst = super.cancel(mayInterrupt);
      CompletableFuture<T> other = instead;
      if (other != null) {
        other.cancel(mayInterrupt);
      }
      return isFirst;
    }
  }

  /** One stream, from its opening to its status. */
  private final class Stream extends ClientCall.Listener<PipelineResponse> {
    private final ClientCall<PipelineRequest, PipelineResponse> call;
    // Written and not answered, in order.
    private final Deque<Request<?, ?, ?>> underWay = new ArrayDeque<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private boolean hasAnswered;

    Stream(ClientCall<PipelineRequest, PipelineResponse> call) {
      this.call = call;
    }

    @Override
    public void onReady() {
      synchronized (lock) {
        if (current == this) {
          write();
        }
      }
    }

    @Override
    public void onMessage(PipelineResponse answer) {
      Request<?, ?, ?> request;
      synchronized (lock) {
        hasAnswered = true;
        request = underWay.poll();
        call.request(1);
        if (current == this) {
          write();
        }
      }
      if (request == null || !request.answer(answer)) {
        Status broken = Status.INTERNAL.withDescription("the broker answered another request");
        if (request != null) {
          request.fail(broken, null);
        }
        fail(broken, null);
        call.cancel(broken.getDescription(), null);
      }
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      if (Thread.holdsLock(lock)) {
        // An interceptor ended it in the middle of its opening.
        connection.at(Connection.deadline(Duration.ZERO), () -> onClose(status, trailers));
        return;
      }
      ended.countDown();
      // Who answered knows pipelines, whatever this is.
      if (status.getCode() == Status.Code.UNIMPLEMENTED && !hasAnswered) {
        connection.forgetPipelines();
        forsaken(true).forEach(Request::sendAlone);
      } else if (status.isOk()) {
        fail(Status.UNAVAILABLE.withDescription("the broker ended the pipeline"), null);
      } else {
        fail(status, trailers);
      }
    }

    private void fail(Status status, Metadata trailers) {
      forsaken(connection.isClosed()).forEach(request -> request.fail(status, trailers));
    }

    /** Takes the stream out of use, and all under way; what waits too, unless there is a next. */
    private List<Request<?, ?, ?>> forsaken(boolean isForGood) {
      synchronized (lock) {
        List<Request<?, ?, ?>> found = new ArrayList<>(underWay);
        underWay.clear();
        if (isForGood) {
          found.addAll(waiting);
          waiting.clear();
        }
        if (current == this) {
          current = null;
        }
        write();
        return found;
      }
    }
  }
}
