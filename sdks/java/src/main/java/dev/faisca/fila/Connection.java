// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.ConsumeRequest;
import dev.faisca.fila.internal.v1.ConsumeResponse;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.ItemError;
import dev.faisca.fila.internal.v1.PipelineRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * A broker's address with everything that calls to it have in common: the channel, deadlines, the
 * clock of retries, which calls travel through pipelines, and what a failed call means. Knows
 * nothing of batches and consumers.
 */
final class Connection {
  private static final Metadata.Key<String> REASON =
      Metadata.Key.of("fila-reason", Metadata.ASCII_STRING_MARSHALLER);
  // The broker ends a pipeline within a round trip, and a shutdown must not hang.
  private static final Duration DRAIN = Duration.ofMillis(100);

  private final ClientOptions options;
  private final ManagedChannel channel;
  // The channel with what travels beside each request.
  private final Channel calls;
  private final CallOptions callOptions;
  private final ScheduledThreadPoolExecutor timer;
  // What waits to be sent again. Closing hurries it along, so that nobody waits for nothing.
  private final Set<Runnable> pauses = ConcurrentHashMap.newKeySet();
  // Refuses what is begun, lets what was begun go on; then nothing goes on.
  private volatile boolean isClosing;
  private volatile boolean isClosed;
  private volatile boolean hasGrants = true;
  // Acks need no disk and enqueues do, so neither should wait for the other.
  final Pipeline enqueues = new Pipeline(this);
  private final Pipeline settlements = new Pipeline(this);
  private volatile boolean hasPipelines;

  Connection(ClientOptions options) {
    this.options = options;
    this.channel = Channels.open(options);
    this.calls = Channels.intercepted(channel, options);
    this.callOptions = CallOptions.DEFAULT.withMaxOutboundMessageSize(options.maxMessageBytes());
    // A message beyond the client's own limit ends the stream, and that must not meet others.
    this.hasPipelines = options.maxMessageBytes() >= BatchRpc.BYTES_MAX;
    this.timer = new ScheduledThreadPoolExecutor(1, Connection::timerThread);
    timer.setRemoveOnCancelPolicy(true);
    Announcements announcements = new Announcements(channel, options, this::explanation);
    Reconnect.watch(channel, options.backoff(), timer, announcements);
  }

  /** Whether the broker settles grants: yes, until it says that it knows no such call. */
  boolean hasGrants() {
    return hasGrants;
  }

  void forgetGrants() {
    hasGrants = false;
  }

  /** The broker knows no such call. */
  void forgetPipelines() {
    hasPipelines = false;
  }

  private static Thread timerThread(Runnable work) {
    Thread thread = new Thread(work, "fila-timer");
    thread.setDaemon(true);
    return thread;
  }

  ClientOptions options() {
    return options;
  }

  boolean isClosed() {
    return isClosed;
  }

  void checkOpen() throws ClientClosedException {
    if (isClosing) {
      throw closed(null, null);
    }
  }

  boolean isClosing() {
    return isClosing;
  }

  /** Lets nothing begin any more. */
  void refuse() {
    isClosing = true;
  }

  static ClientClosedException closed(String queue, String messageId) {
    return new ClientClosedException(CallFailure.local(null, queue, messageId));
  }

  static Deadline deadline(Duration timeout) {
    return Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
  }

  /** Sends one call, again where that is safe, and waits for its answer. */
  <T> T call(Call<?, ?, T> call, Duration timeout) throws FilaException {
    CompletableFuture<T> answer = begin(call, timeout);
    T value = await(answer);
    return Retrying.wasRepeated(answer) ? call.afterRepeat().apply(value) : value;
  }

  /** Sends one call, again where that is safe. */
  <T> CompletableFuture<T> begin(Call<?, ?, T> call, Duration timeout) {
    Map<String, String> trace = Tracing.current();
    Deadline deadline = deadline(timeout);
    if (isClosing) {
      return CompletableFuture.failedFuture(closed(call.queue(), call.messageId()));
    }
    return Retrying.start(
        this,
        call.isRepeatable(),
        deadline,
        attempt -> send(call, deadline, trace),
        error -> false);
  }

  /** Sends one call, batches through pipelines. Its answer is a value or a FilaException. */
  <Q, A, T> CompletableFuture<T> send(
      Call<Q, A, T> call, Deadline deadline, Map<String, String> trace) {
    Piped<Q, A> piped = mayBePiped(call, deadline, trace) ? Piped.of(call.method()) : null;
    if (piped != null) {
      PipelineRequest message = piped.wrap(call.request());
      // A broker may refuse a large message by ending the stream.
      if (message.getSerializedSize() <= BatchRpc.BYTES_MAX) {
        Pipeline pipeline = piped.isEnqueue() ? enqueues : settlements;
        try {
          return pipeline.send(piped, call, message, deadline, options.apiKey().get());
        } catch (StatusException keyless) {
          return CompletableFuture.failedFuture(
              failure(keyless.getStatus(), null, call.queue(), call.messageId()));
        }
      }
    }
    return sendAlone(call, deadline, trace);
  }

  private boolean mayBePiped(Call<?, ?, ?> call, Deadline deadline, Map<String, String> trace) {
    // A trace is metadata, which a stream has only once. Who is late is refused by gRPC. The name
    // is looked at first because a first call should not have to load what it has no use for.
    return FilaServiceGrpc.SERVICE_NAME.equals(call.method().getServiceName())
        && hasPipelines
        && trace.isEmpty()
        && !isClosed
        && !deadline.isExpired();
  }

  /** Sends one call that is no part of a stream. */
  <Q, A, T> CompletableFuture<T> sendAlone(
      Call<Q, A, T> call, Deadline deadline, Map<String, String> trace) {
    if (isClosed) {
      return CompletableFuture.failedFuture(closed(call.queue(), call.messageId()));
    }
    ClientCall<Q, A> sent =
        calls.newCall(
            call.method(), callOptions.withDeadline(deadline).withOption(Channels.TRACE, trace));
    Reply<A, T> reply =
        new Reply<>(
            sent,
            call.read(),
            said -> failure(said.status(), said.trailers(), call.queue(), call.messageId()));
    ClientCalls.asyncUnaryCall(sent, call.request(), reply);
    return reply;
  }

  /** A stream of messages that is not started yet. It has no deadline. */
  ClientCall<ConsumeRequest, ConsumeResponse> stream(
      boolean waitForReady, Map<String, String> trace) {
    CallOptions chosen = callOptions.withOption(Channels.TRACE, trace);
    return calls.newCall(
        FilaServiceGrpc.getConsumeMethod(), waitForReady ? chosen.withWaitForReady() : chosen);
  }

  /** A stream of batches with this API key that is not started yet. It has no deadline. */
  ClientCall<PipelineRequest, PipelineResponse> pipeline(String key) {
    return calls.newCall(
        FilaServiceGrpc.getPipelineMethod(), callOptions.withOption(Channels.KEY, key));
  }

  /**
   * Waits for an answer. An interrupt gives it up: the thread's interrupt flag stays set, and the
   * outcome is unknown.
   */
  static <T> T await(CompletableFuture<T> answer) throws FilaException {
    try {
      return answer.get();
    } catch (InterruptedException interrupted) {
      answer.cancel(true);
      throw interrupted();
    } catch (ExecutionException failed) {
      if (failed.getCause() instanceof FilaException error) {
        // It was made where the answer arrived; who reads the trace wants to know who asked.
        error.fillInStackTrace();
        throw error;
      }
      throw new IllegalStateException("an answer could not be read", failed.getCause());
    }
  }

  /** What an interrupt of a blocked thread becomes. */
  static CancelledException interrupted() {
    Thread.currentThread().interrupt();
    String text = "the thread was interrupted; the outcome is unknown";
    return new CancelledException(CallFailure.local(text, null, null));
  }

  /** What a failed call means. Its cause is kept, unless the peer's text holds the API key. */
  FilaException failure(Status status, Metadata trailers, String queue, String messageId) {
    if (isClosed) {
      return closed(queue, messageId);
    }
    // A request that gRPC refuses to send, because it is too large, is cancelled for that reason.
    if (status.getCode() == Status.Code.CANCELLED
        && status.getCause() instanceof StatusRuntimeException refusal) {
      status = refusal.getStatus();
    }
    String reason = trailers == null ? null : trailers.get(REASON);
    String code = status.getCode().name();
    String text = text(status, reason);
    Throwable cause = status.asRuntimeException(trailers);
    String safe = options.apiKey().redacted(text);
    if (!safe.equals(text)) {
      text = safe;
      cause = null;
    }
    return Errors.fromStatus(new CallFailure(text, code, reason, queue, messageId, cause));
  }

  /** What the refusal of a whole request means that came as an answer. */
  FilaException refusal(ItemError error) {
    if (isClosed) {
      return closed(null, null);
    }
    return BatchRpc.refusal(error, options.apiKey().redacted(error.getMessage()), null, null);
  }

  private String explanation(Status status) {
    return failure(status, null, null, null).getMessage();
  }

  private String text(Status status, String reason) {
    String said = Wire.orEmpty(status.getDescription());
    Throwable cause = status.getCause();
    if (reason != null || cause == null || status.getCode() != Status.Code.UNAVAILABLE) {
      return said;
    }
    // What gRPC says then is "io exception" and a list of Netty's handlers; the cause says why.
    while (cause.getCause() != null && cause.getCause() != cause) {
      cause = cause.getCause();
    }
    String why = cause.getMessage() == null ? cause.getClass().getSimpleName() : cause.getMessage();
    return "cannot reach \"%s\": %s".formatted(options.target(), why);
  }

  /** Runs something at a deadline, unless it is cancelled before. */
  Future<?> at(Deadline deadline, Runnable action) {
    try {
      long nanos = deadline.timeRemaining(TimeUnit.NANOSECONDS);
      return timer.schedule(action, nanos, TimeUnit.NANOSECONDS);
    } catch (RejectedExecutionException closed) {
      return CompletableFuture.completedFuture(null);
    }
  }

  /** Runs something after a pause, or when the connection is closed. */
  void after(Duration pause, Runnable action) {
    Runnable once = () -> run(action);
    pauses.add(action);
    at(deadline(pause), once);
    if (isClosed) {
      run(action);
    }
  }

  private void run(Runnable action) {
    if (pauses.remove(action)) {
      action.run();
    }
  }

  /** Ends calls under way with ClientClosedException. Harmless twice. */
  void close() {
    isClosing = true;
    isClosed = true;
    Deadline drained = deadline(DRAIN);
    enqueues.close(drained);
    settlements.close(drained);
    channel.shutdownNow();
    timer.shutdownNow();
    pauses.forEach(this::run);
  }
}
