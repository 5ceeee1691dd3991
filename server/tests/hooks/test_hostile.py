# SPDX-License-Identifier: AGPL-3.0-only
"""No script hangs, aborts, starves or escapes the broker.

The attacks are the files in hostile/ and the ones generated here. They run in subprocesses: an
attack that hangs or kills its process fails its test and no other.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# The limit is 10 ms. The rest is for one uninterruptible call, the collector and a slow machine.
WORST_MS = 150
# For all calls of one attack and the start of its process, on a machine that does other things too.
PATIENCE_S = 30


@dataclass(frozen=True)
class Attack:
    name: str
    script: str
    ends: tuple[str, ...]


def from_file(path: Path) -> Iterator[Attack]:
    _, *sections = path.read_text().split("\n--@ ")
    for section in sections:
        title, _, body = section.partition("\n")
        name, *ends = (part.strip() for part in title.split("|"))
        if "function on_enqueue" not in body:
            body = f"function on_enqueue(msg) {body} end"
        yield Attack(f"{path.stem}: {name}", body, tuple(ends))


def brink(name: str, prepare: str, attack: str) -> Iterator[Attack]:
    """Yield attacks that fill the heap to a few bytes below the allocator's limit.

    There every allocation collects all garbage first, and small objects make that slow. One
    concatenation takes the reserve before anybody looks. How far it may go depends on the version
    of Lua, so a whole range is tried.
    """
    for size in range(30_000, 66_000, 900):
        script = f"""
            local keep, piece = {{}}, ("x"):rep({size})
            for i = 1, 8800 do keep[i] = {{}} end
            {prepare}
            function on_enqueue(msg)
              local kept = keep
              local big = piece .. piece .. piece .. piece .. piece .. piece .. piece .. piece
              {attack}
            end"""
        yield Attack(f"brink: {name}, {size}", script, ("memory limit", "time limit", "answer"))


def compiled() -> Iterator[Attack]:
    ends = ("answer", "script: ")
    tail = "\nfunction on_enqueue() end"
    yield Attack("compile: nested tables", "x = " + "{" * 5000 + tail, ends)
    yield Attack("compile: nested brackets", "x = " + "(" * 15000 + tail, ends)
    yield Attack("compile: nested functions", "x = " + "function() return " * 1500 + tail, ends)
    yield Attack("compile: nested blocks", "do " * 9000 + tail, ends)
    yield Attack("compile: and", "x = a " + "and a " * 5300 + tail, ends)
    yield Attack("compile: or", "x = a " + "or a " * 6000 + tail, ends)
    yield Attack("compile: break", "while x do " + "break " * 5200 + "end" + tail, ends)
    yield Attack("compile: gotos", "do " + "goto a " * 4500 + "::a:: end" + tail, ends)
    yield Attack("compile: elseif", "if x then " + "elseif x then " * 2200 + "end" + tail, ends)
    yield Attack("compile: fields", "x = a" + ".a" * 16000 + tail, ends)
    yield Attack("compile: calls", "x = a" + "()" * 16000 + tail, ends)
    yield Attack("compile: concatenations", "x = a" + "..a" * 10000 + tail, ends)
    yield Attack("compile: powers", "x = 2" + "^2" * 15000 + tail, ends)
    yield Attack("compile: list", "x = {" + "1," * 16000 + "}" + tail, ends)
    yield Attack(
        "compile: labels", "::" + ":: ::".join(f"a{i}" for i in range(3000)) + "::" + tail, ends
    )
    yield Attack("compile: locals", "local " + "a," * 15000 + "a" + tail, ends)
    yield Attack("compile: too long", "-" * 40000 + tail, ("longer than",))
    yield Attack("compile: byte code", "\x1bLua" + tail, ("binary chunk", "unexpected symbol"))
    yield Attack("compile: NULs", "\0" * 1000 + tail, ends)
    yield Attack("compile: unfinished string", "x = '" + "a" * 30000 + tail, ends)


def attacks() -> list[Attack]:
    found = [attack for path in sorted(HERE.glob("hostile/*.lua")) for attack in from_file(path)]
    found += compiled()
    found += brink("tables", "", "for i = 1, 300 do local x = {} end")
    found += brink("strings", "", "for i = 1, 300 do local x = 'a' .. i end")
    found += brink("straight", "", "local x " + "x = {} " * 190)
    found += brink("numbers", "", "local x " + f"x = {' .. '.join(['1.5'] * 150)} " * 3)
    found += brink(
        "gsub", "local s = ('abcdefgh'):rep(3000)", "for i = 1, 3 do s:gsub('...', tostring) end"
    )
    found += brink(
        "concat", "local t = {} for i = 1, 4000 do t[i] = i + 0.5 end", "local x = table.concat(t)"
    )
    found += brink(
        "format",
        "local t, f = {}, ('%s'):rep(200) for i = 1, 200 do t[i] = i + 0.5 end",
        "for i = 1, 20 do local x = f:format(table.unpack(t)) end",
    )
    found += brink(
        "utf8",
        "local t = {} for i = 1, 200 do t[i] = 1000 + i end",
        "for i = 1, 20 do local x = utf8.char(table.unpack(t)) end",
    )
    return found


ATTACKS = attacks()
GROUPS = sorted({attack.name.partition(":")[0] for attack in ATTACKS})


def run(batch: list[Attack]) -> dict[str, dict[str, Any]]:
    """Return the result of every attack by name; one that was fatal has {"fatal": why}."""
    results: dict[str, dict[str, Any]] = {}
    while batch:
        given = json.dumps([{"name": a.name, "script": a.script} for a in batch])
        command = [sys.executable, str(HERE / "hostile_runner.py")]
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=PATIENCE_S
            )
            out, why = done.stdout, f"exit status {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired as hang:
            out, why = (hang.stdout or b"").decode(), "hangs"
        lines = [json.loads(line) for line in out.splitlines()]
        results |= {line["name"]: line for line in lines if "name" in line}
        batch = [attack for attack in batch if attack.name not in results]
        if batch:
            started = lines[-1]["start"] if lines else batch[0].name
            results[started] = {"fatal": why}
            batch = [attack for attack in batch if attack.name != started]
    return results


def fault(attack: Attack, result: dict[str, Any]) -> str | None:
    if "fatal" in result:
        return str(result["fatal"])
    if not result["innocent"]:
        return "another queue's hook got a wrong answer"
    if result["worst_ms"] > WORST_MS:
        return f"held the broker for {result['worst_ms']:.0f} ms"
    for end in result["ends"]:
        if not any(
            end == "answer" if wanted == "answer" else wanted in end for wanted in attack.ends
        ):
            return f"ended with {end!r}, not with one of {attack.ends}"
    return None


@pytest.mark.parametrize("group", GROUPS)
def test_every_attack_of_the_group_is_contained(group: str) -> None:
    batch = [attack for attack in ATTACKS if attack.name.startswith(f"{group}:")]
    results = run(batch)
    faults = {a.name: why for a in batch if (why := fault(a, results[a.name]))}
    assert not faults


def test_the_table_is_complete() -> None:
    assert len(ATTACKS) > 250
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
