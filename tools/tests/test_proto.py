# SPDX-License-Identifier: AGPL-3.0-only
"""Freshness of generated code, and which commits the contract is compared with."""

import subprocess
from pathlib import Path

import pytest

from tools import proto

BUF = "version: v2\nmodules:\n  - path: proto\nbreaking:\n  use: [FILE]\n"
CONTRACT = (
    'syntax = "proto3";\npackage fila.v1;\nmessage Message {{\n  string id = 1;\n{}}}\n'.format
)
FIELD = "  bytes payload = 3;\n"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.example", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, contract: str) -> str:
    (folder / "buf.yaml").write_text(BUF)
    (folder / "proto/fila/v1").mkdir(parents=True, exist_ok=True)
    (folder / "proto/fila/v1/messages.proto").write_text(contract)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    monkeypatch.setattr(proto, "ROOT", folder)
    return folder


def test_the_first_commit_has_nothing_to_break(repository: Path) -> None:
    assert proto.baselines() == {}
    commit(repository, CONTRACT(FIELD))
    assert proto.baselines() == {}


def test_an_edit_is_compared_with_the_last_commit(repository: Path) -> None:
    last = commit(repository, CONTRACT(FIELD))
    (repository / "proto/fila/v1/messages.proto").write_text(CONTRACT(""))
    assert proto.baselines() == {last: "the last commit"}
    assert proto.breaks(last)


def test_a_commit_is_compared_with_its_parent(repository: Path) -> None:
    first = commit(repository, CONTRACT(FIELD))
    commit(repository, CONTRACT(FIELD + "  string more = 4;\n"))
    assert proto.baselines() == {first: "the commit before"}
    assert not proto.breaks(first)


def test_a_release_stays_compatible_for_ever(repository: Path) -> None:
    first = commit(repository, CONTRACT(FIELD))
    git(repository, "tag", "v1.0.0")
    second = commit(repository, CONTRACT(""))
    commit(repository, CONTRACT(""))
    assert proto.baselines() == {second: "the commit before", first: "the last release"}
    assert proto.breaks(first)
    assert not proto.breaks(second)


def test_a_branch_is_compared_with_where_it_left_main(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit(repository, CONTRACT(FIELD))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    monkeypatch.setattr(proto, "ROOT", clone)
    commit(clone, CONTRACT(""))
    last = commit(clone, CONTRACT(""))
    assert list(proto.baselines()) == [git(clone, "rev-parse", "HEAD^"), first]
    assert last not in proto.baselines()


def test_a_shallow_clone_has_no_baseline(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, CONTRACT(FIELD))
    commit(repository, CONTRACT(""))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", str(clone))
    monkeypatch.setattr(proto, "ROOT", clone)
    assert proto.baselines() == {}


def test_a_commit_from_before_the_contract_breaks_nothing(repository: Path) -> None:
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "nothing yet")
    assert not proto.breaks(git(repository, "rev-parse", "HEAD"))


def test_stale_missing_and_left_over_files_are_named(repository: Path) -> None:
    commit(repository, CONTRACT(FIELD))
    package = proto.Package("proto", "fila/v1/*.proto", "out", has_services=False)
    out = repository / "out"
    out.mkdir()
    assert list(proto.stale(package)) == [
        "out/fila/v1/messages_pb2.py: missing",
        "out/fila/v1/messages_pb2.pyi: missing",
    ]
    proto.generate(package, out)
    assert list(proto.stale(package)) == []
    (out / "fila/v1/messages_pb2.py").write_text("edited")
    (out / "fila/v1/gone_pb2.py").write_text("")
    assert list(proto.stale(package)) == [
        "out/fila/v1/messages_pb2.py: stale",
        "out/fila/v1/gone_pb2.py: no .proto file makes this",
    ]


@pytest.mark.parametrize(
    ("changelog", "status", "verdict"),
    [
        ("# Changelog\n\n## Unreleased\n", 0, "changed, which it may before its first release, w"),
        ("# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-01-01\n", 1, "BROKEN w"),
    ],
)
def test_a_break_is_refused_once_there_is_a_release(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changelog: str,
    status: int,
    verdict: str,
) -> None:
    monkeypatch.setattr(proto, "PACKAGES", ())
    monkeypatch.setattr(proto, "lint", lambda: True)
    (repository / "CHANGELOG.md").write_text(changelog)
    first = commit(repository, CONTRACT(FIELD))
    commit(repository, CONTRACT(""))
    assert proto.check() == status
    assert f"proto: {verdict}ith {first[:12]} (the commit before)" in capsys.readouterr().out
