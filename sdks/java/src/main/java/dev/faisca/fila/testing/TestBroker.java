// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.testing;

import dev.faisca.fila.FilaClient;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * A real broker for tests: {@code fila-server} as a process of its own, on a free port of the
 * loopback interface, with a directory of its own that goes away with it. It ends when it is
 * closed, and at the latest with this process.
 *
 * <p>A start takes about a second, so have one for all tests, and a queue for each.
 */
public final class TestBroker implements AutoCloseable {
  private static final String PROGRAM = "fila-server";
  private static final String PROGRAM_VARIABLE = "FILA_SERVER";
  private static final Pattern READY =
      Pattern.compile("FILA READY .*\"address\": *\"([^\"]+)\".*");
  // Far more than a start takes, so that a busy machine fails no test.
  private static final Duration START_MAX = Duration.ofSeconds(60);
  private static final Duration STOP_MAX = Duration.ofSeconds(20);

  private final Process process;
  private final Path folder;
  private final String address;

  private TestBroker(Process process, Path folder, String address) {
    this.process = process;
    this.folder = folder;
    this.address = address;
  }

  /** Starts a broker with defaults, and returns when it is ready. Fails as the other form does. */
  public static TestBroker start() {
    return start("");
  }

  /**
   * Starts a broker with more of its configuration file, in TOML, and returns when it is ready.
   * Which {@code fila-server}: what the environment variable FILA_SERVER names, else that of the
   * PATH.
   *
   * <p>Fails with IllegalStateException that says how to install one if there is none, or what it
   * said if it did not start.
   */
  public static TestBroker start(String configuration) {
    try {
      Path folder = Files.createTempDirectory("fila-");
      try {
        return start(configuration, folder);
      } catch (IOException | RuntimeException failed) {
        delete(folder);
        throw failed;
      }
    } catch (IOException failed) {
      throw new UncheckedIOException("the broker's directory cannot be used", failed);
    }
  }

  private static TestBroker start(String configuration, Path folder) throws IOException {
    Path config = Files.writeString(folder.resolve("fila.toml"), configuration);
    Path errors = folder.resolve("errors.txt");
    String named = System.getenv(PROGRAM_VARIABLE);
    String program = named == null || named.isEmpty() ? PROGRAM : named;
    ProcessBuilder builder =
        new ProcessBuilder(
            program,
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            folder.resolve("data").toString(),
            "--config",
            config.toString(),
            "--stop-at-eof");
    // Settings that were meant for another broker, or for clients.
    builder.environment().keySet().removeIf(name -> name.startsWith("FILA_"));
    builder.redirectError(errors.toFile());
    Process process;
    try {
      process = builder.start();
    } catch (IOException missing) {
      String text =
          "cannot run \"%s\"; install it with `pip install fila-server`, or name it in %s"
              .formatted(program, PROGRAM_VARIABLE);
      throw new IllegalStateException(text, missing);
    }
    String address = readyAddress(process);
    if (address == null) {
      stop(process);
      String said = Files.readString(errors, StandardCharsets.UTF_8).strip();
      throw new IllegalStateException(
          "\"%s\" did not become ready: %s".formatted(program, said));
    }
    return new TestBroker(process, folder, address);
  }

  /** The address that the broker says when it is ready; null if it ends, or takes too long. */
  private static String readyAddress(Process process) throws IOException {
    Timer watchdog = new Timer("fila-test-broker", true);
    watchdog.schedule(
        new TimerTask() {
          @Override
          public void run() {
            process.destroyForcibly();
          }
        },
        START_MAX.toMillis());
    try {
      // It says one line, so nobody needs to read on.
      BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
      for (String line = output.readLine(); line != null; line = output.readLine()) {
        Matcher ready = READY.matcher(line);
        if (ready.matches()) {
          return ready.group(1);
        }
      }
      return null;
    } finally {
      watchdog.cancel();
    }
  }

  /** Where it listens, as {@code host:port}. */
  public String address() {
    return address;
  }

  /** A new client of it, with defaults. Close it before the broker. */
  public FilaClient connect() {
    return FilaClient.builder().target(address).build();
  }

  /** Ends the broker and removes what it stored. Harmless twice. */
  @Override
  public void close() {
    stop(process);
    try {
      delete(folder);
    } catch (IOException failed) {
      throw new UncheckedIOException("cannot remove \"%s\"".formatted(folder), failed);
    }
  }

  private static void stop(Process process) {
    process.destroy();
    boolean isInterrupted = false;
    try {
      if (!process.waitFor(STOP_MAX.toSeconds(), TimeUnit.SECONDS)) {
        process.destroyForcibly().waitFor();
      }
    } catch (InterruptedException hurried) {
      process.destroyForcibly();
      isInterrupted = true;
    }
    if (isInterrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static void delete(Path folder) throws IOException {
    if (!Files.exists(folder)) {
      return;
    }
    List<Path> all;
    try (Stream<Path> found = Files.walk(folder)) {
      all = found.sorted(Comparator.reverseOrder()).toList();
    }
    for (Path path : all) {
      Files.deleteIfExists(path);
    }
  }
}
