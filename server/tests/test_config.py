# SPDX-License-Identifier: AGPL-3.0-only
"""Defaults, the file, the environment, refusals, and the reference page."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fila_server import sources
from fila_server.cli.app import cli
from fila_server.config import SETTINGS, Config, ConfigError, Setting

ALL_SETTINGS = list(SETTINGS.values())
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "configuration.md"

WriteToml = Callable[[str], str]


@pytest.fixture(autouse=True)
def _no_stray_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a fila.toml of the machine or of the working directory out of the tests."""
    monkeypatch.chdir(tmp_path)
    paths = (Path("fila.toml"), tmp_path / "etc-fila.toml")
    monkeypatch.setattr(sources, "DEFAULT_PATHS", paths)


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    def write(text: str) -> str:
        path = tmp_path / "given.toml"
        path.write_text(text)
        return str(path)

    return write


def load(path: str | None, env: dict[str, str]) -> Config:
    """Load settings that all have an effect."""
    return sources.load(path, env, pytest.fail)


def _value(config: Config, name: str) -> object:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def _another(setting: Setting) -> object:
    """A valid value that is not the default."""
    special: dict[str, object] = {
        "http.listen_addr": "127.0.0.1:0",
        "limits.default_in_flight": 255,
        "limits.max_name_bytes": 200,
        "server.listen_addr": "[::1]:0",
        "server.log_format": "json",
        "server.log_level": "debug",
        "server.transport": "grpcio",
        "storage.sync": "never",
        "telemetry.otlp_endpoint": "http://localhost:4317",
        "telemetry.sample_ratio": 0.25,
    }
    if setting.name in special:
        return special[setting.name]
    if isinstance(setting.default, bool):
        return not setting.default
    return setting.default + 1 if isinstance(setting.default, int) else "other"


def _companions(setting: Setting) -> dict[str, str]:
    """What else must be set for another value of this setting to be accepted."""
    both = {"tls.cert_file": "FILA_TLS__CERT_FILE", "tls.key_file": "FILA_TLS__KEY_FILE"}
    if not setting.name.startswith("tls."):
        return {}
    return {variable: "x" for name, variable in both.items() if name != setting.name}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _refusal(path: str | None, env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- Where settings come from ---------------------------------------------------------------------


def test_without_file_and_environment_everything_is_default() -> None:
    assert load(None, {}) == Config()
    assert {s.name: _value(Config(), s.name) for s in ALL_SETTINGS} == {
        s.name: s.default for s in ALL_SETTINGS
    }


def test_there_are_no_two_settings_with_one_variable() -> None:
    assert len({setting.variable for setting in ALL_SETTINGS}) == len(ALL_SETTINGS)


def test_defaults_are_themselves_allowed_from_a_file(toml: WriteToml) -> None:
    lines = []
    section = ""
    for setting in ALL_SETTINGS:
        of, _, key = setting.name.partition(".")
        if of != section:
            section = of
            lines.append(f"[{section}]")
        lines.append(f"{key} = {json.dumps(setting.default)}")
    assert load(toml("\n".join(lines)), {}) == Config()


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda setting: setting.name)
def test_the_environment_overrides_every_setting(setting: Setting) -> None:
    value = _another(setting)
    config = load(None, _companions(setting) | {setting.variable: _text(value)})
    assert _value(config, setting.name) == value
    assert type(_value(config, setting.name)) is type(value)


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda setting: setting.name)
def test_the_file_overrides_every_default(setting: Setting, toml: WriteToml) -> None:
    section, _, key = setting.name.partition(".")
    path = toml(f"[{section}]\n{key} = {json.dumps(_another(setting))}\n")
    assert _value(load(path, _companions(setting)), setting.name) == _another(setting)


def test_the_environment_wins_over_the_file(toml: WriteToml) -> None:
    path = toml("[scheduler]\nquantum = 2\nhot_bytes = 3\n")
    config = load(path, {"FILA_SCHEDULER__QUANTUM": "7"})
    assert (config.scheduler.quantum, config.scheduler.hot_bytes) == (7, 3)


def test_files_are_looked_for_in_order(tmp_path: Path, toml: WriteToml) -> None:
    (tmp_path / "etc-fila.toml").write_text("[scheduler]\nquantum = 3\n")
    assert load(None, {}).scheduler.quantum == 3
    (tmp_path / "fila.toml").write_text("[scheduler]\nquantum = 2\n")
    assert load(None, {}).scheduler.quantum == 2
    assert load(toml("[scheduler]\nquantum = 1\n"), {}).scheduler.quantum == 1


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("FALSE", False), ("0", False)]
)
def test_booleans_in_the_environment(text: str, value: bool) -> None:
    assert load(None, {"FILA_SERVER__REFLECTION": text}).server.reflection is value


def test_variables_of_clients_are_left_alone() -> None:
    """A broker and `fila` may share a shell, and so may the SDKs' examples and tests."""
    read_by_cli = {option.envvar for option in cli.params if option.envvar}  # type: ignore[attr-defined]
    sources_of_examples = [
        *(ROOT / "sdks").glob("*/examples/**/*.*"),
        ROOT / "sdks/python/src/fila/testing.py",
    ]
    read_by_examples = {
        variable
        for path in sources_of_examples
        if path.suffix in {".py", ".go", ".ts", ".mjs", ".js", ".rb", ".java", ".rs"}
        for variable in re.findall(r"\bFILA_[A-Z_]+\b", path.read_text())
    }
    assert {"FILA_ADDR", "FILA_API_KEY"} <= read_by_cli & read_by_examples
    assert read_by_cli | read_by_examples == sources.CLIENTS_VARIABLES
    assert load(None, dict.fromkeys(sources.CLIENTS_VARIABLES, "x") | {"OTHER__THING": "z"})


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone() -> None:
    env = {
        "FILA_SERVICE_HOST": "10.0.0.1",
        "FILA_SERVICE_PORT": "5555",
        "FILA_SERVICE_PORT_GRPC": "5555",
        "FILA_PORT": "tcp://10.0.0.1:5555",
        "FILA_PORT_5555_TCP": "tcp://10.0.0.1:5555",
        "FILA_PORT_5555_TCP_PROTO": "tcp",
        "FILA_PORT_5555_TCP_PORT": "5555",
        "FILA_PORT_5555_TCP_ADDR": "10.0.0.1",
        "FILA_HEADLESS_SERVICE_HOST": "10.0.0.2",
        "FILA_HEADLESS_PORT": "tcp://10.0.0.2:5555",
    }
    assert load(None, env) == Config()


@pytest.mark.parametrize(
    ("short", "long", "name"),
    [
        ("FILA_DATA_DIR", "FILA_SERVER__DATA_DIR", "server.data_dir"),
        ("FILA_BOOTSTRAP_APIKEY", "FILA_AUTH__BOOTSTRAP_APIKEY", "auth.bootstrap_apikey"),
    ],
)
def test_two_settings_have_a_short_name_too(short: str, long: str, name: str) -> None:
    assert _value(load(None, {short: "given"}), name) == "given"
    assert _value(load(None, {short: "given", long: "of-the-image"}), name) == "given"


# --- Settings that have gone out of use -----------------------------------------------------------

# The files that the first documents of the project show.
FIRST_FILES = (
    """
    [server]
    listen_addr = "0.0.0.0:5555"
    data_dir = "/var/lib/fila"

    [scheduler]
    quantum = 1000           # DRR quantum
    visibility_timeout_ms = 30000
    lease_expiry_check_interval_ms = 1000

    [lua]
    default_timeout_ms = 10
    default_memory_limit_bytes = 1048576
    circuit_breaker_threshold = 3
    circuit_breaker_cooldown_ms = 10000

    [telemetry]
    otlp_endpoint = "http://localhost:4317"
    service_name = "fila"
    metrics_interval_ms = 10000
    """,
    """
    [server]
    listen_addr = "0.0.0.0:5555"

    [scheduler]
    command_channel_capacity = 10000
    idle_timeout_ms = 100
    """,
)


def test_the_first_files_start_with_a_warning_for_each_setting_without_effect(
    toml: WriteToml,
) -> None:
    warned: list[str] = []
    path = ""
    for text in FIRST_FILES:
        path = toml(text)
        assert sources.load(path, {}, warned.append).server.listen_addr == "0.0.0.0:5555"
    names = [line.removeprefix(f"{path}: ").partition(" has no effect: ")[0] for line in warned]
    assert sorted(names) == sorted(sources.RETIRED)
    said = dict(zip(names, warned, strict=True))
    assert said["scheduler.command_channel_capacity"].endswith("inbox_max has taken its place")
    assert "no longer needed" in said["scheduler.idle_timeout_ms"]


@pytest.mark.parametrize("name", sources.RETIRED)
def test_the_same_holds_for_variables(name: str) -> None:
    variable = "FILA_" + name.replace(".", "__").upper()
    warned: list[str] = []
    assert sources.load(None, {variable: "1"}, warned.append) == Config()
    assert warned == [f"{variable}: {name} has no effect: {sources.RETIRED[name]}"]


def test_what_takes_a_retired_settings_place_is_a_setting() -> None:
    named = {word for why in sources.RETIRED.values() for word in why.split() if "." in word}
    assert named and named <= set(SETTINGS)
    assert not set(sources.RETIRED) & set(SETTINGS)


def test_a_share_may_be_written_as_a_whole_number(toml: WriteToml) -> None:
    assert load(toml("[telemetry]\nsample_ratio = 0"), {}).telemetry.sample_ratio == 0


def test_opentelemetrys_own_variables_count_where_nothing_else_is_said(toml: WriteToml) -> None:
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://one:4317", "OTEL_SERVICE_NAME": "mine"}
    telemetry = load(None, standard).telemetry
    assert (telemetry.otlp_endpoint, telemetry.service_name) == ("http://one:4317", "mine")
    path = toml('[telemetry]\notlp_endpoint = "http://two:4317"')
    assert load(path, standard).telemetry.otlp_endpoint == "http://two:4317"
    ours = {"FILA_TELEMETRY__OTLP_ENDPOINT": ""}
    assert load(path, standard | ours).telemetry.otlp_endpoint == ""
    assert load(None, dict.fromkeys(standard, "")) == Config()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT: telemetry.otlp_endpoint = 'x'" in _refusal(
        None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "x"}
    )


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            "[scheduler]\nquantm = 1",
            "unknown setting scheduler.quantm; the nearest is scheduler.quantum",
        ),
        (
            "[server]\nquantum = 1",
            "unknown setting server.quantum; the nearest is scheduler.quantum",
        ),
        ("[storage]\nsynk = 1", "unknown setting storage.synk; the nearest is storage.sync"),
        ("[storage]\nsink = 1", "unknown setting storage.sink; remove it or correct its name"),
        ("[sever]\n", "unknown section [sever]; the nearest is [server]"),
        ("quantum = 1", "quantum is in no section; the nearest is scheduler.quantum"),
        ("[server", "is not valid TOML: "),
        ("[scheduler]\nquantum = 0", "scheduler.quantum = 0: must be an integer from 1 to 1000"),
        ("[scheduler]\nquantum = 1001", "scheduler.quantum = 1001: must be"),
        ("[scheduler]\nquantum = true", "scheduler.quantum = True: must be an integer"),
        ("[scheduler]\nquantum = 1.0", "scheduler.quantum = 1.0: must be an integer"),
        ('[scheduler]\nquantum = "1"', "scheduler.quantum = '1': must be an integer"),
        ("[scheduler.quantum]\n", "scheduler.quantum = {}: must be an integer"),
        ("[server]\nreflection = 1", "server.reflection = 1: must be true or false"),
        ('[storage]\nsync = "no"', 'storage.sync = \'no\': must be "always", "interval" or'),
        ("[storage]\nsync = []", "storage.sync = []: must be"),
        ("[tls]\ncert_file = 1", "tls.cert_file = 1: must be a text"),
        ('[server]\ndata_dir = ""', "server.data_dir = '': must be a text that is not empty"),
        ("[limits]\nmax_payload_bytes = 4194304", "must be an integer from 1 to 4194303"),
        ('[http]\nlisten_addr = "8080"', "http.listen_addr = '8080': must be empty or host:port"),
        ("[telemetry]\nsampling = 1", "unknown setting telemetry.sampling; remove it or correct"),
        ("[telemetry]\nsample_ratio = 1.1", "sample_ratio = 1.1: must be a number from 0 to 1"),
        ("[telemetry]\nsample_ratio = nan", "sample_ratio = nan: must be a number from 0 to 1"),
        ("[telemetry]\nsample_ratio = true", "sample_ratio = True: must be a number from 0 to 1"),
        (
            '[telemetry]\notlp_endpoint = "localhost:4317"',
            "must be empty, http://host:port or https://host:port",
        ),
        ('[telemetry]\notlp_endpoint = "http://me:secret@host"', "must be empty, http://host:port"),
        ("[scheduler]\nworkers = 4", "unknown setting scheduler.workers; remove it or correct"),
        ("[limits]\nmax_attempts = 4", "unknown setting limits.max_attempts; remove it or correct"),
        ("[cluster]\nnode_id = 1", "unknown section [cluster]; remove it or correct its name"),
        ("workers = 1", "workers is in no section; remove it or correct its name"),
    ],
)
def test_a_bad_file_is_refused(document: str, expected: str, toml: WriteToml) -> None:
    path = toml(document)
    text = _refusal(path, {})
    assert text.startswith(f"{path}: ")
    assert expected in text


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("FILA_SCHEDULER__QUANTM", "1", "the nearest is FILA_SCHEDULER__QUANTUM"),
        ("FILA_SERVER__QUANTUM", "1", "the nearest is FILA_SCHEDULER__QUANTUM"),
        ("FILA_SHEDULER__INBOX_MAX", "1", "the nearest is FILA_SCHEDULER__INBOX_MAX"),
        ("FILA_SCHEDULER__quantum", "1", "the nearest is FILA_SCHEDULER__QUANTUM"),
        ("FILA___", "1", "unknown environment variable FILA___; remove it or correct its name"),
        ("FILA_", "1", "unknown environment variable FILA_; remove it or correct its name"),
        ("FILA_SERVER_LISTEN_ADDR", "x", "the nearest is FILA_SERVER__LISTEN_ADDR"),
        ("FILA_LISTEN_ADDR", "x", "the nearest is FILA_SERVER__LISTEN_ADDR"),
        ("FILA_BOOTSTRAP_API_KEY", "x", "the nearest is FILA_AUTH__BOOTSTRAP_APIKEY"),
        ("FILA_PORT", "6666", "unknown environment variable FILA_PORT; remove it or correct"),
        ("FILA_HTTP__LISTEN_ADDR", "x", "http.listen_addr = 'x': must be empty or host:port"),
        ("FILA_DATA_DIR", "", "server.data_dir = '': must be a text that is not empty"),
        ("FILA_SCHEDULER__QUANTUM", "", "scheduler.quantum = '': must be an integer"),
        ("FILA_SCHEDULER__QUANTUM", "1001", "must be an integer from 1 to 1000"),
        pytest.param("FILA_SCHEDULER__QUANTUM", "9" * 5000, "must be an integer", id="5000 digits"),
        ("FILA_SERVER__REFLECTION", "maybe", "server.reflection = 'maybe': must be true or"),
    ],
)
def test_a_bad_variable_is_refused(variable: str, value: str, expected: str) -> None:
    text = _refusal(None, {variable: value})
    assert variable in text
    assert expected in text


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":5555",
        "localhost",
        "localhost:",
        "localhost:x",
        "localhost:-1",
        "localhost:65536",
        "localhost:\N{SUPERSCRIPT TWO}",
        pytest.param("localhost:" + "9" * 5000, id="5000 digits"),
        "::1:5555",
    ],
)
def test_a_bad_address_is_refused(address: str) -> None:
    assert "must be host:port" in _refusal(None, {"FILA_SERVER__LISTEN_ADDR": address})


@pytest.mark.parametrize("given", ["cert_file", "key_file", "ca_file"])
def test_tls_files_that_are_of_no_use_alone_are_refused(given: str) -> None:
    text = _refusal(None, {f"FILA_TLS__{given.upper()}": "x.pem"})
    assert f"tls.{given} is set without" in text


def test_limits_that_contradict_each_other_are_refused() -> None:
    text = _refusal(None, {"FILA_LUA__DEFAULT_TIMEOUT_MS": "51"})
    assert "lua.default_timeout_ms = 51: must not exceed lua.max_timeout_ms (50)" in text
    text = _refusal(None, {"FILA_LIMITS__DEFAULT_IN_FLIGHT": "100001"})
    assert "limits.default_in_flight = 100001: must not exceed limits.max_in_flight" in text
    for key in ("max_frame_bytes", "max_request_bytes"):
        text = _refusal(None, {f"FILA_LIMITS__{key.upper()}": "3145728"})
        assert f"limits.{key} = 3145728: must be at least" in text


@pytest.mark.parametrize("make", ["missing", "directory", "latin-1"])
def test_a_file_that_cannot_be_read_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    if make == "directory":
        path.mkdir()
    elif make == "latin-1":
        path.write_bytes("[server]\ndata_dir = 'caf\xe9'".encode("latin-1"))
    assert _refusal(str(path), {}).startswith(f"{path}: ")


def test_replacing_a_setting_checks_it_too() -> None:
    with pytest.raises(ConfigError, match=r"^server.listen_addr = 'nowhere': must be host:port"):
        dataclasses.replace(Config().server, listen_addr="nowhere")


# --- Secrets --------------------------------------------------------------------------------------


def test_the_bootstrap_key_is_never_shown(toml: WriteToml) -> None:
    config = load(None, {"FILA_AUTH__BOOTSTRAP_APIKEY": "tops3cret"})
    assert config.auth.bootstrap_apikey == "tops3cret"
    assert "tops3cret" not in repr(config)
    for path, env in (
        (toml("[auth]\nbootstrap_apikey = 31337"), {}),
        (None, {"FILA_AUTH__BOOTSTRAP_APIKEY": "31337 x"}),
        (None, {"FILA_AUTH__BOOTSTRAP_APIKEY": "31337\n"}),
    ):
        assert "31337" not in _refusal(path, env)


# --- The reference page ---------------------------------------------------------------------------


def test_the_reference_page_lists_exactly_the_settings() -> None:
    listed = []
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").strip("[]")
        elif line.startswith("| `") and section in {n.partition(".")[0] for n in SETTINGS}:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 4 and cells[1].startswith("`"):
                listed.append((f"{section}.{cells[0].strip('`')}", cells[1].strip("`"), cells[2]))
    expected = [(s.name, json.dumps(s.default), s.allowed) for s in ALL_SETTINGS]
    assert listed == expected
