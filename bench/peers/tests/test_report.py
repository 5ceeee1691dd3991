# SPDX-License-Identifier: AGPL-3.0-only
"""Tables, the page, and what is said of peers that are missing or better."""

from typing import Any

import pytest
from rich.console import Console

from bench.peers import page, report
from bench.peers.figures import Latencies
from bench.peers.workloads import FULL, QUICK, SMOKE, cases


def _round(rate: float) -> dict[str, float]:
    names = ("lifecycles_per_s", "enqueues_per_s", "consumes_per_s", "broker_us", "client_us")
    return dict.fromkeys(names, rate)


def _result() -> dict[str, Any]:
    fila = {"peer": "fila", "label": "Fila", "rounds": [_round(10), _round(30), _round(20)]}
    redis = {"peer": "redis", "label": "Redis Streams", "rounds": [_round(25)]}
    described = dict.fromkeys(("version", "guarantee", "python_client", "go_client"), "x")
    case = {"name": "go-1", "title": "Go", "kind": "lifecycle", "entries": [fila, redis]}
    machine = dict.fromkeys(("processor", "cores", "memory_gib", "system", "python", "go"), "x")
    return {
        "date": "2026-01-01",
        "command": "nox",
        "rounds": 3,
        "machine": {**machine, "load": 4.0},
        "peers": {"fila": {"title": "Fila", **described}},
        "missing": {
            "rabbitmq": {"title": "RabbitMQ", "why": "not there", "install": "apt-get install r"}
        },
        "cases": [{**case, "failures": {"NATS JetStream": "no answer"}}],
    }


def test_table_shows_median_and_spread_of_the_rounds() -> None:
    (table,) = report.tables(_result())
    assert table.rows[0][:3] == ["Fila", "20", "10 to 30"]


def test_failed_measurement_is_a_row_of_its_table() -> None:
    (table,) = report.tables(_result())
    assert table.rows[-1][:2] == ["NATS JetStream", "failed"]
    assert len(table.rows[-1]) == len(table.heads)


def test_missing_peer_is_named_with_the_way_to_have_it() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        report.show(_result(), console)
    assert "MISSING: RabbitMQ: not there. To have it: apt-get install r" in shown.get()
    assert "FAILED: go-1, NATS JetStream: no answer" in shown.get()
    text = "\n".join(page.lines(_result(), []))
    assert "| RabbitMQ | missing | not there | `apt-get install r` |" in text
    assert "The machine was shared" in text


def test_what_a_peer_does_better_is_told() -> None:
    result = _result()
    assert list(report.losses(result)) == ["Go: Fila 20 lifecycles/s; Redis Streams 25"]
    result["cases"][0]["entries"][1]["rounds"][0]["broker_us"] = 3
    assert "Go: Fila 20.0 µs of the broker per message; Redis Streams 3.0" in report.losses(result)


def test_what_is_shown_as_the_same_is_no_loss() -> None:
    result = _result()
    result["cases"][0]["entries"][1]["rounds"] = [_round(20.04)]
    assert list(report.losses(result)) == []


def test_lower_latency_is_better() -> None:
    entries = []
    for label, peer, microseconds in (("Fila", "fila", 900), ("Redis Streams", "redis", 500)):
        found = Latencies()
        found.record(0, microseconds * 1000)
        rounds = [{"delivered": found.encoded(), "confirmed": found.encoded()}]
        entries.append({"peer": peer, "label": label, "rounds": rounds})
    case = {"title": "Go", "kind": "latency", "entries": entries, "failures": {}}
    told = list(report.losses({"cases": [case]}))
    assert told[0] == "Go: Fila 0.90 ms at the median; Redis Streams 0.50"


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    written = page.replaced(text, "new")
    assert written == f"before\n{page.BEGIN}\n\nnew\n{page.END}\nafter\n"
    assert page.replaced(written, "new") == written


def test_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        page.replaced("nothing", "new")


def test_the_page_of_this_tree_has_its_markers() -> None:
    page.replaced(page.PAGE.read_text(), "new")


@pytest.mark.parametrize("length", [SMOKE, QUICK, FULL], ids=lambda length: length.name)
def test_every_length_measures_the_same_kinds_with_one_name_each(length: Any) -> None:
    found = list(cases(length, ["fila", "redis", "nats-sync"], ["python", "go"]))
    assert {case.kind for case in found} == {"lifecycle", "latency", "quiet", "shares", "limit"}
    names = [case.name for case in found]
    assert len(names) == len(set(names))
    for case in found:
        labels = [entry.label for entry in case.entries]
        assert len(labels) == len(set(labels)), case.name
