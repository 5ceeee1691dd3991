# SPDX-License-Identifier: AGPL-3.0-only
"""Every setting of the broker: its default, what it may be, and the reason for it.

The annotations below are the only place that says what a value may be: reading, checking, error
texts and the reference page all follow from them. A section checks itself whenever one is made, so
`dataclasses.replace` with a bad value is refused too.

This module knows no file, no environment and no command line: `sources.py` reads them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fila_server.limits import (
    DAY_MS,
    FAILURE_ERROR_BYTES,
    FAILURES_KEPT,
    GIB,
    GRPC_MESSAGE_BYTES,
    HOUR_MS,
    KIB,
    MAX_DELAY_MS,
    MAX_HOOK_MEMORY_BYTES,
    MAX_HOOK_TIMEOUT_MS,
    MAX_KEY_BYTES,
    MAX_QUANTUM,
    MAX_RETRY_DELAY_MS,
    MAX_THROTTLE_KEYS,
    MAX_TTL_MS,
    MAX_VISIBILITY_MS,
    MIB,
    MIN_HOOK_MEMORY_BYTES,
    MINUTE_MS,
    SDK_MESSAGE_BYTES,
    TIB,
    YEAR_MS,
)

# Id, timestamps, lease token and protobuf tags of one message, with room to spare.
_MESSAGE_FRAME_BYTES = KIB
# Protobuf tags and lengths of one header or one key.
_ENTRY_FRAME_BYTES = 16
# A failure's time, cause and tags, beside its text.
_FAILURE_FRAME_BYTES = 32


class ConfigError(Exception):
    """The configuration cannot be used; one line names the setting and the way out."""


# --- What a value may be --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Between:
    """An integer from low to high, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Share:
    """A number from 0 to 1, both included."""


@dataclass(frozen=True, slots=True)
class Form:
    """A text of a certain form; `name` completes the sentence "must be ..."."""

    name: str
    accepts: Callable[[str], bool]


def _is_address(value: str) -> bool:
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return False  # A bare IPv6 address: where does the host end?
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    return bool(colon and host and is_number and int(port) <= 65535)


def _is_collector(value: str) -> bool:
    scheme, separator, rest = value.partition("://")
    if not value:
        return True
    # Credentials belong into OTEL_EXPORTER_OTLP_HEADERS: an address shows up in logs.
    is_plain = rest.isascii() and rest.isprintable() and "@" not in rest and " " not in rest
    return bool(separator) and scheme in ("http", "https") and is_plain and bool(rest.strip("/"))


def _is_header_safe(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value


ADDRESS = Form("host:port, an IPv6 host in brackets, port 0 to 65535", _is_address)
OPTIONAL_ADDRESS = Form(
    "empty or host:port, an IPv6 host in brackets", lambda value: not value or _is_address(value)
)
COLLECTOR = Form("empty, http://host:port or https://host:port", _is_collector)
OPTIONAL_KEY = Form("empty or printable ASCII without spaces", _is_header_safe)
FILLED = Form("a text that is not empty", bool)

# Counts and sizes whose upper bound only stops slips of the keyboard.
Count = Annotated[int, Between(1, 1_000_000)]
Size = Annotated[int, Between(1, GIB)]


class _Section:
    __slots__ = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            setting = SETTINGS[f"{_SECTION_NAMES[type(self)]}.{item.name}"]
            setting.check(getattr(self, item.name), "")


# --- The settings ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerConfig(_Section):
    # Loopback, as PostgreSQL and Redis do: nobody is reachable by accident. Port 0 picks a free
    # one.
    listen_addr: Annotated[str, ADDRESS] = "127.0.0.1:5555"
    # Relative, so that a first try needs no rights; the container image sets /var/lib/fila.
    data_dir: Annotated[str, FILLED] = "./fila-data"
    # How long calls under way may take at a stop. Kubernetes kills after 30 s; this leaves room.
    shutdown_grace_ms: Annotated[int, Between(0, 600_000)] = 10_000
    # grpcurl and the like work out of the box; the contract is public anyway.
    reflection: bool = True
    # How calls travel. "auto" is the native edge where the package fila-edge is installed, and
    # grpcio elsewhere; naming one is for those who compare them.
    transport: Literal["auto", "edge", "grpcio"] = "auto"
    # "auto" is text on a terminal and JSON elsewhere, as people and log collectors want it.
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class SchedulerConfig(_Section):
    # Messages per weight unit and turn. Small, because a lone message waits for quantum x weight of
    # every other key; batches form from neighbouring turns, so a large one buys no throughput.
    quantum: Annotated[int, Between(1, MAX_QUANTUM)] = 1
    # SQS has the same default and the same maximum of 12 hours.
    visibility_timeout_ms: Annotated[int, Between(1, MAX_VISIBILITY_MS)] = 30_000
    # Encoded pending messages kept in memory; the rest are read back when they are picked.
    hot_bytes: Annotated[int, Between(0, TIB)] = 256 * MIB
    # Commands that may wait for the engine before callers get RESOURCE_EXHAUSTED: some seconds of
    # single calls at the 0.3 ms that each costs the server.
    inbox_max: Count = 10_000
    # Requests that arrive or wait, in bytes, before callers get RESOURCE_EXHAUSTED. Four of the
    # largest: what waits longer is better kept by the client.
    inbox_bytes: Annotated[int, Between(MIB, TIB)] = 64 * MIB


@dataclass(frozen=True, slots=True)
class StorageConfig(_Section):
    # "always" confirms an enqueue after its fsync, the others after its write: "interval" fsyncs on
    # a timer, "never" leaves it to the system. All survive kill -9, only "always" power loss. Redis
    # has the same three.
    sync: Literal["always", "interval", "never"] = "always"
    # What "interval" may lose at power loss; Redis's everysec.
    sync_interval_ms: Annotated[int, Between(1, 60_000)] = 1000
    # Kept free for acks, which need disk too, beyond what the store needs for what it holds; below
    # that enqueues are refused. RabbitMQ's disk_free_limit is 50 MB.
    min_free_bytes: Annotated[int, Between(0, TIB)] = 64 * MIB
    # RocksDB's default is 32 MiB; backlogs that were pushed out of memory are read through it.
    block_cache_bytes: Annotated[int, Between(MIB, TIB)] = 64 * MIB
    # RocksDB's default. A column may fill three of them while one is written out. A volume of less
    # than 128 of them gets smaller ones.
    write_buffer_bytes: Annotated[int, Between(64 * KIB, GIB)] = 64 * MIB
    # Where `fila backup` may make its directories, best on another volume. Empty: nowhere, so that
    # a key alone lets nobody write files to the broker's machine.
    backup_dir: str = ""


@dataclass(frozen=True, slots=True)
class LimitsConfig(_Section):
    # Below gRPC's 4 MiB, so that a client with default limits can receive what another one sent.
    max_payload_bytes: Annotated[int, Between(1, GRPC_MESSAGE_BYTES - 1)] = 3 * MIB
    # Names and values of all headers of one message together. Hooks are handed all of them.
    max_header_bytes: Annotated[int, Between(0, MIB)] = 64 * KIB
    # SQS stops at 10; a map this size still costs a hook microseconds, not milliseconds.
    max_headers: Annotated[int, Between(0, 10_000)] = 256
    # Bounds how long one request holds the engine: about 0.1 s at 15 us per message.
    max_batch_messages: Count = 10_000
    # The server's receive limit: a batch of some 60,000 small messages, or five of the largest.
    max_request_bytes: Size = 16 * MIB
    # The longest file name nearly everywhere, and RabbitMQ's limit for a queue name.
    max_name_bytes: Annotated[int, Between(1, 255)] = 255
    # Keys are tenants, providers, request ids: an id or an address with room to spare.
    max_fairness_key_bytes: Annotated[int, Between(1, MAX_KEY_BYTES)] = 256
    # A delivery takes from all its buckets at once, so each key adds to every scheduling decision.
    max_throttle_keys: Annotated[int, Between(0, MAX_THROTTLE_KEYS)] = 16
    # A UUID, a hash or a composed business key.
    max_idempotency_key_bytes: Annotated[int, Between(1, 4 * KIB)] = 256
    # Credit of one stream. SQS allows 120,000 messages in flight per queue.
    max_in_flight: Count = 100_000
    # For clients that name no credit: a few frames' worth, yet little to redeliver after a crash.
    default_in_flight: Count = 256
    # A frame costs 0.3 ms whatever it carries; beyond some thousand messages that cost vanishes and
    # only latency grows.
    max_frame_messages: Count = 5000
    # Below gRPC's 4 MiB, so that frames reach clients that never raised their receive limit.
    max_frame_bytes: Annotated[int, Between(1, SDK_MESSAGE_BYTES - 1)] = 3 * MIB + 768 * KIB
    # Open streams; each holds buffers of its own.
    max_consumers: Count = 10_000
    # A connection costs tens of kilobytes and a descriptor; fewer where the system allows fewer.
    max_connections: Count = 10_000
    # Unary calls, waiting Receive calls and streams together; a thousand clients with 20 each.
    max_concurrent_rpcs: Count = 20_000
    # The longest a Receive call may wait; load balancers cut idle calls after a minute or so.
    max_wait_ms: Annotated[int, Between(0, HOUR_MS)] = 60_000
    # Delays of months exist (renewals, reminders); beyond a year a scheduler is the better tool.
    max_delay_ms: Annotated[int, Between(0, MAX_DELAY_MS)] = YEAR_MS
    # How long a consumer's `retry_after` may keep a throttle key from everybody. Providers ask for
    # seconds to minutes; what lasts longer is for an operator to decide (`fila throttle pause`).
    max_backpressure_ms: Annotated[int, Between(1, MAX_RETRY_DELAY_MS)] = HOUR_MS
    # Far away, but a time in nanoseconds still fits 63 bits until 2262.
    max_ttl_ms: Annotated[int, Between(1, MAX_TTL_MS)] = 10 * YEAR_MS
    # Dead-letter queues included. Every queue is kept in memory, empty or not.
    max_queues: Count = 100_000
    # A stack trace's useful end; stored with the message at every nack.
    max_error_bytes: Annotated[int, Between(0, 64 * KIB)] = 4 * KIB
    # Runtime settings (`SetConfig`): keys hold a throttle key, values a small JSON document.
    max_config_key_bytes: Annotated[int, Between(1, 4 * KIB)] = 512
    max_config_value_bytes: Annotated[int, Between(1, MIB)] = 64 * KIB
    # Each costs memory in the broker and once more in every queue that has a hook.
    max_config_entries: Annotated[int, Between(1, 1_000_000)] = 100_000
    # They are stored with their queue's definition, which is written whole.
    max_paused_keys: Annotated[int, Between(1, 100_000)] = 1000
    # A peer that connects and never speaks is dropped after this.
    handshake_timeout_ms: Annotated[int, Between(1, 60_000)] = 5000
    # Pings to idle clients, so that a vanished one is noticed before its leases' usual expiry; also
    # below the 60 s after which NAT tables and load balancers forget idle connections.
    keepalive_time_ms: Annotated[int, Between(1000, HOUR_MS)] = 30_000
    keepalive_timeout_ms: Annotated[int, Between(100, HOUR_MS)] = 10_000
    # Clients that ping more often are cut off. gRPC's default of 5 min forbids useful pings.
    min_ping_interval_ms: Annotated[int, Between(0, HOUR_MS)] = 5000
    # gRPC's default is 8 KiB; trace context and large tokens need more.
    max_metadata_bytes: Annotated[int, Between(KIB, MIB)] = 16 * KIB

    @property
    def max_message_bytes(self) -> int:
        """No message that the limits accept is encoded larger than this."""
        keys = 1 + self.max_throttle_keys
        return (
            self.max_payload_bytes
            + self.max_header_bytes
            + self.max_headers * _ENTRY_FRAME_BYTES
            + keys * (self.max_fairness_key_bytes + _ENTRY_FRAME_BYTES)
            + self.max_idempotency_key_bytes
            + self.max_error_bytes
            + FAILURES_KEPT * (FAILURE_ERROR_BYTES + _FAILURE_FRAME_BYTES)
            + self.max_name_bytes
            + _MESSAGE_FRAME_BYTES
        )


@dataclass(frozen=True, slots=True)
class LuaConfig(_Section):
    # A hook takes 5 us; a thousand times that is a loop. It holds the engine while it runs.
    default_timeout_ms: Annotated[int, Between(1, MAX_HOOK_TIMEOUT_MS)] = 10
    # No queue may ask for more: a hook holds the only thread, and everybody waits. Far below the
    # 100 ms that people notice, and five times the default.
    max_timeout_ms: Annotated[int, Between(1, MAX_HOOK_TIMEOUT_MS)] = 50
    # A message's headers and what a hook builds from them, several times over.
    default_memory_limit_bytes: Annotated[
        int, Between(MIN_HOOK_MEMORY_BYTES, MAX_HOOK_MEMORY_BYTES)
    ] = MIB
    # Failures in a row after which a queue's hook rests, and for how long.
    circuit_breaker_threshold: Annotated[int, Between(1, 1000)] = 3
    circuit_breaker_cooldown_ms: Annotated[int, Between(1, HOUR_MS)] = 10_000


@dataclass(frozen=True, slots=True)
class TlsConfig(_Section):
    # Certificate and key turn TLS on; a client CA as well makes client certificates mandatory.
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class AuthConfig(_Section):
    # Turns API keys on. It travels in a header, so a key that no header can carry is refused.
    bootstrap_apikey: Annotated[str, OPTIONAL_KEY] = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class HttpConfig(_Section):
    # Off, because most brokers need no second port; the container image has it on loopback.
    listen_addr: Annotated[str, OPTIONAL_ADDRESS] = ""
    # Names beside the machine's own that browsers may ask for while API keys are off, with commas
    # between. Any other could be a stranger's page that was made to point here.
    host_names: str = ""
    # From the last thing that a person did to the end of a session. OWASP asks for 15 to 30 minutes
    # where little is at stake.
    session_ms: Annotated[int, Between(1000, 7 * DAY_MS)] = 30 * MINUTE_MS
    # A page needs one or two; a hundred pages and some probes.
    max_connections: Count = 256


@dataclass(frozen=True, slots=True)
class TelemetryConfig(_Section):
    # A collector that speaks OTLP over gRPC; empty sends nothing. 4317 is the usual port.
    otlp_endpoint: Annotated[str, COLLECTOR] = ""
    # What the collector calls this broker.
    service_name: Annotated[str, FILLED] = "fila"
    # How often metrics are pushed. Prometheus scrapes every 15 s or so; OpenTelemetry's own default
    # of a minute hides what an operator looks for.
    metrics_interval_ms: Annotated[int, Between(100, HOUR_MS)] = 10_000
    # Off leaves metrics alone: spans cost per call, counters next to nothing.
    traces: bool = True
    # Of the calls that come without a decision of their caller; one that has decided is followed. A
    # span of every call costs the broker half as much again per message.
    sample_ratio: Annotated[float, Share()] = 0.0
    # Fairness keys with labels of their own, the busiest of all queues together; the others of a
    # queue are summed under "other". As many throttle keys.
    max_keys: Annotated[int, Between(0, 10_000)] = 200


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Raises ConfigError when two of them contradict each other."""

    server: ServerConfig = field(default_factory=ServerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    lua: LuaConfig = field(default_factory=LuaConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)

    def __post_init__(self) -> None:
        tls, limits = self.tls, self.limits
        if bool(tls.cert_file) != bool(tls.key_file):
            there, missing = ("cert", "key") if tls.cert_file else ("key", "cert")
            raise ConfigError(
                f"tls.{there}_file is set without tls.{missing}_file: set both or none"
            )
        if tls.ca_file and not tls.cert_file:
            raise ConfigError(
                "tls.ca_file is set without tls.cert_file and tls.key_file: set all three"
            )
        if limits.default_in_flight > limits.max_in_flight:
            raise ConfigError(
                f"limits.default_in_flight = {limits.default_in_flight}: "
                f"must not exceed limits.max_in_flight ({limits.max_in_flight})"
            )
        if self.lua.default_timeout_ms > self.lua.max_timeout_ms:
            raise ConfigError(
                f"lua.default_timeout_ms = {self.lua.default_timeout_ms}: "
                f"must not exceed lua.max_timeout_ms ({self.lua.max_timeout_ms}): lower one or "
                "raise the other"
            )
        for key in ("max_frame_bytes", "max_request_bytes"):
            if getattr(limits, key) < limits.max_message_bytes:
                raise ConfigError(
                    f"limits.{key} = {getattr(limits, key)}: must be at least "
                    f"{limits.max_message_bytes}, so that the largest message the other limits "
                    "accept fits: raise it or lower limits.max_payload_bytes"
                )


# --- Reading the annotations ----------------------------------------------------------------------


class Setting(NamedTuple):
    """One setting as the annotations describe it."""

    name: str
    hint: Any
    default: object
    is_secret: bool

    @property
    def variable(self) -> str:
        """The environment variable that overrides the setting."""
        return "FILA_" + self.name.replace(".", "__").upper()

    @property
    def allowed(self) -> str:
        """What the value may be, as the end of a sentence."""
        base, rule = _split(self.hint)
        if get_origin(base) is Literal:
            *others, last = (f'"{choice}"' for choice in get_args(base))
            return f"{', '.join(others)} or {last}"
        if base is bool:
            return "true or false"
        if isinstance(rule, Between):
            return f"an integer from {rule.low} to {rule.high}"
        if isinstance(rule, Share):
            return "a number from 0 to 1"
        return rule.name if isinstance(rule, Form) else "a text"

    def check(self, value: object, source: str) -> None:
        """Raise ConfigError, which starts with `source`, unless the value is allowed."""
        if not _is_allowed(self.hint, value):
            shown = "..." if self.is_secret else repr(value)
            raise ConfigError(f"{source}{self.name} = {shown}: must be {self.allowed}")

    def parse(self, text: str) -> object:
        """Turn a variable's text into the setting's type, or return it as it is, to be refused."""
        base, _ = _split(self.hint)
        if base is bool:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        if base in (int, float):
            try:
                return base(text)
            except ValueError:
                return text
        return text


def _split(hint: Any) -> tuple[Any, Between | Share | Form | None]:
    if get_origin(hint) is Annotated:
        base, rule = get_args(hint)
        return base, rule
    return hint, None


def _is_allowed(hint: Any, value: object) -> bool:
    base, rule = _split(hint)
    if get_origin(base) is Literal:
        return value in get_args(base)
    if isinstance(rule, Share):
        return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]
    if type(value) is not base:  # Not isinstance: TOML's true is no integer.
        return False
    if isinstance(rule, Between):
        return isinstance(value, int) and rule.low <= value <= rule.high
    return rule is None or (isinstance(value, str) and rule.accepts(value))


# By name, in the order of the sections and of the keys within each.
SECTIONS: dict[str, type[Any]] = get_type_hints(Config)
_SECTION_NAMES = {section: name for name, section in SECTIONS.items()}
SETTINGS = {
    f"{name}.{item.name}": Setting(
        f"{name}.{item.name}",
        get_type_hints(section, include_extras=True)[item.name],
        item.default,
        not item.repr,
    )
    for name, section in SECTIONS.items()
    for item in dataclasses.fields(section)
}
