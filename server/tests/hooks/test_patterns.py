# SPDX-License-Identifier: AGPL-3.0-only
"""Patterns that people write are admitted; what is admitted is quick, whatever the subject."""

import random
import time
from importlib.resources import files
from typing import Any

import pytest
from lupa.lua54 import LuaError, LuaRuntime

from fila_server.hooks.sandbox import ON_ENQUEUE, Sandbox
from fila_server.hooks.state import PATTERN_STEPS_MAX, ScriptFailed

# A step takes 1 to 5 ns. A bound that is wrong is wrong by powers of the subject's length.
STEP_NS_MOST = 40


def matched(call: str, subject: str) -> str:
    box = Sandbox(
        f"function on_enqueue(msg) local s = msg.headers.s return {{ fairness_key = {call} }} end",
        name="on_enqueue",
        config={},
    )
    text: bytes = box.call(ON_ENQUEUE, (0,), {"s": subject})[1]
    return text.decode()


@pytest.mark.parametrize(
    ("call", "subject", "result"),
    [
        ("s:match('^(%w+)')", "acme-42", "acme"),
        ("s:match('^[^:]+')", "acme:" + "x" * 20_000, "acme"),
        ("s:match('^(.-):')", "acme:" + "x" * 20_000, "acme"),
        ("s:match('^([^:]*):([^:]*):(.*)$')", "acme:b:" + "x" * 8_000, "acme"),
        ("s:match('^(.-):(.-):(.-)$')", "acme:b:" + "x" * 400, "acme"),
        ("s:match('(%w+)@(%w+)%.com')", "mail to joe@acme.com" + " " * 200, "joe"),
        ("s:match('tenant=(%d+)')", "x" * 10_000 + "tenant=42", "42"),
        ("s:match('%d+')", "x" * 20_000 + "42", "42"),
        ("s:match('%s*$')..'!'", "acme", "!"),
        ("s:match('^%s*(.-)%s*$')", "  acme  " + " " * 200, "acme"),
        ("s:gsub('%s+', '')", " a c " * 50 + "m", "ac" * 50 + "m"),
        ("s:gsub('^%s+', '')", " " * 9_000 + "acme", "acme"),
        ("s:gsub('%%', '%%%%')", "a%b", "a%%b"),
        ("s:gsub('[^%w]', '_')", "a.b-c" * 30, "a_b_c" * 30),
        ("s:gsub('(%w+)', string.upper)", "acme corp", "ACME CORP"),
        ("s:gsub('%w+', { a = 'b' })", "a c", "b c"),
        ("s:find('acme', 1, true)", "x" * 50_000 + "acme", "50001"),
        ("s:find('acme')", "x" * 50_000 + "acme", "50001"),
        ("s:find('a.me')", "x" * 10_000 + "acme", "10001"),
        ("s:find('%f[%w]acme%f[%W]')", "- acme -", "3"),
        ("s:match('%b()')", "a(b(c)d)e", "(b(c)d)"),
        ("s:match('(%a)%1')", "abccd", "c"),
        ("(s:gmatch('[^,]+')())", "acme," + "x," * 8_000, "acme"),
        ("(s:gmatch('(%w+)=(%w+)')())", "acme=1,b=2," + "c=3," * 80, "acme"),
        ("s:match('[]]')", "a]b", "]"),
        ("s:match('[^]]+')", "ab]c", "ab"),
        ("s:match('[%]a]+')", "xa]ax", "a]a"),
        ("s:match('[a-]+')", "xa-ax", "a-a"),
        ("s:match('a*')..'!'", "aab", "aa!"),
        ("s:match('^^')", "^", "^"),
        ("s:match('a$b')", "a$b", "a$b"),
        ("s:match('()b')", "ab", "2"),
        ("(12345):match and tostring(12345):match('%d%d') or ('12345'):match('%d%d')", "", "12"),
    ],
)
def test_patterns_that_people_write(call: str, subject: str, result: str) -> None:
    if call.startswith("(12345)"):
        call = "string.match(12345, '%d%d')"
    assert matched(call, subject)[:256] == result


@pytest.mark.parametrize(
    ("call", "size"),
    [
        ("s:match('(.-)(.-)(.-)b')", 300),
        ("s:match('.*.*.*b')", 300),
        ("s:find('a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?b')", 30),
        ("s:gsub('a*a*b', '')", 2_000),
        ("s:gmatch('a*a*b')", 2_000),
        ("s:match('a+b')", 5_000),
    ],
)
def test_patterns_that_could_take_long_are_refused_with_the_way_out(call: str, size: int) -> None:
    with pytest.raises(ScriptFailed) as failed:
        matched(call, "a" * size)
    assert failed.value.line == 1
    assert f"too expensive for a string of {size} bytes: anchor it" in failed.value.text


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("[a", "missing ']'"),
        ("[]", "missing ']'"),
        ("[^", "missing ']'"),
        ("[a%", "missing ']'"),
        ("a%", "ends with '%'"),
        ("%f", "missing '[' after '%f'"),
        ("%b", "missing arguments to '%b'"),
        ("%bx", "missing arguments to '%b'"),
        ("(a", "unfinished capture"),
        ("a)", "invalid pattern capture"),
        ("%1", "invalid capture index"),
        ("(%1)", "invalid capture index"),
    ],
)
def test_patterns_that_are_wrong_are_called_so(pattern: str, said: str) -> None:
    with pytest.raises(ScriptFailed) as failed:
        matched(f"s:match({pattern!r})", "aaa(((")
    assert said in failed.value.text


class Bound:
    """patterns.lua beside the real matcher, in a state without limits."""

    def __init__(self) -> None:
        runtime: Any = LuaRuntime(encoding=None)
        source = files("fila_server.hooks").joinpath("patterns.lua").read_bytes()
        self._analyse = runtime.execute(source)
        self._calls = [
            runtime.eval(b"function(s, p) return string.find(s, p) end"),
            runtime.eval(b"function(s, p) return #string.gsub(s, p, '') end"),
        ]

    def longest(self, pattern: bytes, steps: float) -> int:
        """Return the longest subject that is admitted with so many steps, or -1."""
        once, scan = self._analyse(pattern)
        table = once if pattern.startswith(b"^") else scan
        coefficients = [table[i + 1] for i in range(len(table))]
        low, high = -1, 20_000
        while low < high:
            middle = (low + high + 1) // 2
            cost = sum(c * (middle + 1) ** k for k, c in enumerate(coefficients))
            low, high = (middle, high) if cost <= steps else (low, middle - 1)
        return low

    def worst_ns(self, pattern: bytes, subject: bytes) -> int:
        worst = 0
        for call in self._calls:
            best = 1 << 60
            for _ in range(3):  # the least of three, because others use this machine too
                started = time.thread_time_ns()
                try:
                    call(subject, pattern)
                except LuaError:
                    pass
                best = min(best, time.thread_time_ns() - started)
                if best < 1_000_000:
                    break
            worst = max(worst, best)
        return worst


def subjects(size: int, rng: random.Random) -> list[bytes]:
    return [
        b"a" * size,
        (b"ab" * size)[:size],
        b"a" * (size - 1) + b"b",
        bytes(rng.choices(b"aab(", k=size)),
    ]


def test_no_admitted_pattern_takes_longer_than_its_bound() -> None:
    rng = random.Random(7)
    bound = Bound()
    items = [b"a", b"b", b".", b"%a", b"[ab]", b"[^b]", b"%w", b"(", b")", b"%1", b"%bab", b"%f[a]",
             b"[a-z]", b"$", b"()", b"^"]  # fmt: skip
    steps = PATTERN_STEPS_MAX / 5
    tried = 0
    while tried < 500:
        picked = rng.choices(items, k=rng.randint(1, 8))
        pattern = b"".join(item + rng.choice([b"", b"", b"*", b"+", b"-", b"?"]) for item in picked)
        if rng.random() < 0.3:
            pattern = b"^" + pattern
        try:
            size = bound.longest(pattern, steps)
        except LuaError:
            continue
        if size < 1:
            continue
        tried += 1
        for subject in subjects(size, rng):
            taken_ns = bound.worst_ns(pattern, subject)
            assert taken_ns < steps * STEP_NS_MOST, (pattern, size, subject[:8])


@pytest.mark.parametrize(
    "pattern",
    [b".-.-.-b", b"a*a*a*b", b"(.-)(.-)%1b", b"a?a?a?a?a?a?a?a?a?a?b", b"[ab]*[ab]*c", b"%bab%bab",
     b".-%f[b].-%f[b]c", b"^.*.*.*b", b"a-a-a-$", b"((a*)(a*))b", b"[^%z]*[^%z]*b"],
)  # fmt: skip
def test_the_worst_patterns_at_their_longest(pattern: bytes) -> None:
    bound = Bound()
    size = bound.longest(pattern, PATTERN_STEPS_MAX)
    for subject in subjects(size, random.Random(1)):
        assert bound.worst_ns(pattern, subject) < PATTERN_STEPS_MAX * STEP_NS_MOST
