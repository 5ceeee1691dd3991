// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.time.Duration;
import org.junit.jupiter.api.Test;

/** Payloads are bytes, and may be a text or JSON of the user's library. */
class PayloadTest extends BrokerTest {
  /** Reads and writes as JSON libraries do: overloaded, with checked exceptions. */
  private static final class Library {
    int read(byte[] json, Class<Integer> type) {
      throw new AssertionError();
    }

    <T> T read(String json, Class<T> type) throws IOException {
      if (!json.startsWith("{")) {
        throw new IOException("expected {");
      }
      return type.cast(Integer.valueOf(json.substring(1, json.length() - 1)));
    }

    String write(Object value) throws IOException {
      if (value == null) {
        throw new IOException("no value");
      }
      return "{" + value + "}";
    }
  }

  private static final Library LIBRARY = new Library();

  private ConsumeMessage received(byte[] payload) throws FilaException {
    willAnswer(
        "Receive",
        ReceiveResponse.newBuilder().addMessages(ScriptedBroker.message("m", payload)).build());
    return client.receive("orders", 1, Duration.ZERO).get(0);
  }

  private String enqueued(EnqueueMessage.Builder message) throws FilaException {
    client.enqueue(message.build());
    var calls = broker.requests("EnqueueBatch", EnqueueBatchRequest.class);
    var last = calls.get(calls.size() - 1).getMessages(0);
    assertTrue(last.getHeadersMap().isEmpty());
    return last.getPayload().toString(UTF_8);
  }

  @Test
  void aTextTravelsAsItIs() throws Exception {
    assertEquals("grüße 🐟", enqueued(EnqueueMessage.to("orders").text("grüße 🐟")));
    assertEquals("grüße 🐟", received("grüße 🐟".getBytes(UTF_8)).text());
    assertEquals("", received(new byte[0]).text());
  }

  @Test
  void aPayloadThatIsNoTextIsNamed() throws Exception {
    ConsumeMessage binary = received(new byte[] {'a', (byte) 0xff});
    UncheckedIOException error = assertThrows(UncheckedIOException.class, binary::text);
    assertEquals("the payload of message \"m\" is not UTF-8", error.getMessage());
    assertInstanceOf(CharacterCodingException.class, error.getCause());
    assertThrows(
        UncheckedIOException.class, () -> binary.json(Integer.class, LIBRARY::read));
  }

  @Test
  void halfACharacterIsRefusedAsText() {
    IllegalArgumentException error =
        assertThrows(
            IllegalArgumentException.class, () -> EnqueueMessage.to("orders").text("x\ud800y"));
    assertEquals("text is no text: half of a surrogate pair at 1", error.getMessage());
  }

  @Test
  void jsonIsTheBusinessOfALibrary() throws Exception {
    assertEquals("{42}", enqueued(EnqueueMessage.to("orders").json(42, LIBRARY::write)));
    int number = received("{42}".getBytes(UTF_8)).json(Integer.class, LIBRARY::read);
    assertEquals(42, number);
  }

  @Test
  void whatALibraryCannotReadNamesTheMessageAndNotItsPayload() throws Exception {
    ConsumeMessage wrong = received("secret".getBytes(UTF_8));
    UncheckedIOException error =
        assertThrows(
            UncheckedIOException.class, () -> wrong.json(Integer.class, LIBRARY::read));
    assertEquals("the payload of message \"m\" is no JSON of Integer", error.getMessage());
    assertEquals("expected {", error.getCause().getMessage());
    IllegalStateException odd = new IllegalStateException("odd");
    error =
        assertThrows(
            UncheckedIOException.class,
            () ->
                wrong.json(
                    Integer.class,
                    (json, type) -> {
                      throw odd;
                    }));
    assertSame(odd, error.getCause().getCause());
  }

  @Test
  void whatALibraryCannotWriteIsRefused() {
    IllegalArgumentException error =
        assertThrows(
            IllegalArgumentException.class,
            () -> EnqueueMessage.to("orders").json(null, LIBRARY::write));
    assertEquals("no value", error.getCause().getMessage());
  }

  @Test
  void aBufferIsLeftWhereItIs() throws Exception {
    ByteBuffer buffer = ByteBuffer.wrap("[hello]".getBytes(UTF_8)).position(1).limit(6);
    assertEquals("hello", enqueued(EnqueueMessage.to("orders").payload(buffer)));
    assertEquals(1, buffer.position());
  }

  @Test
  void aPayloadCanBeSeenWithoutACopyButNotChanged() throws Exception {
    ConsumeMessage message = received("hello".getBytes(UTF_8));
    ByteBuffer view = message.payloadBuffer();
    assertTrue(view.isReadOnly());
    assertEquals("hello", UTF_8.decode(view).toString());
    assertEquals(5, message.payloadBuffer().remaining());
  }
}
