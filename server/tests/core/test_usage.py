# SPDX-License-Identifier: AGPL-3.0-only
"""Which keys are counted by themselves: the busiest, and what is counted is never lost."""

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.review import REVIEW_NS
from fila_server.core.commands import CloseConsumer
from fila_server.core.schedule.histogram import Histogram
from server.tests.core.harness import Harness, S

LIMIT = 3
COUNTS = ("enqueued", "delivered", "acked", "nacked", "dead_lettered", "retried")


@pytest.fixture
def h() -> Harness:
    """A broker that counts three keys of each kind by themselves."""
    harness = Harness()
    harness.create("q", visibility_timeout_ms=12 * 3600 * 1000)
    state = harness.broker.state
    state.usages.limit = state.throttles.counted.limit = LIMIT
    return harness


def work(h: Harness, key: str, count: int) -> None:
    """Let messages of a fairness key and of a throttle key through, to the last ack."""
    h.enqueue_many("q", count, [key], throttle_keys=[key])
    for message in h.receive("q", count):
        assert h.ack("q", message.id) is None


def fairness_keys(h: Harness) -> set[str]:
    return set(h.broker.state.queues["q"].usages)


def throttle_keys(h: Harness) -> set[str]:
    return set(h.broker.state.throttles.usages)


class Scraper:
    """Adds up what each series has grown by, as whoever sums up rates does."""

    def __init__(self, h: Harness) -> None:
        self._h = h
        self._seen: dict[tuple[str, str], int] = {}
        self.sums: dict[str, int] = {}

    def scrape(self) -> None:
        series = self._series()
        for (name, key), value in series.items():
            before = self._seen.get((name, key), 0)
            assert value >= before, f"{name} of {key or 'the others'} went back"
            self.sums[name] = self.sums.get(name, 0) + value - before
        self._seen = series

    def _series(self) -> dict[tuple[str, str], int]:
        queue = self._h.broker.state.queues["q"]
        throttles = self._h.broker.state.throttles
        found = {}
        for usage in (*queue.usages.values(), queue.others):
            found |= {(name, usage.key): getattr(usage, name) for name in COUNTS}
            found["waits", usage.key] = usage.waits.count
        for decisions in (*throttles.usages.values(), throttles.others):
            for name in ("passed", "blocked"):
                found[name, decisions.key] = getattr(decisions, name)
        return found

    def review(self) -> None:
        """Let the broker review its keys, between two scrapes."""
        self.scrape()
        review(self._h)
        self.scrape()


def review(h: Harness) -> None:
    h.clock.advance(REVIEW_NS / S)
    h.tick()


def test_the_first_keys_are_counted_by_themselves_until_others_are_busier(h: Harness) -> None:
    for key in ("a", "b", "c"):
        work(h, key, 2)
    work(h, "late", 3)
    assert fairness_keys(h) == throttle_keys(h) == {"a", "b", "c"}
    review(h)
    assert fairness_keys(h) == throttle_keys(h) == {"a", "b", "c"}, "3 is not twice as much as 2"
    work(h, "late", 3)
    work(h, "a", 3)
    work(h, "b", 3)
    review(h)
    assert fairness_keys(h) == throttle_keys(h) == {"a", "b", "late"}


def test_a_key_that_is_counted_by_itself_goes_on_from_zero(h: Harness) -> None:
    for key in ("a", "b", "c", "late"):
        work(h, key, 2)
    review(h)
    work(h, "late", 9)
    review(h)
    work(h, "late", 5)
    state = h.broker.state
    assert state.queues["q"].usages["late"].delivered == 5
    assert state.throttles.usages["late"].passed == 5


def test_series_add_up_to_what_happened_whoever_is_counted_where(h: Harness) -> None:
    done = 0
    scraper = Scraper(h)
    for number in range(40):
        count = 1 + number % 7
        work(h, f"k{number % 11}", count)
        done += count
        scraper.review()
    for name in ("enqueued", "delivered", "acked", "passed", "waits"):
        assert scraper.sums[name] == done, name
    assert len(fairness_keys(h)) == len(throttle_keys(h)) == LIMIT


def test_series_add_up_while_keys_have_a_backlog(h: Harness) -> None:
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        h.enqueue_many("q", 20, [key], throttle_keys=[key])
        h.admin(pb.PauseRequest(queue="q", fairness_key=key))
    labels = set()
    scraper = Scraper(h)
    for turn, key in enumerate((*keys, *keys), 1):
        h.admin(pb.ResumeRequest(queue="q", fairness_key=key))
        assert len(h.receive("q", 5)) == 5
        h.admin(pb.PauseRequest(queue="q", fairness_key=key))
        scraper.review()
        labels |= fairness_keys(h) & throttle_keys(h)
        assert scraper.sums["delivered"] == scraper.sums["passed"] == turn * 5
    assert labels == set(keys)


def test_equally_busy_keys_do_not_take_turns_with_a_label(h: Harness) -> None:
    """What counts is what happened lately, not all that a key ever did beside the labels."""
    keys = [f"k{number}" for number in range(6)]
    for key in keys:
        h.enqueue_many("q", 20, [key], throttle_keys=[key])
    for _ in range(5):
        assert len(h.receive("q", 24)) == 24
        review(h)
        assert fairness_keys(h) == throttle_keys(h) == set(keys[:LIMIT])


def test_a_backlog_does_not_keep_a_busy_key_from_its_label(h: Harness) -> None:
    """Keys that wait are looked at, and so are those whose messages never wait for long."""
    for key in ("a", "b", "c", "d"):
        h.enqueue_many("q", 50, [key], throttle_keys=[key])
    review(h)
    h.admin(pb.PauseRequest(queue="q", fairness_key="a"))
    h.receive("q", 90)  # b, c and d get 30 each
    review(h)
    assert fairness_keys(h) == throttle_keys(h) == {"b", "c", "d"}


def test_what_is_settled_after_its_key_was_let_go_of_is_counted(h: Harness) -> None:
    scraper = Scraper(h)
    h.enqueue("q", fairness_key="a")
    (held,) = h.receive("q")
    for key in ("b", "c"):
        work(h, key, 1)
    for _ in range(4):  # resting keys are forgotten meanwhile
        scraper.review()
    for key in ("d", "e", "f"):
        work(h, key, 5)
    scraper.review()
    assert fairness_keys(h) == {"d", "e", "f"}
    assert h.ack("q", held.id) is None
    scraper.review()
    assert scraper.sums["acked"] == 1 + 2 + 15


def test_a_key_that_is_called_other_is_one_of_the_others(h: Harness) -> None:
    work(h, "other", 50)
    review(h)
    assert fairness_keys(h) == throttle_keys(h) == set()
    assert h.broker.state.queues["q"].others.delivered == 50
    assert h.broker.state.throttles.others.passed == 50


def test_a_queue_that_is_deleted_makes_room(h: Harness) -> None:
    h.create("gone")
    h.enqueue_many("gone", 6, ["a", "b", "c"])
    work(h, "late", 1)
    assert fairness_keys(h) == set()
    h.admin(pb.DeleteQueueRequest(queue="gone"))
    h.tick()
    work(h, "late", 1)
    review(h)
    assert fairness_keys(h) == {"late"}


def test_frames_that_never_left_do_not_take_decisions_back(h: Harness) -> None:
    """A counter that goes back looks like a restart to whoever reads it."""
    h.set("throttle.mail", "10,10")
    h.enqueue_many("q", 10, throttle_keys=["mail"])
    stalled = h.open("q", credit=10, batch=10)
    unsent = [grant for _, grant, _ in h.frames]
    h.frames.clear()
    usage = h.broker.state.throttles.usages["mail"]
    assert usage.passed == 10
    h.run(CloseConsumer(stalled, unsent))
    assert usage.passed == 10


def test_no_key_is_counted_by_itself_where_none_should_be() -> None:
    h = Harness()
    h.create("q")
    state = h.broker.state
    state.usages.limit = state.throttles.counted.limit = 0
    work(h, "a", 5)
    review(h)
    assert fairness_keys(h) == throttle_keys(h) == set()
    assert state.queues["q"].others.delivered == state.throttles.others.passed == 5


def test_a_histogram_takes_over_what_another_has_counted() -> None:
    one, other = Histogram((1, 10)), Histogram((1, 10))
    one.add(0.5)
    other.add(5, 2)
    other.add(50)
    one.take(other)
    assert (one.counts, one.sum) == ([1, 2, 1], 60.5)
    assert (other.counts, other.sum) == ([0, 0, 0], 0)
