# SPDX-License-Identifier: AGPL-3.0-only
"""No lane waits beside a token that it could have: after any step, marking every line as due and
every queue as dirty delivers nothing more.

Streams are open all the time, so whatever can be delivered is delivered in the turn that makes it
possible. Lanes need one limit, several, or none; everything that moves, parks, wakes or empties one
is done in any order. A seed names a run of hundreds of steps: what goes wrong needs some of each.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core import check
from fila_server.core.commands import CloseConsumer, FrameTaken
from fila_server.errors import MessageLeased, MessageNotFound
from server.tests.core.harness import Harness, S, check_consistent

QUEUES = ("one", "two")
TENANTS = ("a", "b", "c")
LIMITS = {
    "throttle.mail": ["2,4", "2,4", "1,1", "100", ""],
    "throttle.pay": ["0.5,2", "0.5,2", "3", ""],
    "concurrency:cap:limit": ["1", "1", "3", ""],
    "throttle.*": ["5", "", ""],
    "weight:one:a": ["7", ""],
    "weight:two:*": ["2", ""],
}
LANES: list[dict[str, Any]] = [
    {},
    {"throttle_keys": ["mail"]},
    {"throttle_keys": ["mail"], "throttle_cost": 3},
    {"throttle_keys": ["mail"], "throttle_cost": 30},
    {"throttle_keys": ["pay"]},
    {"throttle_keys": ["mail", "pay"]},
    {"throttle_keys": ["cap", "mail"]},
    {"throttle_keys": ["cap"]},
    {"throttle_keys": ["cap", "mail", "pay"]},
    {"throttle_keys": ["open"]},
    {"throttle_keys": ["mail", "open"]},
]
STEPS = {
    "enqueue": 20,
    "wait": 20,
    "settle": 16,
    "sleep_until_the_broker_wakes": 6,
    "stall_or_go_on": 3,
    "open_stream": 2,
    "disconnect": 3,
    "configure": 4,
    "pause_throttle": 2,
    "resume_throttle": 3,
    "pause": 2,
    "resume": 4,
    "cancel": 4,
    "purge": 1,
    "delete": 1,
    "restart": 1,
}


class Wakeups:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.h = Harness()
        self.streams: dict[int, str] = {}
        self.stalled: set[int] = set()  # streams that do not take their frames
        self.known: list[tuple[str, str]] = []  # (queue, id) of everything that was enqueued
        for queue in QUEUES:
            self.h.create(queue, visibility_timeout_ms=20_000)
            self.open(queue)
        for name, values in LIMITS.items():
            self.h.set(name, values[0])

    def some(self, things: Any) -> Any:
        return self.random.choice(sorted(things))

    def run(self, steps: int) -> None:
        names, weights = list(STEPS), list(STEPS.values())
        for name in self.random.choices(names, weights, k=steps):
            getattr(self, name)()
            self.look()

    def look(self) -> None:
        self.take()
        before = len(self.h.frames)
        check.nudge(self.h.broker)
        self.h.tick()
        assert len(self.h.frames) == before, "a nudge delivered something"
        check_consistent(self.h)

    # --- Producers and consumers ------------------------------------------------------------------

    def enqueue(self) -> None:
        queue = self.some(QUEUES)
        fields = dict(self.random.choice(LANES), weight=self.random.choice([0, 1, 3]))
        fields |= self.random.choice([{}, {}, {}, {"ttl_ms": 900}, {"delay_ms": 300}])
        ids = self.h.enqueue_many(queue, self.random.randint(1, 5), [self.some(TENANTS)], **fields)
        self.known += [(queue, message_id) for message_id in ids]

    def open(self, queue: str, credit: int = 100, batch: int = 100) -> None:
        self.streams[self.h.open(queue, credit, batch)] = queue

    def open_stream(self) -> None:
        if len(self.streams) < 5:
            self.open(self.some(QUEUES), self.random.randint(1, 6), self.random.randint(1, 4))

    def disconnect(self) -> None:
        if len(self.streams) > 1:
            self.close(self.some(self.streams))

    def close(self, consumer: int) -> None:
        del self.streams[consumer]
        unsent = [grant for number, grant, _ in self.h.frames if number == consumer]
        self.h.frames = [frame for frame in self.h.frames if frame[0] != consumer]
        self.h.run(CloseConsumer(consumer, unsent))

    def stall_or_go_on(self) -> None:
        self.stalled ^= {self.some(self.streams)}

    def take(self) -> None:
        """Take the frames of all streams that are not stalled, until no more come."""
        while taken := [frame for frame in self.h.frames if frame[0] not in self.stalled]:
            self.h.frames = [frame for frame in self.h.frames if frame[0] in self.stalled]
            self.h.run(*(FrameTaken(consumer) for consumer, _, _ in taken))

    def settle(self) -> None:
        queues = self.h.broker.state.queues
        leased = [(name, it) for name in QUEUES for it in queues[name].leases.values()]
        for queue, message in self.random.sample(leased, min(len(leased), 3)):
            fields: dict[str, Any] = {}
            match self.random.randint(0, 5):
                case 0:
                    pass
                case 1:
                    fields = {"retry_after_ms": 0}
                case 2:
                    fields = {"retry_after_ms": 700}
                    if message.lane.throttle_keys:
                        fields["throttle_key"] = self.some(message.lane.throttle_keys)
                case _:
                    self.h.ack(queue, message.id)
                    continue
            self.h.nack(queue, message.id, **fields)

    # --- Operators --------------------------------------------------------------------------------

    def configure(self) -> None:
        name = self.some(LIMITS)
        self.h.set(name, self.random.choice(LIMITS[name]))

    def pause_throttle(self) -> None:
        request = pb.PauseRequest(throttle_key=self.some(["mail", "cap", "open"]))
        request.duration_ms = self.random.choice([0, 800])
        self.h.admin(request)

    def resume_throttle(self) -> None:
        for key in ("mail", "cap", "open"):
            self.h.admin(pb.ResumeRequest(throttle_key=key))

    def pause(self) -> None:
        key = self.random.choice(["", "a", "b", "b"])
        self.h.admin(pb.PauseRequest(queue=self.some(QUEUES), fairness_key=key))

    def resume(self) -> None:
        for key in ("", "a", "b"):
            self.h.admin(pb.ResumeRequest(queue=self.some(QUEUES), fairness_key=key))

    def cancel(self) -> None:
        for queue, message_id in self.random.sample(self.known[-20:], min(3, len(self.known))):
            try:
                self.h.admin(pb.CancelMessageRequest(queue=queue, message_id=message_id))
            except (MessageNotFound, MessageLeased):
                pass

    def purge(self) -> None:
        self.h.admin(pb.PurgeRequest(queue=self.some(QUEUES), fairness_key=self.some(TENANTS)))

    def delete(self) -> None:
        queue = self.some(QUEUES)
        self.h.admin(pb.DeleteQueueRequest(queue=queue))
        for consumer in [it for it, name in self.streams.items() if name == queue]:
            self.close(consumer)
        self.h.create(queue, visibility_timeout_ms=20_000)
        self.open(queue)

    # --- Time and faults --------------------------------------------------------------------------

    def wait(self) -> None:
        self.h.clock.advance(self.random.choice([0.001, 0.1, 0.333, 0.5, 1, 1, 2, 21]))
        self.h.tick()

    def sleep_until_the_broker_wakes(self) -> None:
        """Its own timer must be enough."""
        wake_ns = self.h.broker.next_wake_ns()
        self.h.clock.advance(max(0, wake_ns - self.h.clock.mono_ns) / S)
        self.h.tick()

    def restart(self) -> None:
        self.h.restart()
        self.streams.clear()
        for queue in QUEUES:
            self.open(queue)


@pytest.mark.parametrize("seed", range(10))
def test_nobody_waits_beside_a_token(seed: int) -> None:
    Wakeups(seed).run(steps=300)
