// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/** Collects what a {@link FilaClient} is made of. What is not chosen has a default. */
public final class FilaClientBuilder {
  private String target = ClientOptions.DEFAULT.target();
  private TlsOptions tls;
  private String apiKey;
  private Duration timeout = ClientOptions.DEFAULT.timeout();
  private int maxMessageBytes = ClientOptions.DEFAULT.maxMessageBytes();
  private Backoff backoff = ClientOptions.DEFAULT.backoff();
  private long maxBufferedBytes = ClientOptions.DEFAULT.maxBufferedBytes();
  private Duration closeTimeout = ClientOptions.DEFAULT.closeTimeout();

  FilaClientBuilder() {}

  /** The broker, as {@code host:port}; by default 127.0.0.1:5555. */
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
    this.apiKey = apiKey;
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
    return new FilaClient(
        new ClientOptions(
            target,
            tls,
            apiKey,
            timeout,
            maxMessageBytes,
            backoff,
            maxBufferedBytes,
            closeTimeout));
  }
}
