# SPDX-License-Identifier: AGPL-3.0-only
"""Where settings come from: one TOML file, and variables of the environment, which win.

A variable is `FILA_<SECTION>__<KEY>`; two settings have a short name as well, and two have one that
every program with OpenTelemetry reads, which is the weakest of all. A name that is not known stops
the start, because a slip of the pen would otherwise leave a broker open or in the wrong place
without a word. Names that have gone out of use are accepted with a warning.

This module reads a file and the mapping it is given. `config.py` says what the settings are.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path

from fila_server.config import SECTIONS, SETTINGS, Config, ConfigError, Setting

DEFAULT_PATHS = (Path("fila.toml"), Path("/etc/fila/fila.toml"))

# Short names of settings that are often given with nothing else. They win over the long ones, so
# that they also win over what a container image has set.
SHORT_VARIABLES = {
    "FILA_DATA_DIR": SETTINGS["server.data_dir"],
    "FILA_BOOTSTRAP_APIKEY": SETTINGS["auth.bootstrap_apikey"],
}
# Set for a whole machine or container, often, so everything that is meant for Fila wins over them.
STANDARD_VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": SETTINGS["telemetry.otlp_endpoint"],
    "OTEL_SERVICE_NAME": SETTINGS["telemetry.service_name"],
}
# What `fila`, the SDKs' examples and their testing brokers read; a broker may well be started from
# the same shell.
CLIENTS_VARIABLES = frozenset(
    """FILA_ADDR FILA_API_KEY FILA_CA FILA_CERT FILA_KEY FILA_SERVER FILA_TLS FILA_TLS_CA
    FILA_TLS_CERT FILA_TLS_KEY FILA_TLS_SERVER_NAME""".split()
)
# Kubernetes and Docker put these into every container beside a service called fila or fila-...:
# nobody asked for them, and they steer nothing.
_SERVICE = re.compile(
    r"FILA_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP)(?:_\w+)?)"
)
_SERVICE_PORT = re.compile(r"FILA_(?:\w+_)?PORT")

# Settings of earlier designs whose files are still about.
RETIRED = {
    "scheduler.command_channel_capacity": "scheduler.inbox_max has taken its place",
    "scheduler.idle_timeout_ms": "it is no longer needed, an idle broker sleeps until it is called",
    "scheduler.lease_expiry_check_interval_ms": (
        "it is no longer needed, leases are looked at in every turn"
    ),
}
# Below this two names may have only a unit in common: "idle_timeout_ms" and "default_timeout_ms"
# have 0.79. One wrong letter in a short name is less, and is alike all the same.
_ALIKE = 0.8


def load(path: str | None, env: Mapping[str, str], warn: Callable[[str], object]) -> Config:
    """Read the file at `path`, else the first of DEFAULT_PATHS there is, then apply `env`.

    `warn` is told, in one line each, which settings have no effect. Raises ConfigError; its one
    line names the file or variable, the setting and what is allowed.
    """
    chosen = next((p for p in DEFAULT_PATHS if p.exists()), None) if path is None else Path(path)
    values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    given = [] if chosen is None else list(_from_file(chosen))
    for source, name, value in [*_from_standards(env), *given, *_from_environment(env)]:
        if name in RETIRED:
            warn(f"{source}: {name} has no effect: {RETIRED[name]}")
            continue
        SETTINGS[name].check(value, f"{source}: ")
        section, _, key = name.partition(".")
        values[section][key] = value
    return Config(**{name: section(**values[name]) for name, section in SECTIONS.items()})


def _from_file(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yield the file's name, and a setting's with its value."""
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
            raise ConfigError(f"{path}: {section} is in no section{_hint(_nearest(section))}")
        if section not in SECTIONS:
            best = max(SECTIONS, key=lambda known: _likeness(section, known))
            nearest = f"[{best}]" if _likeness(section, best) >= _alike(section) else None
            raise ConfigError(f"{path}: unknown section [{section}]{_hint(nearest)}")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in SETTINGS and name not in RETIRED:
                raise _unknown(f"setting {name}", name, f"{path}: ", lambda it: it.name)
            yield str(path), name, value


def _from_standards(env: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Yield what OpenTelemetry's variables say; an empty one says nothing, as its rules have it."""
    for variable, setting in STANDARD_VARIABLES.items():
        if text := env.get(variable):
            yield variable, setting.name, text


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Yield a variable's name, and a setting's with its value; short names come last, and win."""
    for variable in sorted(env, key=lambda it: (it in SHORT_VARIABLES, it)):
        if not variable.startswith("FILA_") or _is_of_others(variable, env[variable]):
            continue
        name = variable.removeprefix("FILA_").replace("__", ".", 1)
        setting = SHORT_VARIABLES.get(variable)
        if setting is None and name == name.upper():
            setting = SETTINGS.get(name.lower())
        if setting is not None:
            yield variable, setting.name, setting.parse(env[variable])
        elif name.lower() in RETIRED:
            yield variable, name.lower(), env[variable]
        else:
            what = f"environment variable {variable}"
            raise _unknown(what, name.lower(), "", lambda it: it.variable)


def _is_of_others(variable: str, value: str) -> bool:
    """Return whether a variable is meant for clients, or comes from the surroundings."""
    if variable in CLIENTS_VARIABLES or _SERVICE.fullmatch(variable):
        return True
    return bool(_SERVICE_PORT.fullmatch(variable)) and value.startswith(("tcp://", "udp://"))


def _unknown(what: str, name: str, source: str, spelled: Callable[[Setting], str]) -> ConfigError:
    """Return the refusal of a name; `spelled` is how the setting that was meant is written."""
    nearest = _nearest(name)
    return ConfigError(f"{source}unknown {what}{_hint(nearest and spelled(SETTINGS[nearest]))}")


def _hint(nearest: str | None) -> str:
    return f"; the nearest is {nearest}" if nearest else "; remove it or correct its name"


def _nearest(name: str) -> str | None:
    """Return the setting that was probably meant, or None if no name is like this one.

    The key decides; of settings that are alike, the one whose section is more like it.
    """
    section, _, key = name.rpartition(".")

    def score(known: str) -> tuple[float, float]:
        its_section, _, its_key = known.partition(".")
        # Without a section, as in FILA_SERVER_DATA_DIR, the name may hold it all the same.
        whole = 0.0 if section else _likeness(key, f"{its_section}_{its_key}")
        return max(whole, _likeness(key, its_key)), _likeness(section, its_section)

    best = max(SETTINGS, key=score)
    return best if score(best)[0] >= _alike(key) else None


def _alike(name: str) -> float:
    return min(_ALIKE, 1 - 1 / max(2, len(name)))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
