# SPDX-License-Identifier: AGPL-3.0-only
"""`fila auth`, `--api-key` and the `--tls` options, on a broker that wants all of them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.broker_process import BrokerProcess

from .conftest import Answer, Fila

CERTS = Path(__file__).parents[1] / "rpc" / "certs"
BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
CA = str(CERTS / "ca.pem")


class Keyed(Fila):
    """Runs `fila` with the settings that the broker wants, from the environment."""

    def __call__(self, *arguments: str, key: str = BOOTSTRAP, **environment: str) -> Answer:  # type: ignore[override]
        settings = {
            "FILA_API_KEY": key,
            "FILA_TLS_CA": CA,
            "FILA_TLS_CERT": str(CERTS / "client.pem"),
            "FILA_TLS_KEY": str(CERTS / "client.key"),
        }
        return super().__call__(*arguments, **{**settings, **environment})


@pytest.fixture(scope="module")
def fila(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    files = {"CERT_FILE": "server.pem", "KEY_FILE": "server.key", "CA_FILE": "ca.pem"}
    environment = {f"FILA_TLS__{name}": str(CERTS / file) for name, file in files.items()}
    environment["FILA_AUTH__BOOTSTRAP_APIKEY"] = BOOTSTRAP
    broker = BrokerProcess(tmp_path_factory.mktemp("auth"), environment=environment)
    broker.start()
    try:
        yield Keyed(broker.address)
    finally:
        broker.close()


def test_a_key_is_shown_when_it_is_made_and_never_again(fila: Keyed) -> None:
    words = ("auth", "create", "billing", "--allow", "produce:orders.*", "--expires", "30d")
    first, key = fila(*words).ok().splitlines()
    key_id = key.split("_")[1]
    assert first == f'Created API key {key_id} "billing". It is not shown again:'
    document = fila("auth", "create", "chief", "--superadmin", "--json").json()
    assert document["secret"].startswith(f"fila_{document['key_id']}_")
    assert (document["name"], document["superadmin"], document["acl"]) == ("chief", True, [])

    shown = fila("auth", "list").ok()
    header, *lines = [line.split() for line in shown.splitlines()]
    assert header == ["KEY", "ID", "NAME", "CREATED", "EXPIRES", "MAY"]
    by_id = {line[0]: line for line in lines}
    assert by_id[key_id][1] == "billing"
    assert re.search(r" in (30d|29d 23h) produce:orders\.\*$", " ".join(by_id[key_id]))
    assert by_id[document["key_id"]][-2:] == ["never", "everything"]
    listed = fila("auth", "list", "--json")
    rows = {row["key_id"]: row for row in listed.json()["keys"]}
    assert rows[key_id]["acl"] == [{"permission": "produce", "pattern": "orders.*"}]
    assert rows[document["key_id"]]["superadmin"] is True
    for secret in (key, document["secret"], BOOTSTRAP):
        assert secret.split("_", 2)[-1] not in shown + listed.out
        assert "secret" not in listed.out


def test_a_key_works_until_it_is_revoked(fila: Keyed) -> None:
    fila("queue", "create", "mail").ok()
    made = fila("auth", "create", "mailer", "--allow", "produce:mail", "--json").json()
    assert fila("enqueue", "mail", key=made["secret"]).ok()
    error = fila("stats", "mail", key=made["secret"]).error()
    assert error == (
        'the API key "mailer" has no admin permission on queue "mail"; ask for a key that has it'
    )
    answer = fila("auth", "revoke", made["key_id"]).ok()
    assert answer == f'Revoked API key "{made["key_id"]}"\n'
    error = fila("enqueue", "mail", key=made["secret"]).error()
    assert error.startswith("the broker at ") and "does not accept this API key" in error
    assert made["secret"] not in error
    error = fila("auth", "revoke", made["key_id"]).error()
    assert error.endswith("; list the keys with: fila auth list")


def test_acls_are_shown_and_replaced(fila: Keyed) -> None:
    made = fila("auth", "create", "worker", "--allow", "consume:a", "--json").json()
    key_id = made["key_id"]
    answer = fila("auth", "acl", "set", key_id, "--allow", "consume:b", "--allow", "admin:b.*").ok()
    assert answer == f'API key "{key_id}" may now consume:b admin:b.*\n'
    lines = fila("auth", "acl", "get", key_id).ok().splitlines()
    assert [line.split() for line in lines] == [
        ["PERMISSION", "PATTERN"],
        ["consume", "b"],
        ["admin", "b.*"],
    ]
    expected = [
        {"permission": "consume", "pattern": "b"},
        {"permission": "admin", "pattern": "b.*"},
    ]
    document = fila("auth", "acl", "get", key_id, "--json", key=made["secret"]).json()
    assert document == {"key_id": key_id, "superadmin": False, "acl": expected}
    words = ("auth", "acl", "set", key_id, "--allow", "produce:c", "--json")
    assert fila(*words).json()["acl"] == [{"permission": "produce", "pattern": "c"}]
    chief = fila("auth", "create", "chief", "--superadmin", "--json").json()["key_id"]
    assert fila("auth", "acl", "get", chief).ok() == "superadmin: everything\n"


def test_a_key_cannot_give_more_than_it_has(fila: Keyed) -> None:
    words = ("auth", "create", "tenant", "--allow", "admin:t.*", "--allow", "consume:t.*")
    secret = fila(*words, "--json").json()["secret"]
    child = ("auth", "create", "child", "--allow")
    fila(*child, "consume:t.x", "--json", key=secret).json()
    error = fila(*child, "produce:t.x", key=secret).error()
    assert error.startswith('the API key "tenant" may not grant produce:t.x; ')
    error = fila("auth", "create", "child", "--superadmin", key=secret).error()
    assert error.startswith('the API key "tenant" may not make a superadmin key; ')


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("create", "x"), "say what the key may do: --allow PERMISSION:PATTERN, or --superadmin"),
        (("create", "x", "--superadmin", "--allow", "produce:*"), "exclude each other"),
        (("create", "x", "--allow", "produce"), '"produce" is not PERMISSION:PATTERN; write '),
        (("create", "x", "--allow", "read:orders"), '"read:orders" is not PERMISSION:PATTERN'),
        (("create", "x", "--superadmin", "--expires", "soon"), '"soon" is not a duration'),
        (("create", "x", "--superadmin", "--expires", "0"), "--expires is how long the key works"),
        (("create", "x", "--superadmin", "--expires", "9" * 20), "--expires is how long"),
        (("acl", "set", "id"), "name at least one --allow PERMISSION:PATTERN"),
    ],
)
def test_wrong_usage_is_one_line(offline: Fila, words: tuple[str, ...], text: str) -> None:
    assert text in offline("auth", *words).error(2)


def test_what_the_broker_refuses_is_one_line(fila: Keyed) -> None:
    error = fila("auth", "create", "x", "--allow", "produce:or*ers").error()
    assert error.startswith('acl[0].pattern "or*ers" is not a queue name')


def test_without_a_key_one_is_asked_for(fila: Keyed) -> None:
    error = fila("queue", "list", key="").error()
    assert error.endswith("wants an API key; set FILA_API_KEY or pass --api-key")


def test_keys_that_are_off_are_explained(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        error = Fila(broker.address)("auth", "list").error()
        assert error == "API keys are off; set auth.bootstrap_apikey to turn them on"
    finally:
        broker.close()


def test_options_win_over_the_environment(fila: Keyed) -> None:
    options = ("--tls-ca", CA, "--tls-server-name", "localhost", "--api-key", BOOTSTRAP)
    other = str(CERTS / "other_ca.pem")
    fila(*options, "queue", "list", key="wrong", FILA_TLS_CA=other).ok()
    fila("queue", "list", *options, key="wrong", FILA_TLS_CA=other).ok()


@pytest.mark.parametrize(
    "settings",
    [
        {"FILA_TLS_SERVER_NAME": "broker.example"},
        {"FILA_TLS_CA": str(CERTS / "other_ca.pem")},
        {"FILA_TLS_CERT": "", "FILA_TLS_KEY": ""},
    ],
)
def test_a_handshake_that_fails_is_one_line(fila: Keyed, settings: dict[str, str]) -> None:
    error = fila("queue", "list", "--timeout", "5", **settings).error()
    assert error.startswith((f"no broker answers at {fila.address} over TLS; ", "no answer from "))
    assert BOOTSTRAP not in error
