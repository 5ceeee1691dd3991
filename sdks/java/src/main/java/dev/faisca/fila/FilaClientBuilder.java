// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.ClientInterceptor;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Collects what a {@link FilaClient} is made of. What is not chosen has a default. */
public final class FilaClientBuilder {
  private String target = ClientOptions.DEFAULT.target();
  private TlsOptions tls;
  private ApiKey apiKey = ApiKey.NONE;
  private Duration timeout = ClientOptions.DEFAULT.timeout();
  private int maxMessageBytes = ClientOptions.DEFAULT.maxMessageBytes();
  private Backoff backoff = ClientOptions.DEFAULT.backoff();
  private long maxBufferedBytes = ClientOptions.DEFAULT.maxBufferedBytes();
  private Duration closeTimeout = ClientOptions.DEFAULT.closeTimeout();
  private List<ClientInterceptor> interceptors = List.of();
  private Consumer<ConnectionEvent> connectionListener =
      ClientOptions.DEFAULT.connectionListener();

  FilaClientBuilder() {}

  /**
   * The broker, as {@code host:port}; by default 127.0.0.1:5555. Several, with commas between them,
   * are the members of one cluster: they are tried in order until one answers, and again after its
   * loss.
   */
  public FilaClientBuilder target(String target) {
    this.target = target;
    return this;
  }

  /** Encrypts the connection; null, the default, does not. */
  public FilaClientBuilder tls(TlsOptions tls) {
    this.tls = tls;
    return this;
  }

  /** Authenticates every call; null, the default, does not. Never shown by an error or a log. */
  public FilaClientBuilder apiKey(String apiKey) {
    this.apiKey = ApiKey.of(apiKey);
    return this;
  }

  /**
   * Authenticates every call with what a function gives: it is asked for each call and each opening
   * of a stream, by any thread, and must be quick. What it throws fails that call, with {@link
   * UnauthenticatedException}; null is no key.
   */
  public FilaClientBuilder apiKey(Supplier<String> apiKey) {
    this.apiKey = ApiKey.of(Objects.requireNonNull(apiKey, "apiKey"));
    return this;
  }

  /**
   * Passes every call and stream through interceptors of gRPC, the first one outermost. They see no
   * API key, which is added after them.
   */
  public FilaClientBuilder interceptors(List<ClientInterceptor> interceptors) {
    this.interceptors = List.copyOf(interceptors);
    return this;
  }

  /**
   * Is told when the connection is there, is lost, or cannot be made: each change once, one after
   * the other. What it throws is logged and changes nothing.
   */
  public FilaClientBuilder onConnection(Consumer<ConnectionEvent> listener) {
    this.connectionListener = Objects.requireNonNull(listener, "listener");
    return this;
  }

  /** The deadline of every request, by default 5 s; streams have none. */
  public FilaClientBuilder timeout(Duration timeout) {
    this.timeout = timeout;
    return this;
  }

  /** The largest request and the largest answer, by default 64 MiB. */
  public FilaClientBuilder maxMessageBytes(int maxMessageBytes) {
    this.maxMessageBytes = maxMessageBytes;
    return this;
  }

  /** The waits between attempts to reach a broker that is away. */
  public FilaClientBuilder backoff(Backoff backoff) {
    this.backoff = backoff;
    return this;
  }

  /**
   * How much of what single calls send may wait while earlier requests are under way, by default
   * 32 MiB. A call beyond it waits, in the thread that makes it and within its deadline.
   */
  public FilaClientBuilder maxBufferedBytes(long maxBufferedBytes) {
    this.maxBufferedBytes = maxBufferedBytes;
    return this;
  }

  /** How long close waits for the answers of calls under way, by default 5 s; zero does not. */
  public FilaClientBuilder closeTimeout(Duration closeTimeout) {
    this.closeTimeout = closeTimeout;
    return this;
  }

  /** The client. Fails with IllegalArgumentException that names what cannot be. */
  public FilaClient build() {
    return new FilaClient(options());
  }

  ClientOptions options() {
    return new ClientOptions(
        target,
        tls,
        apiKey,
        timeout,
        maxMessageBytes,
        backoff,
        maxBufferedBytes,
        closeTimeout,
        interceptors,
        connectionListener);
  }
}
