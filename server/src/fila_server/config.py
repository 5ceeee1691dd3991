# SPDX-License-Identifier: AGPL-3.0-only
"""Every setting of the broker: its default, what it may be, and the reason for it.

Settings come from one TOML file and from `FILA_<SECTION>__<KEY>` variables, which win. The
annotations below are the only place that says what a value may be: loading, checking, error texts
and the reference page all follow from them. A section checks itself whenever one is made, so
`dataclasses.replace` with a bad value is refused too.

This module reads files and the mapping it is given. It knows nothing of the command line, and it
never opens a data directory, a socket or a certificate.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS

# gRPC's receive limit in every language unless a client raises it.
GRPC_MESSAGE_BYTES = 4 * MIB
# What the SDKs of this repository accept.
SDK_MESSAGE_BYTES = 64 * MIB
# Id, timestamps, lease token and protobuf tags of one message, with room to spare.
_MESSAGE_FRAME_BYTES = KIB
# Protobuf tags and lengths of one header or one key.
_ENTRY_FRAME_BYTES = 16


class ConfigError(Exception):
    """The configuration cannot be used; one line names the setting and the way out."""


# --- What a value may be --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Between:
    """An integer from low to high, both included."""

    low: int
    high: int


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


def _is_url(value: str) -> bool:
    scheme, separator, rest = value.partition("://")
    return scheme in ("http", "https") and bool(separator) and bool(rest)


def _is_header_safe(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value


ADDRESS = Form("host:port, an IPv6 host in brackets, port 0 to 65535", _is_address)
OPTIONAL_ADDRESS = Form(f"empty or {ADDRESS.name}", lambda v: not v or _is_address(v))
OPTIONAL_URL = Form("empty or an http:// or https:// URL", lambda v: not v or _is_url(v))
OPTIONAL_KEY = Form("empty or printable ASCII without spaces", _is_header_safe)
FILLED = Form("a text that is not empty", bool)

# Counts and sizes whose upper bound only stops slips of the keyboard.
Count = Annotated[int, Between(1, 1_000_000)]
Size = Annotated[int, Between(1, GIB)]


class _Section:
    __slots__ = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            setting = _SETTINGS[f"{_SECTION_NAMES[type(self)]}.{item.name}"]
            _check(setting, getattr(self, item.name), "")


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
    # "auto" is text on a terminal and JSON elsewhere, as people and log collectors want it.
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class SchedulerConfig(_Section):
    # Messages per weight unit and turn. Small, because a lone message waits for quantum x weight of
    # every other key; batches form from neighbouring turns, so a large one buys no throughput.
    quantum: Annotated[int, Between(1, 1000)] = 1
    # SQS has the same default and the same maximum of 12 hours.
    visibility_timeout_ms: Annotated[int, Between(1, 12 * HOUR_MS)] = 30_000
    # Encoded pending messages kept in memory; the rest are read back when they are picked.
    hot_bytes: Annotated[int, Between(0, TIB)] = 256 * MIB
    # Commands that may wait for the engine before callers get RESOURCE_EXHAUSTED: some seconds of
    # single calls at the 0.3 ms that each costs the server.
    inbox_max: Count = 10_000


@dataclass(frozen=True, slots=True)
class StorageConfig(_Section):
    # "always" confirms an enqueue after its fsync, the others after its write: "interval" fsyncs on
    # a timer, "never" leaves it to the system. All survive kill -9, only "always" power loss. Redis
    # has the same three.
    sync: Literal["always", "interval", "never"] = "always"
    # What "interval" may lose at power loss; Redis's everysec.
    sync_interval_ms: Annotated[int, Between(1, 60_000)] = 1000
    # Below this, enqueues are refused, so that acks, which need disk too, can still drain the
    # queues. RabbitMQ's disk_free_limit is 50 MB.
    min_free_bytes: Annotated[int, Between(0, TIB)] = 64 * MIB
    # RocksDB's default is 32 MiB; backlogs that were pushed out of memory are read through it.
    block_cache_bytes: Annotated[int, Between(MIB, TIB)] = 64 * MIB
    # RocksDB's default. A column may fill three of them while one is written out.
    write_buffer_bytes: Annotated[int, Between(64 * KIB, GIB)] = 64 * MIB


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
    max_fairness_key_bytes: Annotated[int, Between(1, 4 * KIB)] = 256
    # A delivery takes from all its buckets at once, so each key adds to every scheduling decision.
    max_throttle_keys: Annotated[int, Between(0, 256)] = 16
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
    # Unary calls, waiting Receive calls and streams together; a thousand clients with 20 each.
    max_concurrent_rpcs: Count = 20_000
    # The longest a Receive call may wait; load balancers cut idle calls after a minute or so.
    max_wait_ms: Annotated[int, Between(0, HOUR_MS)] = 60_000
    # Delays of months exist (renewals, reminders); beyond a year a scheduler is the better tool.
    max_delay_ms: Annotated[int, Between(0, 100 * YEAR_MS)] = YEAR_MS
    # Far away, but a time in nanoseconds still fits 63 bits until 2262.
    max_ttl_ms: Annotated[int, Between(1, 100 * YEAR_MS)] = 10 * YEAR_MS
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
            + self.max_name_bytes
            + _MESSAGE_FRAME_BYTES
        )


@dataclass(frozen=True, slots=True)
class LuaConfig(_Section):
    # A hook takes 5 us; a thousand times that is a loop. It holds the engine while it runs.
    default_timeout_ms: Annotated[int, Between(1, 10_000)] = 10
    # A message's headers and what a hook builds from them, several times over.
    default_memory_limit_bytes: Annotated[int, Between(64 * KIB, GIB)] = MIB
    # Failures in a row after which a queue's hook rests, and for how long.
    circuit_breaker_threshold: Annotated[int, Between(1, 1000)] = 3
    circuit_breaker_cooldown_ms: Annotated[int, Between(1, HOUR_MS)] = 10_000


@dataclass(frozen=True, slots=True)
class TelemetryConfig(_Section):
    # Empty sends nothing: no surprise traffic, no retries against a collector that is not there.
    otlp_endpoint: Annotated[str, OPTIONAL_URL] = ""
    service_name: Annotated[str, FILLED] = "fila"
    # OpenTelemetry's default is 60 s, too coarse to watch a tenant being starved.
    metrics_interval_ms: Annotated[int, Between(100, HOUR_MS)] = 10_000


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
    # Plain HTTP for probes and metrics. Off, because it is one more open port.
    listen_addr: Annotated[str, OPTIONAL_ADDRESS] = ""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Raises ConfigError when two of them contradict each other."""

    server: ServerConfig = field(default_factory=ServerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    lua: LuaConfig = field(default_factory=LuaConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    http: HttpConfig = field(default_factory=HttpConfig)

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
        return rule.name if isinstance(rule, Form) else "a text"


def _split(hint: Any) -> tuple[Any, Between | Form | None]:
    if get_origin(hint) is Annotated:
        base, rule = get_args(hint)
        return base, rule
    return hint, None


def _is_allowed(hint: Any, value: object) -> bool:
    base, rule = _split(hint)
    if get_origin(base) is Literal:
        return value in get_args(base)
    if type(value) is not base:  # Not isinstance: TOML's true is no integer.
        return False
    if isinstance(rule, Between):
        return isinstance(value, int) and rule.low <= value <= rule.high
    return rule is None or (isinstance(value, str) and rule.accepts(value))


def _parse(hint: Any, text: str) -> object:
    """Turn a variable's text into the setting's type, or return it as it is, to be refused."""
    base, _ = _split(hint)
    if base is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if base is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def _check(setting: Setting, value: object, source: str) -> None:
    if not _is_allowed(setting.hint, value):
        shown = "..." if setting.is_secret else repr(value)
        raise ConfigError(f"{source}{setting.name} = {shown}: must be {setting.allowed}")


_SECTIONS: dict[str, type[Any]] = get_type_hints(Config)
_SECTION_NAMES = {section: name for name, section in _SECTIONS.items()}
_SETTINGS = {
    f"{name}.{item.name}": Setting(
        f"{name}.{item.name}",
        get_type_hints(section, include_extras=True)[item.name],
        item.default,
        not item.repr,
    )
    for name, section in _SECTIONS.items()
    for item in dataclasses.fields(section)
}


def settings() -> Iterator[Setting]:
    """Yield every setting, in the order of the sections and of the keys within each."""
    yield from _SETTINGS.values()


# --- Loading --------------------------------------------------------------------------------------

DEFAULT_PATHS = (Path("fila.toml"), Path("/etc/fila/fila.toml"))


def load(path: str | None, env: Mapping[str, str]) -> Config:
    """Read the file at `path`, else the first of DEFAULT_PATHS there is, then apply `env`.

    Raises ConfigError; its one line names the file or variable, the setting and what is allowed.
    """
    chosen = next((p for p in DEFAULT_PATHS if p.exists()), None) if path is None else Path(path)
    values: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    if chosen is not None:
        for setting, value in _from_file(chosen):
            _put(values, setting, value, f"{chosen}: ")
    for setting, value in _from_environment(env):
        _put(values, setting, value, f"{setting.variable}: ")
    return Config(**{name: section(**values[name]) for name, section in _SECTIONS.items()})


def _put(
    values: dict[str, dict[str, object]], setting: Setting, value: object, source: str
) -> None:
    _check(setting, value, source)
    section, _, key = setting.name.partition(".")
    values[section][key] = value


def _from_file(path: Path) -> Iterator[tuple[Setting, object]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    for section, table in document.items():
        if not isinstance(table, dict):
            nearest = _nearest(section)
            raise ConfigError(f"{path}: {section} is in no section; the nearest is {nearest}")
        if section not in _SECTIONS:
            nearest = difflib.get_close_matches(section, _SECTIONS, 1, 0.0)[0]
            raise ConfigError(f"{path}: unknown section [{section}]; the nearest is [{nearest}]")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in _SETTINGS:
                nearest = _nearest(name)
                raise ConfigError(f"{path}: unknown setting {name}; the nearest is {nearest}")
            yield _SETTINGS[name], value


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[Setting, object]]:
    for variable in sorted(env):
        if not variable.startswith("FILA_") or "__" not in variable:
            continue  # FILA_ADDR and the like belong to clients.
        name = variable.removeprefix("FILA_").replace("__", ".", 1).lower()
        setting = _SETTINGS.get(name)
        if setting is None or setting.variable != variable:
            nearest = _SETTINGS[_nearest(name)].variable
            raise ConfigError(f"unknown environment variable {variable}; the nearest is {nearest}")
        yield setting, _parse(setting.hint, env[variable])


def _nearest(name: str) -> str:
    """The setting that was probably meant: the same key elsewhere, else the closest spelling."""
    section, _, key = name.rpartition(".")
    pool = [known for known in _SETTINGS if known.partition(".")[2] == key]
    pool = pool or [known for known in _SETTINGS if known.partition(".")[0] == section]
    matches: list[str] = difflib.get_close_matches(name, pool or _SETTINGS, 1, 0.0)
    return matches[0]
