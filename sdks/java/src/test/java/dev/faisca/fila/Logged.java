// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.text.MessageFormat;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** What the package logs, as long as it is open: System.Logger writes to java.util.logging. */
final class Logged extends Handler implements AutoCloseable {
  private static final Logger LOGGER = Logger.getLogger("dev.faisca.fila");

  private final List<String> lines = new CopyOnWriteArrayList<>();

  Logged() {
    LOGGER.setLevel(Level.ALL);
    LOGGER.addHandler(this);
  }

  List<String> lines() {
    return List.copyOf(lines);
  }

  boolean has(String part) {
    return lines.stream().anyMatch(line -> line.contains(part));
  }

  @Override
  public void publish(LogRecord record) {
    String text = MessageFormat.format(record.getMessage(), record.getParameters());
    lines.add(record.getLevel() + " " + text);
  }

  @Override
  public void flush() {}

  @Override
  public void close() {
    LOGGER.removeHandler(this);
    LOGGER.setLevel(null);
  }
}
