# SPDX-License-Identifier: AGPL-3.0-only
"""What a user may set with `.option(...)`: names, defaults, ranges. Checked when Spark plans, and
every error names the option.

Spark hands options over as text, with names in lower case. Each use of the format has a class; a
field `batch_rows` is the option `batchRows`. Nothing here connects to a broker.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import fila

# Spark's own, which it hands on: where a stream keeps its progress, and how it is called.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
_VISIBILITY_MS_MAX = 12 * 3_600_000  # the broker's limit


class OptionError(ValueError):
    """an option is missing, unknown or has a value that makes no sense"""


# --- How a text becomes a value -------------------------------------------------------------------


def _number(low: int, high: int, default: int | None) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f'must be an integer from {low} to {high}, got "{text}"')
        return value

    return field(default=default, metadata={"parse": parse})


def _choice(*choices: str) -> Any:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f'must be one of {", ".join(choices)}, got "{text}"')
        return text.lower()

    return field(default=choices[0], metadata={"parse": parse})


def _truth(default: bool) -> Any:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f'must be true or false, got "{text}"')
        return text.lower() == "true"

    return field(default=default, metadata={"parse": parse})


def _some_text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _text(default: str | None = None) -> Any:
    return field(default=default, metadata={"parse": _some_text})


def _required_text() -> Any:
    return field(metadata={"parse": _some_text})


def _secret() -> Any:
    return field(default=None, repr=False, metadata={"parse": _some_text})


# --- The options of each use ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach the broker. Hashable, so that a process can keep one client for each."""

    USE: ClassVar[str] = "a connection"

    address: str = _required_text()
    tls: bool = _truth(False)
    tls_ca_file: str | None = _text()
    tls_cert_file: str | None = _text()
    tls_key_file: str | None = _text()
    tls_server_name: str | None = _text()
    # Spark hides options whose names contain "secret" wherever it shows options.
    api_key_secret: str | None = _secret()
    api_key_file: str | None = _text()
    timeout_ms: int = _number(1, 600_000, 30_000)
    retry_for_ms: int = _number(0, 86_400_000, 300_000)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Reads the options of this use. Raises OptionError for the first that is wrong."""
        known = {_option_name(each.name).lower(): each for each in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, text in options.items():
            wanted = known.get(name.lower())
            if wanted is not None:
                values[wanted.name] = _parsed(wanted, text)
            elif name.lower() not in _OF_SPARK:
                raise OptionError(_unknown(name, cls))
        for each in dataclasses.fields(cls):
            is_required = each.default is dataclasses.MISSING
            if is_required and each.name not in values:
                raise OptionError(f'option "{_option_name(each.name)}" is missing')
        made = cls(**values)
        made.check()
        return made

    def check(self) -> None:
        """Refuses options that do not go together."""
        if self.api_key_secret is not None and self.api_key_file is not None:
            raise OptionError('options "apiKeySecret" and "apiKeyFile" exclude each other')
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise OptionError('options "tlsCertFile" and "tlsKeyFile" go together; give both')

    @property
    def connection(self) -> "Connection":
        """The part that says how to reach the broker, without the rest."""
        names = (each.name for each in dataclasses.fields(Connection))
        return Connection(**{name: getattr(self, name) for name in names})

    def api_key(self) -> str | None:
        """The API key, read from its file if it is in one."""
        if self.api_key_file is None:
            return self.api_key_secret
        try:
            return Path(self.api_key_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise OptionError(
                f'option "apiKeyFile": cannot read "{self.api_key_file}": {why}'
            ) from None

    def tls_options(self) -> fila.TlsOptions | None:
        files = (self.tls_ca_file, self.tls_cert_file, self.tls_key_file, self.tls_server_name)
        return fila.TlsOptions(*files) if self.tls or any(files) else None


@dataclass(frozen=True, kw_only=True)
class PeekOptions(Connection):
    """A batch read that leaves the queue as it is."""

    USE: ClassVar[str] = "a batch read with mode=peek"

    mode: str = _choice("peek", "lease")
    queue: str = _required_text()
    num_partitions: int | None = _number(1, 10_000, None)
    max_messages: int | None = _number(1, 1 << 40, None)
    fairness_key: str | None = _text()
    state: str = _choice("any", "pending", "delayed", "leased")
    include_payload: bool = _truth(True)
    progress_seconds: int = _number(0, 86_400, 10)


@dataclass(frozen=True, kw_only=True)
class LeaseOptions(Connection):
    """A batch read that leases what it reads."""

    USE: ClassVar[str] = "a batch read with mode=lease"

    mode: str = _choice("peek", "lease")
    queue: str = _required_text()
    num_partitions: int | None = _number(1, 10_000, None)
    # Leased rows travel through the driver, so both are bounded. What is larger is a stream's work.
    max_messages: int = _number(1, 1_000_000, 10_000)
    max_bytes: int = _number(1, 1 << 30, 64 << 20)
    wait_ms: int = _number(0, 60_000, 0)
    # Nobody extends these leases: the Spark job has to be through with them by then.
    visibility_timeout_ms: int = _number(1000, _VISIBILITY_MS_MAX, 600_000)
    include_payload: bool = _truth(True)


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Connection):
    """A streaming read."""

    USE: ClassVar[str] = "a streaming read"

    queue: str = _required_text()
    num_partitions: int | None = _number(1, 10_000, None)
    max_messages_per_batch: int = _number(1, 1_000_000, 10_000)
    max_bytes_per_batch: int = _number(1, 1 << 30, 64 << 20)
    wait_ms: int = _number(0, 60_000, 500)
    # Extended while the query lives, so this is how long a dead query's messages are out of reach.
    visibility_timeout_ms: int = _number(1000, _VISIBILITY_MS_MAX, 60_000)
    include_payload: bool = _truth(True)


@dataclass(frozen=True, kw_only=True)
class EnqueueOptions(Connection):
    """A write that enqueues rows."""

    USE: ClassVar[str] = "a write with operation=enqueue"

    operation: str = _choice("enqueue", "ack", "nack", "redrive")
    queue: str | None = _text()
    batch_rows: int = _number(1, 10_000, 1000)
    batch_bytes: int = _number(1, 16 << 20, 1 << 20)
    max_in_flight: int = _number(1, 64, 4)
    max_rate_per_task: int | None = _number(1, 10_000_000, None)
    idempotency: str = _choice("auto", "off")
    run_id: str | None = _text()
    on_rejected: str = _choice("fail", "count")
    report_path: str | None = _text()
    progress_seconds: int = _number(0, 86_400, 10)


@dataclass(frozen=True, kw_only=True)
class SettleOptions(Connection):
    """A write that acks, nacks or redrives messages by their ids."""

    USE: ClassVar[str] = "a write with operation=ack, nack or redrive"

    operation: str = _choice("enqueue", "ack", "nack", "redrive")
    queue: str | None = _text()
    batch_rows: int = _number(1, 10_000, 1000)
    max_in_flight: int = _number(1, 64, 4)
    on_stale_ack: str = _choice("fail", "count")
    report_path: str | None = _text()
    progress_seconds: int = _number(0, 86_400, 10)


READS: tuple[type[Connection], ...] = (PeekOptions, LeaseOptions, StreamOptions)
WRITES: tuple[type[Connection], ...] = (EnqueueOptions, SettleOptions)


def batch_read(options: Mapping[str, str]) -> PeekOptions | LeaseOptions:
    """The options of a batch read, by its mode."""
    chosen = _chosen(options, "mode", PeekOptions)
    return LeaseOptions.of(options) if chosen == "lease" else PeekOptions.of(options)


def write(options: Mapping[str, str]) -> EnqueueOptions | SettleOptions:
    """The options of a write, by its operation."""
    chosen = _chosen(options, "operation", EnqueueOptions)
    return EnqueueOptions.of(options) if chosen == "enqueue" else SettleOptions.of(options)


def any_read(options: Mapping[str, str]) -> None:
    """Checks the options of a read of which it is not known yet whether it is batch or stream."""
    try:
        batch_read(options)
    except OptionError as batch_error:
        try:
            StreamOptions.of(options)
        except OptionError as stream_error:
            # The one that got further is the one that was meant.
            is_stream = any(name.lower().endswith("perbatch") for name in options)
            raise (stream_error if is_stream else batch_error) from None


def _chosen(options: Mapping[str, str], name: str, kind: type[Connection]) -> str:
    wanted = next(each for each in dataclasses.fields(kind) if each.name == name)
    given = next((text for key, text in options.items() if key.lower() == name), None)
    return str(wanted.default if given is None else _parsed(wanted, given))


def _parsed(wanted: "dataclasses.Field[Any]", text: str) -> Any:
    parse: Callable[[str], Any] = wanted.metadata["parse"]
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f'option "{_option_name(wanted.name)}" {error}') from None


def _option_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def option_names(kind: type[Connection]) -> list[str]:
    return [_option_name(each.name) for each in dataclasses.fields(kind)]


def _unknown(name: str, kind: type[Connection]) -> str:
    lowered = name.lower()
    if lowered == "apikey":
        # Spark would print its value in plans.
        return 'option "apiKey" is not taken, because Spark shows it; use "apiKeySecret"'
    if lowered == "path":
        return 'format "fila" takes no path; name the queue with option "queue"'
    spelled = {known.lower(): known for known in _all_names((*READS, *WRITES))}
    if lowered in spelled:
        return f'option "{spelled[lowered]}" means nothing to {kind.USE}'
    names = {known.lower(): known for known in option_names(kind)}
    near = difflib.get_close_matches(lowered, names, 1)
    advice = f'; did you mean "{names[near[0]]}"?' if near else ""
    return f'option "{name}" is unknown{advice}'


def _all_names(kinds: Iterable[type[Connection]]) -> list[str]:
    return [name for kind in kinds for name in option_names(kind)]
