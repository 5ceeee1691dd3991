// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.ErrorReason;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Every reason and every status becomes one exception, by name and never by text. */
class ErrorsTest extends BrokerTest {
  private static final Map<Status.Code, Class<? extends FilaException>> BY_STATUS =
      Map.ofEntries(
          Map.entry(Status.Code.CANCELLED, CancelledException.class),
          Map.entry(Status.Code.UNKNOWN, InternalException.class),
          Map.entry(Status.Code.INVALID_ARGUMENT, InvalidArgumentException.class),
          Map.entry(Status.Code.DEADLINE_EXCEEDED, DeadlineExceededException.class),
          Map.entry(Status.Code.NOT_FOUND, QueueNotFoundException.class),
          Map.entry(Status.Code.ALREADY_EXISTS, QueueAlreadyExistsException.class),
          Map.entry(Status.Code.PERMISSION_DENIED, PermissionDeniedException.class),
          Map.entry(Status.Code.UNAUTHENTICATED, UnauthenticatedException.class),
          Map.entry(Status.Code.RESOURCE_EXHAUSTED, ResourceExhaustedException.class),
          Map.entry(Status.Code.FAILED_PRECONDITION, InternalException.class),
          Map.entry(Status.Code.ABORTED, InternalException.class),
          Map.entry(Status.Code.OUT_OF_RANGE, InternalException.class),
          Map.entry(Status.Code.UNIMPLEMENTED, UnimplementedException.class),
          Map.entry(Status.Code.INTERNAL, InternalException.class),
          Map.entry(Status.Code.UNAVAILABLE, UnavailableException.class),
          Map.entry(Status.Code.DATA_LOSS, InternalException.class));

  private static Stream<ErrorReason> reasons() {
    return Arrays.stream(ErrorReason.values())
        .filter(reason -> reason != ErrorReason.UNRECOGNIZED && reason.getNumber() != 0);
  }

  private static String name(ErrorReason reason) {
    return reason.name().substring("ERROR_REASON_".length());
  }

  /** QUEUE_NOT_FOUND is QueueNotFoundException: one class per reason, named after it. */
  private static String className(ErrorReason reason) {
    StringBuilder name = new StringBuilder();
    for (String word : name(reason).split("_")) {
      name.append(word.charAt(0)).append(word.substring(1).toLowerCase(Locale.ROOT));
    }
    return name + "Exception";
  }

  @ParameterizedTest
  @MethodSource("reasons")
  void theReasonOfACallChoosesTheClass(ErrorReason reason) {
    // A status that says something else: the reason wins.
    broker.refuse("DeleteQueue", Status.Code.ABORTED, "some text", name(reason));
    FilaException error = assertThrows(FilaException.class, () -> client.deleteQueue("orders"));
    assertEquals(className(reason), error.getClass().getSimpleName());
    assertEquals("some text", error.getMessage());
    assertEquals("ABORTED", error.code());
    assertEquals(name(reason), error.reason());
    assertEquals("orders", error.queue());
  }

  @ParameterizedTest
  @MethodSource("reasons")
  void theReasonOfAnItemChoosesTheClass(ErrorReason reason) {
    AckBatchResponse.Builder answer = AckBatchResponse.newBuilder();
    answer.addResultsBuilder().getErrorBuilder().setReason(reason).setMessage("some text");
    broker.respond("AckBatch", request -> answer.build());
    FilaException error =
        assertThrows(FilaException.class, () -> client.ack("orders", "m-1", null));
    assertEquals(className(reason), error.getClass().getSimpleName());
    assertEquals("some text", error.getMessage());
    assertEquals(name(reason), error.reason());
    assertEquals(List.of("orders", "m-1"), List.of(error.queue(), error.messageId()));
    assertFalse(error.code().isEmpty());
  }

  @ParameterizedTest
  @EnumSource(value = Status.Code.class, mode = EnumSource.Mode.EXCLUDE, names = "OK")
  void aStatusWithoutAReasonChoosesTheClass(Status.Code code) {
    broker.refuse("EnqueueBatch", code, "some text", null);
    FilaException error = assertThrows(FilaException.class, () -> client.enqueue(message("x")));
    assertEquals(BY_STATUS.get(code), error.getClass());
    assertEquals(code.name(), error.code());
    assertNull(error.reason());
    assertEquals("orders", error.queue());
  }

  @ParameterizedTest
  @EnumSource(
      value = Status.Code.class,
      mode = EnumSource.Mode.EXCLUDE,
      names = {"OK", "UNAVAILABLE", "CANCELLED"})
  void theStatusOfAStreamReachesTheIteration(Status.Code code) throws Exception {
    broker.refuse("Consume", code, "some text", null);
    Consumer consumer = client.consume("orders");
    UncheckedFilaException error =
        assertThrows(UncheckedFilaException.class, () -> consumer.iterator().next());
    assertEquals(BY_STATUS.get(code), error.getCause().getClass());
    assertEquals("some text", error.getMessage());
    assertEquals("orders", error.getCause().queue());
    assertFalse(consumer.iterator().hasNext());
    assertTrue(consumer.isClosed());
  }

  @Test
  void notFoundWithoutAReasonIsAboutWhatTheCallNamed() {
    for (String method : List.of("AckBatch", "CancelMessage", "DeleteQueue", "GetConfig")) {
      broker.refuse(method, Status.Code.NOT_FOUND, "", null);
    }
    assertThrows(MessageNotFoundException.class, () -> client.ack("orders", "m-1", null));
    assertThrows(MessageNotFoundException.class, () -> client.cancel("orders", "m-1"));
    assertThrows(QueueNotFoundException.class, () -> client.deleteQueue("orders"));
    // Nothing that was named can be missing, so NOT_FOUND says nothing that is known.
    assertThrows(InternalException.class, () -> client.getConfig("key"));
  }

  @Test
  void aReasonThatIsNewerThanTheClientFallsBack() {
    broker.refuse("DeleteQueue", Status.Code.RESOURCE_EXHAUSTED, "text", "MOON_FULL");
    FilaException error =
        assertThrows(ResourceExhaustedException.class, () -> client.deleteQueue("orders"));
    assertEquals("MOON_FULL", error.reason());
    AckBatchResponse.Builder answer = AckBatchResponse.newBuilder();
    answer.addResultsBuilder().getErrorBuilder().setReasonValue(999).setMessage("text");
    broker.respond("AckBatch", request -> answer.build());
    error = assertThrows(InternalException.class, () -> client.ack("orders", "m-1", null));
    assertEquals("999", error.reason());
  }

  @Test
  void aBrokerThatMiscountsIsAnInternalError() {
    broker.respond("AckBatch", request -> AckBatchResponse.getDefaultInstance());
    FilaException error =
        assertThrows(InternalException.class, () -> client.ack("orders", "m-1", null));
    assertEquals("the broker gave 0 results for 1 items", error.getMessage());
  }

  @Test
  void textKeepsWhitespaceAndCharactersBeyondTheBmp() {
    String text = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \ud83d\ude08\t\n";
    broker.refuse("DeleteQueue", Status.Code.INTERNAL, text, null);
    FilaException error = assertThrows(InternalException.class, () -> client.deleteQueue("orders"));
    assertEquals(text, error.getMessage());
  }

  @Test
  void anErrorWithoutTextSaysWhatItsClassMeans() {
    broker.refuse("DeleteQueue", Status.Code.NOT_FOUND, "", "QUEUE_NOT_FOUND");
    FilaException error =
        assertThrows(QueueNotFoundException.class, () -> client.deleteQueue("orders"));
    assertEquals("the queue does not exist", error.getMessage());
  }

  @Test
  void anErrorKeepsItsCauseAndSaysWhoAsked() {
    broker.refuse("DeleteQueue", Status.Code.INTERNAL, "text", null);
    FilaException error = assertThrows(InternalException.class, () -> client.deleteQueue("orders"));
    assertInstanceOf(StatusRuntimeException.class, error.getCause());
    assertTrue(
        Arrays.stream(error.getStackTrace())
            .anyMatch(frame -> frame.getClassName().equals(ErrorsTest.class.getName())));
  }

  @Test
  void whatCanBeTriedAgainIsMarked() {
    List<String> retryable = List.of("OVERLOADED", "QUEUE_FULL", "DISK_FULL", "SHUTTING_DOWN");
    reasons()
        .map(ErrorsTest::name)
        .forEach(
            reason -> {
              FilaException error = Errors.fromReason(reason, "", null, null);
              assertEquals(retryable.contains(reason), error.isRetryable(), reason);
            });
    List<String> codes = List.of("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED");
    for (Status.Code code : BY_STATUS.keySet()) {
      CallFailure failure = new CallFailure("", code.name(), null, null, null, null);
      FilaException error = Errors.fromStatus(failure);
      assertEquals(codes.contains(code.name()), error.isRetryable(), code.name());
    }
  }

  @Test
  void nobodyThereIsUnavailableAndSaysWhere() {
    broker.close();
    FilaException error =
        assertThrows(UnavailableException.class, () -> client.enqueue(message("x")));
    assertTrue(error.isRetryable());
    assertTrue(
        error.getMessage().startsWith("cannot reach \"" + broker.target() + "\": "),
        error.getMessage());
  }

  @Test
  void anErrorSurvivesSerialization() throws Exception {
    FilaException error = Errors.fromReason("LEASE_EXPIRED", "text", "orders", "m-1");
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream output = new ObjectOutputStream(bytes)) {
      output.writeObject(error);
    }
    try (ObjectInputStream input =
        new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
      FilaException copy = assertInstanceOf(LeaseExpiredException.class, input.readObject());
      assertEquals(
          List.of("text", "LEASE_EXPIRED", "orders", "m-1"),
          List.of(copy.getMessage(), copy.reason(), copy.queue(), copy.messageId()));
    }
  }

  @Test
  void resultsThrowTheirErrors() throws Exception {
    FilaException error = Errors.fromReason("QUEUE_FULL", "text", "orders", null);
    assertEquals("m-1", new EnqueueResult("m-1", false, null).orThrow());
    assertThrows(QueueFullException.class, new EnqueueResult("", false, error)::orThrow);
    new SettleResult("m-1", null).orThrow();
    assertThrows(QueueFullException.class, new SettleResult("m-1", error)::orThrow);
  }

  @Test
  void backoffDoublesToItsBoundAndUsesAllOfTheRange() {
    Backoff backoff = Backoff.DEFAULT;
    List<Long> waits =
        Stream.iterate(0, n -> n + 1).limit(8).map(n -> backoff.delay(n, 1).toMillis()).toList();
    assertEquals(List.of(100L, 200L, 400L, 800L, 1600L, 3200L, 5000L, 5000L), waits);
    assertEquals(Duration.ofSeconds(5), backoff.delay(Integer.MAX_VALUE, 1));
    assertEquals(Duration.ZERO, backoff.delay(3, 0));
    assertEquals(Duration.ofMillis(400), backoff.delay(3, 0.5));
    assertThrows(
        IllegalArgumentException.class, () -> new Backoff(Duration.ZERO, Duration.ofSeconds(1)));
    assertThrows(
        IllegalArgumentException.class,
        () -> new Backoff(Duration.ofSeconds(2), Duration.ofSeconds(1)));
  }
}
