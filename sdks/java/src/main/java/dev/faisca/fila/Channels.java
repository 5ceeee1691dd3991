// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

/** How a gRPC channel is made from a client's options, and what travels beside each request. */
final class Channels {
  /** The trace context that a call carries; absent for none. */
  static final CallOptions.Key<Map<String, String>> TRACE =
      CallOptions.Key.createWithDefault("fila-trace", Map.of());

  // Below the 60 s after which NAT tables and load balancers forget idle connections, and above the
  // interval from which the broker takes pings for a flood.
  private static final int KEEPALIVE_TIME_S = 20;
  // With the above, a silent peer is noticed before a default lease of 30 s ends.
  private static final int KEEPALIVE_TIMEOUT_S = 5;
  private static final int CONNECT_TIMEOUT_MS = 5_000;

  private static final String PEM_MARK = "-----BEGIN ";

  private Channels() {}

  /** A channel that connects with its first call. Fails with IllegalArgumentException. */
  static ManagedChannel open(ClientOptions options) {
    TlsOptions tls = options.tls();
    ChannelCredentials credentials = credentials(tls);
    NettyChannelBuilder builder;
    try {
      builder = NettyChannelBuilder.forTarget(options.uri(), credentials);
    } catch (IllegalArgumentException broken) {
      throw new IllegalArgumentException(
          "tls files cannot be used: " + broken.getMessage(), broken);
    }
    builder
        .userAgent("fila-java/" + version())
        .maxInboundMessageSize(options.maxMessageBytes())
        .keepAliveTime(KEEPALIVE_TIME_S, TimeUnit.SECONDS)
        .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
        .keepAliveWithoutCalls(true)
        .withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, CONNECT_TIMEOUT_MS)
        // What is sent again is decided in this package, which knows what may be.
        .disableRetry()
        .intercept(new Companion(options.apiKey()));
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

  private static ChannelCredentials credentials(TlsOptions tls) {
    if (tls == null) {
      return InsecureChannelCredentials.create();
    }
    TlsChannelCredentials.Builder credentials = TlsChannelCredentials.newBuilder();
    try {
      if (tls.caFile() != null) {
        credentials.trustManager(pem("caFile", tls.caFile()));
      }
      if (tls.certFile() != null) {
        credentials.keyManager(pem("certFile", tls.certFile()), pem("keyFile", tls.keyFile()));
      }
    } catch (IOException broken) {
      throw new IllegalArgumentException("cannot read tls files: " + broken.getMessage(), broken);
    }
    return credentials.build();
  }

  private static InputStream pem(String option, Path path) {
    byte[] content;
    try {
      content = Files.readAllBytes(path);
    } catch (IOException error) {
      String text = "cannot read tls %s \"%s\": %s".formatted(option, path, why(error));
      throw new IllegalArgumentException(text, error);
    }
    if (!new String(content, StandardCharsets.ISO_8859_1).contains(PEM_MARK)) {
      throw new IllegalArgumentException("tls %s \"%s\" is not a PEM file".formatted(option, path));
    }
    return new ByteArrayInputStream(content);
  }

  private static String why(IOException error) {
    if (error instanceof NoSuchFileException) {
      return "no such file";
    }
    return error instanceof AccessDeniedException ? "permission denied" : error.getMessage();
  }

  /** Puts the API key and the trace context beside every request. */
  private static final class Companion implements ClientInterceptor {
    private static final Metadata.Key<String> AUTHORIZATION = key("authorization");

    private final String authorization;

    Companion(String apiKey) {
      this.authorization = apiKey == null ? null : "Bearer " + apiKey;
    }

    private static Metadata.Key<String> key(String name) {
      return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(
        MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        public void start(Listener<A> listener, Metadata headers) {
          if (authorization != null) {
            headers.put(AUTHORIZATION, authorization);
          }
          options.getOption(TRACE).forEach((name, value) -> headers.put(key(name), value));
          super.start(listener, headers);
        }
      };
    }
  }
}
