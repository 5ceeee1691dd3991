// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ClientInterceptors.CheckedForwardingClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

/** How a gRPC channel is made from a client's options, and what travels beside each request. */
final class Channels {
  /** The trace context that a call carries; absent for none. */
  static final CallOptions.Key<Map<String, String>> TRACE =
      CallOptions.Key.createWithDefault("fila-trace", Map.of());

  /** The API key that a call carries; absent where it is asked for when the call starts. */
  static final CallOptions.Key<String> KEY = CallOptions.Key.create("fila-api-key");

  // Below the 60 s after which NAT tables and load balancers forget idle connections, and above the
  // interval from which the broker takes pings for a flood.
  private static final int KEEPALIVE_TIME_S = 20;
  // With the above, a silent peer is noticed before a default lease of 30 s ends.
  private static final int KEEPALIVE_TIMEOUT_S = 5;
  private static final int CONNECT_TIMEOUT_MS = 5_000;

  // More than what gRPC takes for a time at all.
  private static final int IDLE_NEVER_DAYS = 1000;

  static {
    Members.register();
  }

  private Channels() {}

  /** A channel that connects with its first call. Fails with IllegalArgumentException. */
  static ManagedChannel open(ClientOptions options) {
    TlsOptions tls = options.tls();
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget(options.uri(), Certificates.credentials(tls))
            .userAgent("fila-java/" + version())
            .maxInboundMessageSize(options.maxMessageBytes())
            .keepAliveTime(KEEPALIVE_TIME_S, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true)
            .withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, CONNECT_TIMEOUT_MS)
            // What is sent again is decided in this package, which knows what may be.
            .disableRetry()
            // A connection that is not used is still one: only what ends it by itself was a loss.
            .idleTimeout(IDLE_NEVER_DAYS, TimeUnit.DAYS);
    if (tls != null && tls.serverName() != null) {
      builder.overrideAuthority(tls.serverName());
    }
    return builder.build();
  }

  /** This package's version, as its manifest has it. */
  static String version() {
    Properties properties = new Properties();
    try (InputStream stream = Channels.class.getResourceAsStream("fila.properties")) {
      properties.load(stream);
    } catch (IOException broken) {
      throw new UncheckedIOException(broken);
    }
    return properties.getProperty("version");
  }

  /** The channel with what travels beside each request, and what the user wants to see of it. */
  static Channel intercepted(ManagedChannel channel, ClientOptions options) {
    List<ClientInterceptor> all = new ArrayList<>();
    if (!options.interceptors().isEmpty()) {
      all.add(new Fence());
    }
    all.addAll(options.interceptors());
    all.add(new Companion(options.apiKey()));
    return ClientInterceptors.interceptForward(channel, all);
  }

  /** What an interceptor throws ends its call, and nothing else. */
  private static final class Fence implements ClientInterceptor {
    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(
        MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      ClientCall<Q, A> call;
      try {
        call = next.newCall(method, options);
      } catch (RuntimeException defect) {
        return new Stillborn<>(Status.fromThrowable(defect));
      }
      return new CheckedForwardingClientCall<>(call) {
        @Override
        protected void checkedStart(Listener<A> listener, Metadata headers) {
          delegate().start(listener, headers);
        }
      };
    }
  }

  /** A call that ends when it is started. */
  private static final class Stillborn<Q, A> extends ClientCall<Q, A> {
    private final Status status;

    Stillborn(Status status) {
      this.status = status;
    }

    @Override
    public void start(Listener<A> listener, Metadata headers) {
      listener.onClose(status, new Metadata());
    }

    @Override
    public void request(int count) {}

    @Override
    public void cancel(String message, Throwable cause) {}

    @Override
    public void halfClose() {}

    @Override
    public void sendMessage(Q message) {}
  }

  /** Puts the API key and the trace context beside every request. */
  private static final class Companion implements ClientInterceptor {
    private static final Metadata.Key<String> AUTHORIZATION = key("authorization");

    private final ApiKey apiKey;

    Companion(ApiKey apiKey) {
      this.apiKey = apiKey;
    }

    private static Metadata.Key<String> key(String name) {
      return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(
        MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      return new CheckedForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        protected void checkedStart(Listener<A> listener, Metadata headers)
            throws StatusException {
          String given = options.getOption(KEY);
          String known = given == null ? apiKey.get() : given;
          if (!known.isEmpty()) {
            headers.put(AUTHORIZATION, "Bearer " + known);
          }
          options.getOption(TRACE).forEach((name, value) -> headers.put(key(name), value));
          delegate().start(listener, headers);
        }
      };
    }
  }
}
