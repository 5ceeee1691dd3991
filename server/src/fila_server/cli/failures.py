# SPDX-License-Identifier: AGPL-3.0-only
"""Every text that says what went wrong, and what to do about it. One line each, no secrets.

A text is a lower-case clause that names the value at fault, then `; ` and the next step.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from fila_server.cli.words import counted, one_line, quoted, shell_word
from fila_server.limits import MIB

if TYPE_CHECKING:
    from fila import FilaError
    from fila_server.cli.session import Session

_LARGER_THAN_MAX = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")

BAD_API_KEY = "the API key holds characters other than printable ASCII; copy it again"
CERT_NEEDS_KEY = "--tls-cert and --tls-key go together; pass both"
KEY_OR_MESSAGE = "name what to explain: --key FAIRNESS_KEY or --message ID, one of them"
ALLOW_OR_SUPERADMIN = "say what the key may do: --allow PERMISSION:PATTERN, or --superadmin"
SUPERADMIN_IS_ALL = "--superadmin and --allow exclude each other; a superadmin may do everything"
BAD_EXPIRY = "--expires is how long the key works; name a time above 0, or leave it out for ever"
NOTHING_TO_ALLOW = (
    "name at least one --allow PERMISSION:PATTERN; to take everything away, revoke the key"
)
NOTHING_TO_UPDATE = "nothing to change; name at least one setting"
NOTHING_TO_THROTTLE = "nothing to set; pass --rate, --burst or --concurrency"
BAD_PAUSE = "--for is how long the pause lasts; name a time above 0, or leave it out"
COUNT_NEEDS_WATCH = "--count says how often to look; pass --watch with it"
NOT_CONFIRMED = "nothing was changed"
ACK_OR_NACK = "--ack and --nack exclude each other; pass one"
ERROR_NEEDS_NACK = "--error says why a message is nacked; pass --nack with it"
EXEC_SETTLES = (
    "--exec settles by the command's exit code; leave out --ack, --nack and --payload-only"
)
EMPTY_EXEC = "--exec names no command; write one as for a shell, for example --exec ./work.sh"
NEEDS_EXEC = (
    "--concurrency, --retry-after and --lease say how --exec runs; pass --exec CMD with them"
)
THROTTLE_KEY_NEEDS_TIME = "--throttle-key is left alone for a time; pass --retry-after with it"
HOPELESS_OR_LATER = "--dead-letter gives up and --retry-after tries again later; pass one of them"
BAD_EXTENSION = "--for is how long the lease lasts from now; name a time above 0, or leave it out"
LINES_NEED_OWN_KEYS = (
    "--idempotency-key would make all lines one message; leave it out with --lines"
)
JSON_OR_PAYLOAD = "--json and --payload-only exclude each other; pass one"


def bad_address(address: str) -> str:
    return f"{quoted(address)} is not an address; write HOST:PORT, for example 127.0.0.1:5555"


def bad_duration(value: str) -> str:
    return f"{quoted(value)} is not a duration; write milliseconds (30000), or 30s, 5m, 2h, 7d"


def bad_number(value: str) -> str:
    return f"{quoted(value)} is not a finite number"


def bad_pair(value: str) -> str:
    # A header's value may be private: the text repeats no more than the word's length.
    return f"expected K=V with a name before the equals sign, got {len(value)} characters without"


def bad_permission(value: str) -> str:
    return (
        f"{quoted(value)} is not PERMISSION:PATTERN; write produce, consume or admin, a colon, and "
        f"a queue name, a prefix like orders.*, or *"
    )


def not_utf8(path: str) -> str:
    return f"{quoted(path)} is not UTF-8 text"


def unreadable_file(path: str, error: OSError | None = None) -> str:
    why = error.strerror.lower() if error is not None and error.strerror else "not a readable file"
    return f"cannot read {quoted(path)}: {why}"


def payload_too_large(source: str, limit: int) -> str:
    return (
        f"{quoted(source)} holds {limit // MIB} MiB or more, which no broker takes as one message; "
        f"send it in parts, or a message per line with --lines"
    )


def needs_yes(what: str) -> str:
    return f"this {what}; add --yes to go ahead"


def no_throttle(key: str) -> str:
    return f"no throttle is set for {quoted(key)}; list them with: fila throttle list"


def lines_refused(stored: int, refused: int, first_line: int, why: str) -> str:
    return (
        f"{stored:,} lines were stored and {refused:,} refused, the first, line {first_line}: {why}"
    )


def lines_interrupted(stored: int, first_line: int, last_line: int, why: str) -> str:
    return (
        f"{why} ({counted(stored, 'line')} stored; lines {first_line} to {last_line} may or may "
        f"not be, later ones are not)"
    )


def settle_failed(done: int, failed: int, why: str) -> str:
    return f"settled {counted(done, 'message')}, {failed:,} could not be: {why}"


def cannot_run(command: str, why: str) -> str:
    said = f" ({why})" if why else ""
    return (
        f"the shell cannot run {quoted(command)}{said}; its message was given back, "
        f"correct --exec and start again"
    )


def script_unusable(path: str, why: str, line: int | None) -> str:
    return f"{quoted(path)} cannot be used as a hook{_at(line)}: {one_line(why)}"


def hook_failed(hook: str, path: str, why: str, line: int | None) -> str:
    return f"{hook} in {quoted(path)} failed{_at(line)}: {one_line(why)}"


def no_on_failure(path: str) -> str:
    return f"{quoted(path)} defines no on_failure, which --error is for"


def _at(line: int | None) -> str:
    return f" at line {line}" if line is not None else ""


def system_error(error: OSError) -> str:
    what = f"{quoted(str(error.filename))}: " if error.filename else ""
    return f"{what}{(error.strerror or type(error).__name__).lower()}"


def refused_argument(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__


def broker_did_not_start(last_words: str) -> str:
    said = f": {one_line(last_words)}" if last_words else ""
    return f"the demo's broker did not start{said}; try: fila-server --listen 127.0.0.1:0"


class Text(NamedTuple):
    """What went wrong, and the next step; the latter may be empty."""

    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class BrokerFailure(click.ClickException):
    """An error of the SDK as a line for people, with its parts for programs."""

    def __init__(self, error: "FilaError", session: "Session") -> None:
        self.text = _text(error, session)
        self.code = error.code
        self.reason = error.reason
        super().__init__(str(self.text))


def describe(error: "FilaError", session: "Session") -> str:
    """One actionable line for an error of the SDK."""
    return str(_text(error, session))


def _text(error: "FilaError", session: "Session") -> Text:
    writer = _WRITERS.get(type(error).__name__)
    return writer(error, session) if writer is not None else Text(_plain(error))


def _plain(error: "FilaError") -> str:
    return one_line(error.message or type(error).__name__)


def _with(hint: str) -> Callable[["FilaError", "Session"], Text]:
    return lambda error, session: Text(_plain(error), hint)


def _queue_not_found(error: "FilaError", session: "Session") -> Text:
    what = f"queue {quoted(error.queue)} does not exist" if error.queue else _plain(error)
    if error.queue and session.command in _FOR_NEW_QUEUES and not error.queue.endswith(".dlq"):
        return Text(what, f"create it with: fila queue create {shell_word(error.queue)}")
    return Text(what, "list queues with: fila queue list")


def _queue_exists(error: "FilaError", session: "Session") -> Text:
    change = f"change its settings with: fila queue update {_queue_word(error)}"
    if not error.queue:
        return Text(_plain(error), change)
    return Text(f"queue {quoted(error.queue)} already exists", change)


def _not_dead_letters(error: "FilaError", session: "Session") -> Text:
    what = f"{quoted(error.queue)} is not a dead-letter queue" if error.queue else _plain(error)
    return Text(what, "their names end in .dlq, list them with: fila queue list")


def _message_not_found(error: "FilaError", session: "Session") -> Text:
    return Text(_plain(error), f"see what is there with: fila peek {_queue_word(error)}")


def _queue_full(error: "FilaError", session: "Session") -> Text:
    hint = f"raise it with: fila queue update {_queue_word(error)} --max-messages N"
    return Text(_plain(error), hint)


def _exhausted(error: "FilaError", session: "Session") -> Text:
    # gRPC refuses what is too large before the broker sees it, in words of its own.
    sizes = _LARGER_THAN_MAX.search(error.message)
    if sizes is None:
        return Text(_plain(error), "try again in a moment")
    return Text(
        f"the request has {int(sizes[1]):,} bytes, and {one_line(session.addr)} takes no more than "
        f"{int(sizes[2]):,}",
        "send less at a time, or raise limits.max_request_bytes there",
    )


def _queue_word(error: "FilaError") -> str:
    return shell_word(error.queue) if error.queue else "QUEUE"


def _unavailable(error: "FilaError", session: "Session") -> Text:
    address = one_line(session.addr)
    host = address.rpartition(":")[0]
    if session.uses_tls:
        return Text(
            f"no broker answers at {address} over TLS",
            "check that it runs with TLS, that --tls-ca signed its certificate for this name, and "
            "that it accepts --tls-cert",
        )
    if host in ("127.0.0.1", "localhost", "[::1]"):
        start = f"start one with: fila-server --listen {address}"
        return Text(f"no broker answers at {address}", f"{start} (or name another with --addr)")
    hint = "check --addr, --tls, and that fila-server runs there"
    return Text(f"no broker answers at {address}", hint)


def _deadline(error: "FilaError", session: "Session") -> Text:
    return Text(
        f"no answer from {one_line(session.addr)} within {session.timeout:g} s, the outcome is "
        f"unknown",
        "check first, then try again with a longer --timeout",
    )


def _unauthenticated(error: "FilaError", session: "Session") -> Text:
    broker = f"the broker at {one_line(session.addr)}"
    if session.api_key is None:
        return Text(f"{broker} wants an API key", "set FILA_API_KEY or pass --api-key")
    return Text(f"{broker} does not accept this API key", "check FILA_API_KEY or --api-key")


def _permission_denied(error: "FilaError", session: "Session") -> Text:
    # Without a key the broker has API keys switched off, and its text says so.
    return Text(_plain(error), "" if session.api_key is None else "ask for a key that has it")


def _disk_full(error: "FilaError", session: "Session") -> Text:
    if session.command == "fila backup":  # whose volume may be another, and is named
        return Text(_plain(error), "")
    return Text(_plain(error), "free space on the broker's data volume; consuming still works")


def _unimplemented(error: "FilaError", session: "Session") -> Text:
    return Text(
        f"{one_line(session.addr)} does not know this call",
        "check that it is a Fila broker as new as this fila",
    )


# A queue that these miss may well be meant to exist; who deletes one has mistyped its name.
_FOR_NEW_QUEUES = frozenset({"fila enqueue", "fila consume", "fila stats", "fila top"})


# By class name, so that the SDK is imported only by commands that talk to a broker.
_WRITERS: dict[str, Callable[["FilaError", "Session"], Text]] = {
    "QueueNotFoundError": _queue_not_found,
    "QueueAlreadyExistsError": _queue_exists,
    "MessageNotFoundError": _message_not_found,
    "MessageLeasedError": _with("wait until its lease ends, or let its consumer settle it"),
    "LeaseExpiredError": _with("the message went back to its queue, or to another consumer"),
    "NotADeadLetterQueueError": _not_dead_letters,
    "ParentQueueNotFoundError": _with("create that queue again, then redrive"),
    "ConfigNotFoundError": _with("list the entries with: fila config list"),
    "QueueFullError": _queue_full,
    "DiskFullError": _disk_full,
    "ResourceExhaustedError": _exhausted,
    "OverloadedError": _with("try again in a moment"),
    "ShuttingDownError": _with("try again when it is back"),
    "HookFailedError": _with("try the script with: fila hook test FILE"),
    "InvalidScriptError": _with("try the script with: fila hook test FILE"),
    "StorageFailedError": _with("the broker's log says why"),
    "InternalError": _with("the broker's log says why"),
    "UnavailableError": _unavailable,
    "DeadlineExceededError": _deadline,
    "UnauthenticatedError": _unauthenticated,
    "PermissionDeniedError": _permission_denied,
    "ApiKeyNotFoundError": _with("list the keys with: fila auth list"),
    "UnimplementedError": _unimplemented,
}
