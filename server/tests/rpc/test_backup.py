# SPDX-License-Identifier: AGPL-3.0-only
"""Who may make a backup, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fila
from fila import AclEntry, Client
from fila_server.config import Config, ServerConfig, StorageConfig
from fila_server.errors import InvalidArgument, PermissionDenied
from fila_server.limits import MIB
from fila_server.rpc.backup import target
from fila_server.storage.backups import contents
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire
from server.tests.torture.volume import volume

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
Start = Callable[..., tuple[BrokerProcess, Wire]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "backups"
    root.mkdir()
    return root


@pytest.fixture
def config(tmp_path: Path, root: Path) -> Config:
    (tmp_path / "data").mkdir()
    return Config(
        server=ServerConfig(data_dir=str(tmp_path / "data")),
        storage=StorageConfig(backup_dir=str(root)),
    )


def test_directories_inside_are_taken_relative_and_absolute(config: Config, root: Path) -> None:
    assert target(config, "") == root
    assert target(config, "daily") == root / "daily"
    assert target(config, "a/b/./c") == root / "a/b/c"
    assert target(config, str(root / "daily")) == root / "daily"
    (root / "real").mkdir()
    (root / "link").symlink_to(root / "real")
    assert target(config, "link/x") == root / "real/x"


@pytest.mark.parametrize(
    "asked", ["..", "../x", "a/../../x", "a/..", "/", "/etc", "out", "out/x", "a\0b", "loop"]
)
def test_directories_elsewhere_are_refused(config: Config, root: Path, asked: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(InvalidArgument):
        target(config, asked)


def test_a_path_like_that_of_the_root_is_not_inside_it(config: Config, root: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"is not inside storage\.backup_dir"):
        target(config, str(root) + "-other")


def test_the_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = Config(
        server=ServerConfig(data_dir=str(tmp_path / "data")),
        storage=StorageConfig(backup_dir=str(tmp_path)),
    )
    with pytest.raises(InvalidArgument, match=r"inside server\.data_dir"):
        target(config, "data")


def test_a_root_that_is_not_mounted_is_not_made(config: Config, root: Path) -> None:
    root.rmdir()
    with pytest.raises(InvalidArgument, match="make it, or mount its volume"):
        target(config, "daily")
    assert not root.exists()


def test_without_a_root_backups_are_off() -> None:
    with pytest.raises(PermissionDenied, match=r"set storage\.backup_dir"):
        target(Config(), "daily")


def test_only_a_key_that_administers_all_queues_makes_backups(
    start: Start, root: Path, tmp_path: Path
) -> None:
    broker, _ = start(
        f'[storage]\nbackup_dir = "{root}"\n[auth]\nbootstrap_apikey = "{BOOTSTRAP}"\n'
    )
    with Client(broker.address, api_key=BOOTSTRAP, timeout=60) as client:
        some = client.create_api_key("some", [AclEntry("admin", "orders.*")]).secret
        most = client.create_api_key("most", [AclEntry("produce", "*"), AclEntry("consume", "*")])
        every = client.create_api_key("every", [AclEntry("admin", "*")]).secret
    for secret in (some, most.secret):
        with (
            Client(broker.address, api_key=secret, timeout=60) as client,
            pytest.raises(fila.PermissionDeniedError, match="on all queues"),
        ):
            list(client.backup())
    with (
        Client(broker.address, timeout=60) as client,
        pytest.raises(fila.UnauthenticatedError),
    ):
        list(client.backup())
    assert list(root.iterdir()) == []
    with Client(broker.address, api_key=every, timeout=60) as client:
        *_, made = client.backup("daily")
        with pytest.raises(fila.InvalidArgumentError, match="not inside"):
            list(client.backup(str(tmp_path)))
    lines = [json.loads(line) for line in broker.log().splitlines()]
    (told,) = [line for line in lines if line["message"] == "backup made"]
    assert told["by"].startswith("every (")
    assert told["path"] == made.path


def test_a_full_volume_costs_the_backup_and_nothing_else(start: Start, tmp_path: Path) -> None:
    with volume(tmp_path, 8 * MIB, files=25) as small:
        broker, _ = start(f'[storage]\nbackup_dir = "{small.path}"\n')
        with Client(broker.address, timeout=60) as client:
            client.create_queue("orders")
            client.enqueue("orders", None, b"first")
            *_, first = client.backup("daily")
            stored = len(list(Path(first.path).iterdir()))
            for number in range(25 - stored - 4):  # room for the directory and a file or two
                (small.path / str(number)).touch()
            with pytest.raises(fila.DiskFullError, match=rf"^{small.path}/daily: the volume was"):
                list(client.backup("daily"))
            assert list((small.path / "daily").iterdir()) == [Path(first.path)]
            client.enqueue("orders", None, b"goes on")
        assert contents.verify(Path(first.path), lambda *_: None).contents.messages == 1
    assert broker.log().count("the volume was full") == 1


def test_a_backup_that_fails_leaves_the_broker_unharmed(start: Start, root: Path) -> None:
    broker, _ = start(f'[storage]\nbackup_dir = "{root}"\n')
    (root / "file").write_text("no directory")
    with Client(broker.address, timeout=60) as client:
        client.create_queue("orders")
        with pytest.raises(fila.FilaError, match="not a directory"):
            list(client.backup("file"))
        client.enqueue("orders", None, b"goes on")
        *_, made = client.backup("daily")
        assert made.messages == 1
    assert "the backup to" in broker.log()
