# SPDX-License-Identifier: AGPL-3.0-only
"""Those who operate the broker: queues, settings, pauses, purges, redrives, looking at it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from fila.v1 import admin_pb2 as pb
from server.tests.simulation.clients import QUEUES, TENANTS
from server.tests.simulation.scripts import PATIENT, REFUSE, ROUTE
from server.tests.simulation.world import World

_RATES = ("0.0005", "0.2", "1", "4", "25", "400")
_BURSTS = ("1", "1", "2", "5", "12")
_PATTERNS = ("acct:*", "*")


class Operators:
    """Asks for one thing at a time, drawn from the seed."""

    def __init__(
        self,
        world: World,
        random: Random,
        throttle_keys: Sequence[str],
        *,
        is_small: bool,
        most: int,
    ) -> None:
        self._world = world
        self._random = random
        self._throttle_keys = throttle_keys
        self._most = most  # messages that a queue may be told to hold; 0 for any number
        # When a redrive of many turns moved a message, and with it when its life ends, is unknown.
        self._ttls_ms = (0,) if is_small else (0, 0, 0, 0, 0, 2000)

    def open_shop(self) -> None:
        """What is there before anybody comes: the queues, and some limits."""
        for queue in QUEUES:
            self._create(queue)
        for _ in range(self._random.choice((0, 1, 2, 3, 4))):
            self.limit()

    def _create(self, queue: str) -> None:
        random = self._random
        config = pb.QueueConfig(
            visibility_timeout_ms=random.choice((0, 40, 1000, 10_000)),
            max_attempts=random.choice((0, 1, 3)),
            retry_delay_ms=random.choice((0, 0, 20, 1000)),
            retry_delay_max_ms=random.choice((0, 50)),
            default_ttl_ms=random.choice(self._ttls_ms),
            idempotency_window_ms=random.choice((0, 500)),
            max_messages=random.choice((0, 0, 0, self._most)),
            quantum=random.choice((0, 0, 3)),
            on_enqueue_script=random.choice(("", "", "", "", ROUTE)),
            on_failure_script=random.choice(("", "", "", PATIENT)),
        )
        self._world.admin(pb.CreateQueueRequest(name=queue, config=config))

    # --- Queues -----------------------------------------------------------------------------------

    def create(self) -> None:
        self._create(self._random.choice(QUEUES))

    def delete(self) -> None:
        queue = self._random.choice((*QUEUES, QUEUES[0] + ".dlq"))
        request = pb.DeleteQueueRequest(queue=queue)
        request.keep_dead_letters = self._random.random() < 0.3
        self._world.admin(request)
        if self._random.random() < 0.8:
            self._create(queue.removesuffix(".dlq"))

    def update(self) -> None:
        random = self._random
        path, value = random.choice(
            (
                ("max_attempts", random.choice((0, 2))),
                ("visibility_timeout_ms", random.choice((0, 300))),
                ("max_messages", random.choice((0, self._most and 30))),
                ("on_enqueue_script", random.choice(("", "", "", ROUTE, REFUSE))),
                ("quantum", random.choice((1, 5))),
            )
        )
        config = pb.QueueConfig()
        setattr(config, path, value)
        request = pb.UpdateQueueRequest(queue=random.choice(QUEUES), config=config)
        request.update_mask.paths.append(path)
        self._world.admin(request)

    def pause(self) -> None:
        request = pb.PauseRequest(**self._paused())
        if request.throttle_key:
            request.duration_ms = self._random.choice((0, 50, 4000))
        self._world.admin(request)

    def resume(self) -> None:
        self._world.admin(pb.ResumeRequest(**self._paused()))

    def _paused(self) -> dict[str, Any]:
        random = self._random
        queue = random.choice(QUEUES)
        throttle_key = random.choice(self._throttle_keys)
        return random.choice(
            (
                {"queue": queue},
                {"queue": queue, "fairness_key": TENANTS[0]},
                {"throttle_key": throttle_key},
                {"throttle_key": throttle_key},
            )
        )

    # --- Settings ---------------------------------------------------------------------------------

    def limit(self) -> None:
        """Give a throttle key, or a pattern of them, a rate or a limit."""
        random = self._random
        name = random.choice((*self._throttle_keys, *self._throttle_keys, *_PATTERNS))
        rate, burst = random.choice(_RATES), random.choice(_BURSTS)
        key, value = random.choice(
            (
                (f"throttle.{name}", f"{rate},{burst}"),
                (f"throttle.{name}", rate),
                (f"throttle:{name}:rate", rate),
                (f"throttle:{name}:burst", burst),
                (f"concurrency:{name}:limit", random.choice("123")),
            )
        )
        if random.random() < 0.7:
            self._world.admin(pb.SetConfigRequest(key=key, value=value))
            return
        both = (pb.ConfigEntry(key=f"concurrency:{name}:limit", value=random.choice("12")),)
        entries = [pb.ConfigEntry(key=f"throttle.{name}", value=f"{rate},{burst}"), *both]
        self._world.admin(pb.SetConfigRequest(entries=entries))

    def weigh(self) -> None:
        random = self._random
        name = random.choice((*TENANTS, "*"))
        key = f"weight:{random.choice(QUEUES)}:{name}"
        self._world.admin(pb.SetConfigRequest(key=key, value=random.choice("125")))

    def lift(self) -> None:
        """Remove a setting, now and then one that does not exist."""
        known = sorted(self._world.ledger.model.settings) or ["throttle.none"]
        key = self._random.choice(known)
        if self._random.random() < 0.7:
            self._world.admin(pb.DeleteConfigRequest(key=key))
        else:
            self._world.admin(pb.SetConfigRequest(key=key))

    # --- Messages ---------------------------------------------------------------------------------

    def purge(self) -> None:
        key = self._random.choice(("", TENANTS[0]))
        queue = self._random.choice((*QUEUES, QUEUES[0] + ".dlq"))
        self._world.admin(pb.PurgeRequest(queue=queue, fairness_key=key))

    def redrive(self) -> None:
        random = self._random
        home, _ = self._chosen()
        request = pb.RedriveRequest(
            dlq_queue=home if home.endswith(".dlq") else random.choice(QUEUES) + ".dlq",
            count=random.choice((0, 0, 1, 2)),
            fairness_key=random.choice(("", "", TENANTS[0])),
            error_contains=random.choice(("", "", "refused")),
        )
        letters = list(self._world.ledger.model.letters)
        if letters and random.random() < 0.2:
            request.message_ids.extend(random.sample(letters, min(3, len(letters))))
        self._world.admin(request)

    def _chosen(self) -> tuple[str, str]:
        """Return the queue and id of some message, often a dead letter's if there is one."""
        model = self._world.ledger.model
        letters = list(model.letters.values())
        dead = [it for it in letters if (home := model.home(it.queue)) is not None and home.parent]
        if not letters:
            return self._random.choice(QUEUES), next(iter(model.gone), "none")
        letter = self._random.choice(dead if dead and self._random.random() < 0.5 else letters)
        home = model.home(letter.queue)
        assert home is not None
        return home.name, letter.id

    def cancel(self) -> None:
        queue, message_id = self._chosen()
        self._world.admin(pb.CancelMessageRequest(queue=queue, message_id=message_id))

    def look(self) -> None:
        """Ask for what only reads, in the middle of a group."""
        random = self._random
        queue, message_id = self._chosen()
        self._world.admin(
            random.choice(
                (
                    pb.ListQueuesRequest(),
                    pb.GetStatsRequest(queue=queue),
                    pb.PeekRequest(queue=queue, limit=5),
                    pb.ListConfigRequest(),
                    pb.ListThrottlesRequest(),
                    pb.ExplainRequest(queue=queue, fairness_key=random.choice(TENANTS)),
                    pb.ExplainRequest(queue=queue, message_id=message_id),
                )
            )
        )
