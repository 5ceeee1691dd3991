# SPDX-License-Identifier: AGPL-3.0-only
"""Every text that says what went wrong, and what to do about it. One line each, no secrets.

A text is a lower-case clause that names the value at fault, then `; ` and the next step.
"""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from fila_server.cli.words import one_line, quoted

if TYPE_CHECKING:
    from fila import FilaError
    from fila_server.cli.session import Session

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
NOT_CONFIRMED = "nothing was changed"
ACK_OR_NACK = "--ack and --nack exclude each other; pass one"
ERROR_NEEDS_NACK = "--error says why a message is nacked; pass --nack with it"
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


def needs_yes(what: str) -> str:
    return f"this {what}; add --yes to go ahead"


def no_throttle(key: str) -> str:
    return f"no throttle is set for {quoted(key)}; list them with: fila throttle list"


def lines_refused(stored: int, refused: int, first_line: int, why: str) -> str:
    return (
        f"{stored:,} lines were stored and {refused:,} refused; the first, line {first_line}: {why}"
    )


def lines_interrupted(stored: int, first_line: int, last_line: int, why: str) -> str:
    return (
        f"{why} ({stored:,} lines are stored; lines {first_line} to {last_line} may or may not be, "
        f"later ones are not)"
    )


def settle_failed(done: int, failed: int, why: str) -> str:
    return f"settled {done:,} messages, {failed:,} could not be: {why}"


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


def describe(error: "FilaError", session: "Session") -> str:
    """One actionable line for an error of the SDK."""
    writer = _WRITERS.get(type(error).__name__)
    return writer(error, session) if writer is not None else _plain(error)


def _plain(error: "FilaError") -> str:
    return one_line(error.message or type(error).__name__)


def _with(hint: str) -> Callable[["FilaError", "Session"], str]:
    return lambda error, session: f"{_plain(error)}; {hint}"


def _queue_not_found(error: "FilaError", session: "Session") -> str:
    if not error.queue:
        return f"{_plain(error)}; list queues with: fila queue list"
    missing = f"queue {quoted(error.queue)} does not exist"
    if error.queue.endswith(".dlq"):
        return f"{missing}; list queues with: fila queue list"
    return f"{missing}; create it with: fila queue create {shlex.quote(one_line(error.queue))}"


def _queue_exists(error: "FilaError", session: "Session") -> str:
    change = f"change its settings with: fila queue update {_queue_word(error)}"
    if not error.queue:
        return f"{_plain(error)}; {change}"
    return f"queue {quoted(error.queue)} already exists; {change}"


def _not_dead_letters(error: "FilaError", session: "Session") -> str:
    what = f"{quoted(error.queue)} is not a dead-letter queue" if error.queue else _plain(error)
    return f"{what}; their names end in .dlq, list them with: fila queue list"


def _message_not_found(error: "FilaError", session: "Session") -> str:
    return f"{_plain(error)}; see what is there with: fila peek {_queue_word(error)}"


def _queue_full(error: "FilaError", session: "Session") -> str:
    return (
        f"{_plain(error)}; raise it with: fila queue update {_queue_word(error)} --max-messages N"
    )


def _queue_word(error: "FilaError") -> str:
    return shlex.quote(one_line(error.queue)) if error.queue else "QUEUE"


def _unavailable(error: "FilaError", session: "Session") -> str:
    address = one_line(session.addr)
    host = address.rpartition(":")[0]
    if session.uses_tls:
        return (
            f"no broker answers at {address} over TLS; check that it runs with TLS, that --tls-ca "
            f"signed its certificate for this name, and that it accepts --tls-cert"
        )
    if host in ("127.0.0.1", "localhost", "[::1]"):
        start = f"start one with: fila-server --listen {address}"
        return f"no broker answers at {address}; {start} (or name another with --addr)"
    return f"no broker answers at {address}; check --addr, --tls, and that fila-server runs there"


def _deadline(error: "FilaError", session: "Session") -> str:
    return (
        f"no answer from {one_line(session.addr)} within {session.timeout:g} s, the outcome is "
        f"unknown; check first, then try again with a longer --timeout"
    )


def _unauthenticated(error: "FilaError", session: "Session") -> str:
    address = one_line(session.addr)
    if session.api_key is None:
        return f"the broker at {address} wants an API key; set FILA_API_KEY or pass --api-key"
    return f"the broker at {address} does not accept this API key; check FILA_API_KEY or --api-key"


def _permission_denied(error: "FilaError", session: "Session") -> str:
    # Without a key the broker has API keys switched off, and its text says so.
    if session.api_key is None:
        return _plain(error)
    return f"{_plain(error)}; ask for a key that has it"


def _unimplemented(error: "FilaError", session: "Session") -> str:
    address = one_line(session.addr)
    return f"{address} does not know this call; check that it is a Fila broker as new as this fila"


# By class name, so that the SDK is imported only by commands that talk to a broker.
_WRITERS: dict[str, Callable[["FilaError", "Session"], str]] = {
    "QueueNotFoundError": _queue_not_found,
    "QueueAlreadyExistsError": _queue_exists,
    "MessageNotFoundError": _message_not_found,
    "MessageLeasedError": _with("wait until its lease ends, or let its consumer settle it"),
    "LeaseExpiredError": _with("the message went back to its queue, or to another consumer"),
    "NotADeadLetterQueueError": _not_dead_letters,
    "ParentQueueNotFoundError": _with("create that queue again, then redrive"),
    "ConfigNotFoundError": _with("list the entries with: fila config list"),
    "QueueFullError": _queue_full,
    "DiskFullError": _with("free space on the broker's data volume; consuming still works"),
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
