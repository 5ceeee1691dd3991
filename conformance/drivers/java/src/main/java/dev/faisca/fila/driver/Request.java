// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** The fields of one request. One that is absent or null leaves the choice to the SDK. */
record Request(JsonObject fields) {

  String op() {
    return text("op");
  }

  /** The field as it came; null if it is absent or null. */
  JsonElement field(String name) {
    JsonElement field = fields.get(name);
    return field instanceof JsonNull ? null : field;
  }

  String text(String name) {
    return value(name, JsonElement::getAsString);
  }

  Duration millis(String name) {
    return value(name, Request::duration);
  }

  /** Milliseconds, of which there may be a fraction. */
  static Duration duration(JsonElement field) {
    BigDecimal millis = field.getAsBigDecimal();
    BigDecimal whole = millis.setScale(0, RoundingMode.FLOOR);
    long nanos = millis.subtract(whole).movePointRight(6).longValue();
    return Duration.ofMillis(whole.longValueExact()).plusNanos(nanos);
  }

  Path path(String name) {
    return value(name, field -> Path.of(field.getAsString()));
  }

  boolean isTrue(String name) {
    return Boolean.TRUE.equals(value(name, JsonElement::getAsBoolean));
  }

  int number(String name) {
    return fields.get(name).getAsInt();
  }

  /** A number that may be large; 0 if there is none. */
  long position(String name) {
    JsonElement field = field(name);
    return field == null ? 0 : field.getAsLong();
  }

  /** An object among the fields; null if there is none. */
  Request nested(String name) {
    return value(name, field -> new Request(field.getAsJsonObject()));
  }

  /** A list of objects among the fields. */
  Stream<Request> list(String name) {
    return StreamSupport.stream(fields.getAsJsonArray(name).spliterator(), false)
        .map(element -> new Request(element.getAsJsonObject()));
  }

  /** A list of texts among the fields; empty if there is none. */
  Stream<String> texts(String name) {
    JsonElement field = field(name);
    return field == null
        ? Stream.empty()
        : StreamSupport.stream(field.getAsJsonArray().spliterator(), false)
            .map(JsonElement::getAsString);
  }

  /** Passes a field on, if there is one. */
  void ifPresent(String name, Consumer<JsonElement> take) {
    JsonElement field = field(name);
    if (field != null) {
      take.accept(field);
    }
  }

  static byte[] bytes(JsonElement field) {
    return Base64.getDecoder().decode(field.getAsString());
  }

  private <T> T value(String name, Function<JsonElement, T> read) {
    JsonElement field = field(name);
    return field == null ? null : read.apply(field);
  }
}
