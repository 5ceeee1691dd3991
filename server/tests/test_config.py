# SPDX-License-Identifier: AGPL-3.0-only
"""Defaults, the file, the environment, refusals, and the reference page."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fila_server import config as config_module
from fila_server.config import Config, ConfigError, Setting, load, settings

ALL_SETTINGS = list(settings())
BY_NAME = {setting.name: setting for setting in ALL_SETTINGS}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"

WriteToml = Callable[[str], str]


@pytest.fixture(autouse=True)
def _no_stray_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a fila.toml of the machine or of the working directory out of the tests."""
    monkeypatch.chdir(tmp_path)
    paths = (Path("fila.toml"), tmp_path / "etc-fila.toml")
    monkeypatch.setattr(config_module, "DEFAULT_PATHS", paths)


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    def write(text: str) -> str:
        path = tmp_path / "given.toml"
        path.write_text(text)
        return str(path)

    return write


def _value(config: Config, name: str) -> object:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def _another(setting: Setting) -> object:
    """A valid value that is not the default."""
    special: dict[str, object] = {
        "limits.default_in_flight": 255,
        "limits.max_name_bytes": 200,
        "server.listen_addr": "[::1]:0",
        "http.listen_addr": "localhost:8080",
        "telemetry.otlp_endpoint": "https://collector:4317",
        "server.log_format": "json",
        "server.log_level": "debug",
        "storage.sync": "never",
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
    assert load(None, {"FILA_ADDR": "x", "FILA_API_KEY": "y", "OTHER__THING": "z"}) == Config()


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
        ('[telemetry]\notlp_endpoint = "collector:4317"', "must be empty or an http://"),
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
        ("FILA___", "1", "the nearest is FILA_"),
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
        elif line.startswith("| `") and section in {n.partition(".")[0] for n in BY_NAME}:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 4 and cells[1].startswith("`"):
                listed.append((f"{section}.{cells[0].strip('`')}", cells[1].strip("`"), cells[2]))
    expected = [(s.name, json.dumps(s.default), s.allowed) for s in ALL_SETTINGS]
    assert listed == expected
