// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import dev.faisca.fila.internal.v1.QueueConfig;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A queue that is there with given settings, whoever made it. It is created or left as it is: a
 * worker of an older release that starts again must not undo an operator's change.
 */
final class QueueSetup {
  private static final String DEAD_LETTERS = ".dlq";
  // A hook's source may be long, and its beginning tells which one it is.
  private static final int SHOWN_CHARACTERS_MAX = 60;

  private QueueSetup() {}

  static String ensure(
      Connection connection, String name, QueueSettings settings, Duration timeout)
      throws FilaException {
    boolean isSecond = false;
    while (true) {
      try {
        return connection.call(Admin.createQueue(name, settings), timeout);
      } catch (QueueAlreadyExistsException exists) {
        try {
          compare(connection.call(Admin.config(name), timeout), name, settings, exists);
          return name + DEAD_LETTERS;
        } catch (QueueNotFoundException deletedMeanwhile) {
          if (isSecond) {
            throw exists;
          }
          isSecond = true;
        }
      }
    }
  }

  private static void compare(
      QueueConfig found,
      String name,
      QueueSettings settings,
      QueueAlreadyExistsException exists)
      throws FilaException {
    List<String> differences = new ArrayList<>();
    for (String setting : settings.mask().getPathsList()) {
      FieldDescriptor field = QueueConfig.getDescriptor().findFieldByName(setting);
      Object is = found.getField(field);
      Object wanted = settings.config().getField(field);
      if (!is.equals(wanted)) {
        differences.add("%s is %s, not %s".formatted(setting, shown(is), shown(wanted)));
      }
    }
    if (!differences.isEmpty()) {
      String text =
          "queue \"%s\" exists with other settings: %s; updateQueue changes them"
              .formatted(name, String.join(", ", differences));
      throw Errors.fromStatus(
          new CallFailure(text, exists.code(), exists.reason(), name, null, exists));
    }
  }

  private static String shown(Object value) {
    if (value instanceof EnumValueDescriptor choice) {
      return choice.getName();
    }
    if (!(value instanceof String text)) {
      return value.toString();
    }
    boolean isLong = text.codePointCount(0, text.length()) > SHOWN_CHARACTERS_MAX;
    if (isLong) {
      text = text.substring(0, text.offsetByCodePoints(0, SHOWN_CHARACTERS_MAX));
    }
    return '"' + text.replace("\n", "\\n") + (isLong ? "...\"" : "\"");
  }
}
