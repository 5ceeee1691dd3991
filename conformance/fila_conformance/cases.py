# SPDX-License-Identifier: AGPL-3.0-only
"""The cases as typed data: read, checked against the schema, tables expanded. Runs nothing.

YAML scalars are read as JSON reads them: numbers, true, false and null are what they look like, all
else is text. So `on`, `no` and `1:30` mean what a reader thinks they mean.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from fila_conformance.layout import CASES, SCHEMA

MODIFIERS = frozenset(
    {"save", "expect", "error", "start", "until_ms", "at_least_ms", "since", "at_most_ms"}
)


class Level(StrEnum):
    """How much of the contract a client claims. Each level includes those before it."""

    CORE = "core"
    RECOMMENDED = "recommended"
    FULL = "full"

    def includes(self, other: "Level") -> bool:
        order = list(Level)
        return order.index(other) <= order.index(self)


class CaseError(Exception):
    """A file of cases is wrong; the text names the file and the place."""


@dataclass(frozen=True, slots=True)
class Step:
    """One verb with its arguments, and what is done with the outcome."""

    verb: str
    arguments: Any
    # Not given is different from null.
    has_expect: bool = False
    expect: Any = None
    error: Any = None
    save: str | None = None
    start: str | None = None
    until_ms: int | None = None
    at_least_ms: int | None = None
    # The step, by its `save` or `start`, from whose beginning at_least_ms counts; None is this one.
    since: str | None = None
    at_most_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour that every SDK must show."""

    suite: str
    name: str
    about: str
    spec: tuple[str, ...]
    steps: tuple[Step, ...]
    level: Level = Level.FULL
    mode: str = "shared"
    broker: str = "plain"
    feature: str | None = None
    is_slow: bool = False
    has_wiretap: bool = False
    has_proxy: bool = False
    # None creates no queue.
    queue: Mapping[str, Any] | None = field(default_factory=dict)
    script: Mapping[str, Any] = field(default_factory=dict)
    # The certificate of a scripted server; None leaves it without TLS.
    tls: str | None = None
    each: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases of one file."""

    name: str
    about: str
    cases: tuple[Case, ...]


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of JSON, and with no key twice."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)\.[0-9]+", "-0123456789"),
    ("bool", r"true|false", "tf"),
    ("null", r"null", "n"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        line = node.start_mark.line + 1
        raise CaseError(f"line {line}: {', '.join(map(str, twice))} is there twice")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(folder: Path = CASES) -> list[Suite]:
    """All suites by name. Raises CaseError."""
    suites = [_suite(path) for path in sorted(folder.glob("*.yaml"))]
    if not suites:
        raise CaseError(f"no cases in {folder}")
    return suites


def load_file(path: Path) -> Any:
    """One file as data, before any check."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise CaseError(f"{path.name}: {error}") from error
    except CaseError as error:
        raise CaseError(f"{path.name}: {error}") from error


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMA / "case.schema.json").read_text()))


def _suite(path: Path) -> Suite:
    data = load_file(path)
    for error in _validator().iter_errors(data):
        raise CaseError(f"{path.name}: {error.json_path}: {error.message}")
    if data["suite"] != path.stem:
        raise CaseError(f"{path.name}: the suite is called {data['suite']}; name them alike")
    level = data.get("level", Level.FULL)
    cases = tuple(case for entry in data["cases"] for case in _expand(data["suite"], entry, level))
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise CaseError(f"{path.name}: two cases are called {name}")
    return Suite(data["suite"], data["about"], cases)


def _expand(suite: str, entry: Mapping[str, Any], level: str) -> Iterator[Case]:
    for row in entry.get("each", [{}]):
        label = f"[{next(iter(row.values()))}]" if row else ""
        yield Case(
            suite=suite,
            name=entry["name"] + label,
            about=entry["about"],
            spec=tuple(entry["spec"]),
            steps=tuple(_step(step, f"{suite}/{entry['name']}") for step in entry["steps"]),
            level=Level(entry.get("level", level)),
            mode=entry.get("mode", "shared"),
            broker=entry.get("broker", "plain"),
            feature=entry.get("feature"),
            is_slow=entry.get("slow", False),
            has_wiretap=entry.get("wiretap", False),
            has_proxy=entry.get("proxy", False),
            queue=entry.get("queue", {}),
            script=entry.get("script", {}),
            tls=entry.get("tls"),
            each=row,
        )


def _step(data: Mapping[str, Any], case: str) -> Step:
    verbs = [key for key in data if key not in MODIFIERS]
    if len(verbs) != 1:
        raise CaseError(f"{case}: a step has one verb, this one has {verbs or 'none'}")
    modifiers = {key: value for key, value in data.items() if key in MODIFIERS}
    return Step(
        verb=verbs[0],
        arguments=data[verbs[0]],
        has_expect="expect" in modifiers,
        **modifiers,
    )
