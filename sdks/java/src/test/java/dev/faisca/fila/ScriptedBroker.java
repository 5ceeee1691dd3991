// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.ByteString;
import com.google.protobuf.Int32Value;
import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.ConsumeResponse;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchResponse;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import dev.faisca.fila.internal.v1.FilaAdminGrpc;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.ItemResult;
import dev.faisca.fila.internal.v1.MessageMetadata;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackBatchResponse;
import dev.faisca.fila.internal.v1.PipelineRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.ServiceDescriptor;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A broker that does what a test tells it: real gRPC over loopback, answers from a script. It
 * records what arrived (method, request, metadata, time left), so that tests can look at the wire
 * and not at the client's inside.
 */
final class ScriptedBroker implements AutoCloseable {
  /**
   * One call as it arrived; {@code deadline} is null if it has none, {@code piping} if it came
   * alone.
   */
  record Seen(
      String method, Object request, Metadata metadata, Deadline deadline, Piping piping) {
    String metadata(String name) {
      return metadata.get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
    }

    double secondsLeft() {
      return deadline.timeRemaining(TimeUnit.MILLISECONDS) / 1000.0;
    }
  }

  /** What to do with one call. */
  @FunctionalInterface
  interface Script {
    void answer(Object request, StreamObserver<Object> observer) throws Exception;
  }

  /** A test's own answer to one unary request. */
  @FunctionalInterface
  interface Answer {
    Object to(Object request) throws Exception;
  }

  private static final Context.Key<Metadata> METADATA = Context.key("metadata");
  private static final long PATIENCE_S = 30;

  final List<Seen> seen = new CopyOnWriteArrayList<>();
  private final Map<String, Script> scripts = new ConcurrentHashMap<>();
  // Open consume streams, which learn why they end when the broker stops, as from the real one.
  private final List<StreamObserver<Object>> streams = new CopyOnWriteArrayList<>();
  /** Pipelines in the order in which they were opened. */
  final List<Piping> pipings = new CopyOnWriteArrayList<>();

  /** How often a pipeline was asked for where there are none. */
  final AtomicInteger pipelinesRefused = new AtomicInteger();

  private volatile boolean hasPipelines = true;
  private final ExecutorService workers = Executors.newCachedThreadPool();
  private final AtomicInteger ids = new AtomicInteger();
  private final Server server;
  private final int port;

  ScriptedBroker() {
    this(0, InsecureServerCredentials.create(), broker -> {});
  }

  /** With a script before it answers anybody: a client may be waiting for its port. */
  ScriptedBroker(
      int port,
      ServerCredentials credentials,
      java.util.function.Consumer<ScriptedBroker> script) {
    respond("EnqueueBatch", this::store);
    respond("AckBatch", ScriptedBroker::acked);
    respond("NackBatch", ScriptedBroker::nacked);
    respond("SettleGrants", ScriptedBroker::settled);
    respond("Check", request -> Int32Value.of(Health.SERVING));
    script.accept(this);
    server =
        NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port), credentials)
            .maxInboundMessageSize(64 << 20)
            .addService(service(FilaServiceGrpc.getServiceDescriptor()))
            .addService(service(FilaAdminGrpc.getServiceDescriptor()))
            .addService(health())
            .build();
    try {
      server.start();
    } catch (IOException taken) {
      throw new UncheckedIOException(taken);
    }
    this.port = server.getPort();
  }

  int port() {
    return port;
  }

  String target() {
    return "127.0.0.1:" + port;
  }

  /** Is older than pipelines from now on. */
  void withoutPipelines() {
    hasPipelines = false;
  }

  void script(String method, Script script) {
    scripts.put(method, script);
  }

  void respond(String method, Answer answer) {
    script(
        method,
        (request, observer) -> {
          observer.onNext(answer.to(request));
          observer.onCompleted();
        });
  }

  void refuse(String method, Status.Code code, String text, String reason) {
    script(method, (request, observer) -> observer.onError(refusal(code, text, reason)));
  }

  static Exception refusal(Status.Code code, String text, String reason) {
    Metadata trailers = new Metadata();
    if (reason != null) {
      trailers.put(Metadata.Key.of("fila-reason", Metadata.ASCII_STRING_MARSHALLER), reason);
    }
    return code.toStatus().withDescription(text).asRuntimeException(trailers);
  }

  List<Seen> calls(String method) {
    return seen.stream().filter(call -> call.method.equals(method)).toList();
  }

  <T> List<T> requests(String method, Class<T> kind) {
    return calls(method).stream().map(call -> kind.cast(call.request)).toList();
  }

  /** How many messages each enqueue request held. */
  List<Integer> enqueueSizes() {
    return requests("EnqueueBatch", EnqueueBatchRequest.class).stream()
        .map(EnqueueBatchRequest::getMessagesCount)
        .toList();
  }

  @Override
  public void close() {
    workers.shutdown();
    pipings.forEach(
        piping -> piping.end(refusal(Status.Code.UNAVAILABLE, "going away", "SHUTTING_DOWN")));
    for (StreamObserver<Object> stream : streams) {
      if (!((ServerCallStreamObserver<Object>) stream).isCancelled()) {
        stream.onError(refusal(Status.Code.UNAVAILABLE, "going away", "SHUTTING_DOWN"));
      }
    }
    streams.clear();
    server.shutdownNow();
    try {
      if (!server.awaitTermination(PATIENCE_S, TimeUnit.SECONDS)) {
        throw new AssertionError("the scripted broker does not stop");
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  // --- Answers ----------------------------------------------------------------------------------

  /** The id of a message is its payload and a number, so that tests can tell whose it is. */
  Object store(Object request) {
    EnqueueBatchResponse.Builder answer = EnqueueBatchResponse.newBuilder();
    for (EnqueueRequest message : ((EnqueueBatchRequest) request).getMessagesList()) {
      String payload = message.getPayload().toString(StandardCharsets.UTF_8);
      answer.addResultsBuilder().setMessageId(payload + "#" + ids.incrementAndGet());
    }
    return answer.build();
  }

  static Object acked(Object request) {
    AckBatchResponse.Builder answer = AckBatchResponse.newBuilder();
    ((AckBatchRequest) request)
        .getAcksList()
        .forEach(ack -> answer.addResults(ItemResult.getDefaultInstance()));
    return answer.build();
  }

  static Object nacked(Object request) {
    NackBatchResponse.Builder answer = NackBatchResponse.newBuilder();
    ((NackBatchRequest) request)
        .getNacksList()
        .forEach(nack -> answer.addResults(ItemResult.getDefaultInstance()));
    return answer.build();
  }

  static Object settled(Object request) {
    SettleGrantsResponse.Builder answer = SettleGrantsResponse.newBuilder();
    ((SettleGrantsRequest) request)
        .getSettlementsList()
        .forEach(grant -> answer.addResultsBuilder().setMessages(grant.getExpectedMessages()));
    return answer.build();
  }

  /** A delivered message as the broker would send it. */
  static dev.faisca.fila.internal.v1.Message message(String id, byte[] payload) {
    return dev.faisca.fila.internal.v1.Message.newBuilder()
        .setId(id)
        .setPayload(ByteString.copyFrom(payload))
        .setMetadata(
            MessageMetadata.newBuilder()
                .setQueueId("orders")
                .setFairnessKey("default")
                .setLeaseToken("token-of-" + id))
        .build();
  }

  static ConsumeResponse frame(String... ids) {
    ConsumeResponse.Builder frame = ConsumeResponse.newBuilder();
    for (String id : ids) {
      frame.addMessages(message(id, new byte[0]));
    }
    return frame.build();
  }

  /** A frame whose messages share a token and a lease; the broker's clock is not ours. */
  static ConsumeResponse leased(String token, Duration lease, String... ids) {
    ConsumeResponse.Builder frame = frame(ids).toBuilder();
    for (var message : frame.getMessagesBuilderList()) {
      message.getMetadataBuilder().setLeaseToken(token);
      var times = message.getTimestampsBuilder();
      times.getLeasedAtBuilder().setSeconds(1_000);
      times
          .getLeaseExpiresAtBuilder()
          .setSeconds(1_000 + lease.toSeconds())
          .setNanos(lease.getNano());
    }
    return frame.build();
  }

  /** Frames, then a stream that stays open; the latch opens when the client has left it. */
  CountDownLatch deliver(ConsumeResponse... frames) {
    CountDownLatch left = new CountDownLatch(1);
    script(
        "Consume",
        (request, observer) -> {
          ((ServerCallStreamObserver<Object>) observer).setOnCancelHandler(left::countDown);
          streams.add(observer);
          for (ConsumeResponse frame : frames) {
            observer.onNext(frame);
          }
        });
    return left;
  }

  // --- The server -------------------------------------------------------------------------------

  private ServerServiceDefinition service(ServiceDescriptor descriptor) {
    ServerServiceDefinition.Builder service = ServerServiceDefinition.builder(descriptor);
    descriptor.getMethods().forEach(method -> add(service, method));
    return ServerInterceptors.intercept(service.build(), new Recorder());
  }

  private <Q, A> void add(ServerServiceDefinition.Builder service, MethodDescriptor<Q, A> method) {
    String name = method.getBareMethodName();
    if (method.getType() == MethodDescriptor.MethodType.BIDI_STREAMING) {
      service.addMethod(
          FilaServiceGrpc.getPipelineMethod(), ServerCalls.asyncBidiStreamingCall(this::pipe));
      return;
    }
    if (method.getType() == MethodDescriptor.MethodType.SERVER_STREAMING) {
      service.addMethod(
          method,
          ServerCalls.asyncServerStreamingCall(
              (request, observer) -> run(name, request, observer)));
    } else {
      service.addMethod(
          method, ServerCalls.asyncUnaryCall((request, observer) -> run(name, request, observer)));
    }
  }

  /** Not recorded: a client may ask by itself. */
  private ServerServiceDefinition health() {
    return ServerServiceDefinition.builder("grpc.health.v1.Health")
        .addMethod(
            Health.CHECK,
            ServerCalls.asyncUnaryCall(
                (request, observer) -> {
                  @SuppressWarnings("unchecked")
                  StreamObserver<Object> answers = (StreamObserver<Object>) (Object) observer;
                  follow("Check", request, answers);
                }))
        .build();
  }

  private StreamObserver<PipelineRequest> pipe(StreamObserver<PipelineResponse> observer) {
    if (!hasPipelines) {
      pipelinesRefused.incrementAndGet();
      return ServerCalls.asyncUnimplementedStreamingCall(
          FilaServiceGrpc.getPipelineMethod(), observer);
    }
    Metadata metadata = METADATA.get(Context.current());
    Piping piping = new Piping(observer, seen, metadata, this::follow, workers);
    pipings.add(piping);
    return piping;
  }

  @SuppressWarnings("unchecked")
  private <A> void run(String name, Object request, StreamObserver<A> observer) {
    Context context = Context.current();
    seen.add(new Seen(name, request, METADATA.get(context), context.getDeadline(), null));
    follow(name, request, (StreamObserver<Object>) observer);
  }

  private void follow(String name, Object request, StreamObserver<Object> observer) {
    try {
      scripts.get(name).answer(request, observer);
    } catch (Exception unexpected) {
      observer.onError(Status.UNKNOWN.withDescription(unexpected.toString()).asException());
    }
  }

  private static final class Recorder implements ServerInterceptor {
    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      Context context = Context.current().withValue(METADATA, headers);
      return io.grpc.Contexts.interceptCall(context, call, headers, next);
    }
  }
}
