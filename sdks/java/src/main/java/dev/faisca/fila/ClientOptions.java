// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.ClientInterceptor;
import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.regex.Pattern;

/**
 * What a user may choose about a client, checked when it is chosen.
 *
 * @param target one address, or the members of a cluster with commas between them
 */
record ClientOptions(
    String target,
    TlsOptions tls,
    ApiKey apiKey,
    Duration timeout,
    int maxMessageBytes,
    Backoff backoff,
    long maxBufferedBytes,
    Duration closeTimeout,
    List<ClientInterceptor> interceptors,
    Consumer<ConnectionEvent> connectionListener) {

  // The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
  private static final int MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

  // Half a second of a fast network, and little beside a Java heap.
  private static final long MAX_BUFFERED_BYTES = 32 * 1024 * 1024;

  private static final List<String> SCHEMES = List.of("dns:", "unix:");
  // Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
  private static final Pattern HOST_AND_PORT =
      Pattern.compile("([^:/\\[\\]]+|\\[[^/\\]]+]):(\\d{1,5})");

  // Below what checks it: fields are set in the order in which they are written.
  static final ClientOptions DEFAULT =
      new ClientOptions(
          "127.0.0.1:5555",
          null,
          ApiKey.NONE,
          Duration.ofSeconds(5),
          MAX_MESSAGE_BYTES,
          Backoff.DEFAULT,
          MAX_BUFFERED_BYTES,
          Duration.ofSeconds(5),
          List.of(),
          event -> {});

  ClientOptions {
    checkTarget(Objects.requireNonNull(target, "target"));
    Objects.requireNonNull(backoff, "backoff");
    if (timeout.isZero() || timeout.isNegative()) {
      throw new IllegalArgumentException("timeout must be positive, got " + timeout);
    }
    if (maxMessageBytes <= 0) {
      throw new IllegalArgumentException(
          "maxMessageBytes must be positive, got " + maxMessageBytes);
    }
    if (maxBufferedBytes <= 0) {
      throw new IllegalArgumentException(
          "maxBufferedBytes must be positive, got " + maxBufferedBytes);
    }
    if (closeTimeout.isNegative()) {
      throw new IllegalArgumentException("closeTimeout must not be negative, got " + closeTimeout);
    }
  }

  private static void checkTarget(String target) {
    if (SCHEMES.stream().anyMatch(target::startsWith)) {
      return;
    }
    for (String member : members(target)) {
      var parts = HOST_AND_PORT.matcher(member);
      int port = parts.matches() ? Integer.parseInt(parts.group(2)) : 0;
      if (port < 1 || port > 65535) {
        throw new IllegalArgumentException(
            "target \"%s\" is not host:port, for example \"127.0.0.1:5555\"".formatted(member));
      }
    }
  }

  private static List<String> members(String target) {
    return Arrays.stream(target.split(",", -1)).map(String::strip).toList();
  }

  /** The target as a URI, so that gRPC does not take a host's name for a scheme. */
  String uri() {
    if (SCHEMES.stream().anyMatch(target::startsWith)) {
      return target;
    }
    List<String> members = members(target);
    try {
      return members.size() == 1
          ? new URI("dns", "", "/" + target.strip(), null).toString()
          : Members.uri(members).toString();
    } catch (URISyntaxException impossible) {
      throw new IllegalArgumentException("target \"%s\" is no address".formatted(target));
    }
  }

  @Override
  public String toString() {
    return "ClientOptions(" + target + ")";
  }
}
