# SPDX-License-Identifier: AGPL-3.0-only
"""What was asked, what was answered, and where every message must be: the model at work.

The ledger says what a group of commands must have led to: what time brought, then each command in
turn, then the deliveries. It predicts every answer, and leaves to the broker only what is the
broker's to choose: ids, tokens, and which of the messages that may be delivered comes next; rules
judge that choice. It sees commands and effects and nothing of the broker's inside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from fila.v1.messages_pb2 import (
    FAILURE_CAUSE_EXPIRED,
    FAILURE_CAUSE_HOOK,
    FAILURE_CAUSE_MAX_ATTEMPTS,
    FAILURE_CAUSE_NACK,
    Message,
)
from fila_server.config import Config
from fila_server.core.admin.change import Change
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import (
    Ack,
    Admin,
    CloseConsumer,
    Enqueue,
    Extend,
    FrameTaken,
    Nack,
    OpenConsumer,
    SettleGrants,
)
from fila_server.core.wire.answers import Duplicate
from fila_server.errors import FilaError
from fila_server.limits import FAILURES_KEPT
from server.tests.simulation import grants, rules
from server.tests.simulation.broken import Broken, expect
from server.tests.simulation.model import (
    DELAYED,
    LEASED,
    PENDING,
    Deadline,
    Home,
    Lease,
    Letter,
    Model,
    Rest,
    Seen,
    restarted,
)
from server.tests.simulation.operations import Operations
from server.tests.simulation.scripts import PATIENT, REFUSE, fate, routed
from server.tests.simulation.turn import Consumer, Turn

_DAY_NS = 86_400_000 * NS_PER_MS
_HOUR_MS = 3_600_000


class Ledger:
    """The model, and what a restart forgets: consumers and counters."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = Model()
        self.turns = 0
        self.consumers: dict[int, Consumer] = {}
        self.counters: dict[int, Counter[str]] = defaultdict(Counter)
        self.uncounted: set[int] = set()  # queues whose counters nobody can be sure of
        self.requests: dict[int, list[Any]] = {}  # what an Enqueue's drafts were made of
        self.operations: Operations = Operations(self)
        self._homes = 0
        self._ids: set[str] = set()  # ever used
        self._tokens: set[str] = set()
        self._changes: set[int] = set()  # tickets whose answer confirms a change

    # --- Turns ------------------------------------------------------------------------------------

    def apply(self, turn: Turn) -> None:
        """Follow a group, and raise Broken where the broker did something else."""
        self.turns += 1
        self.pass_time(turn.now)
        answers = {
            ticket: answer.response if isinstance(answer, Change) else answer
            for ticket, answer in (*turn.effects.answers, *turn.effects.durable_answers)
        }
        closing: set[int] = set()
        for command in turn.commands:
            kind = command.__class__
            ticket = getattr(command, "ticket", None)
            answer = answers.pop(ticket, _MISSING)
            if kind is Admin:
                closing |= self.operations.administer(command, answer, turn.now)
                continue
            if ticket is not None and answer is _MISSING:
                raise Broken("10: every command is answered", f"{command} was not")
            _FOLLOW[kind](self, command, answer, turn.now)
        for ticket, answer in answers.items():
            self.operations.finish(ticket, answer)
        closed = {consumer for consumer, _ in turn.effects.closed}
        if closed != closing:
            raise Broken("streams end with their queue", f"{closed} ended, not {closing}")
        for frame in turn.frames:
            self._deliver(*frame, turn.now)

    def pass_time(self, now: Now) -> None:
        """Expire leases, end lives, release what was delayed."""
        letters = self.model.letters
        mono_ns = now.mono_ns
        for letter in list(letters.values()):
            if letter.lease is not None and letter.lease.deadline.mono_ns <= mono_ns:
                self._count(letter, "expired")
                self._fail(self._released(letter), "lease expired", FAILURE_CAUSE_EXPIRED, now)
        for letter in list(letters.values()):
            is_over = letter.ends is not None and letter.ends.mono_ns <= mono_ns
            if is_over and letter.place != LEASED:
                self._time_out(letter)
            elif letter.place == DELAYED and letter.due and letter.due.mono_ns <= mono_ns:
                self.put(self.operations.claim(letter._replace(place=PENDING)))
        for where, seen in list(self.model.seen.items()):
            self.model.seen[where] = seen.passed(now)
        for bucket in self.model.buckets.values():
            bucket.pass_time(now)

    def put(self, letter: Letter) -> None:
        self.model.letters[letter.id] = letter

    def remove(self, letter: Letter, how: str) -> None:
        del self.model.letters[letter.id]
        self.model.gone[letter.id] = how

    def _count(self, letter: Letter, what: str, by: int = 1) -> None:
        self.counters[letter.queue][what] += by

    def _time_out(self, letter: Letter) -> None:
        self.remove(letter, "timed out")
        self._count(letter, "timed_out")
        if letter.doom:
            self.uncounted.add(letter.queue)  # or a purge was faster

    def add_home(self, name: str, config: Any, parent: str = "") -> Home:
        self._homes += 1
        home = self.model.homes[name] = Home(self._homes, name, config, parent)
        return home

    def is_routed(self, queue: str, script: str) -> bool:
        home = self.model.homes.get(queue)
        return home is not None and home.config.on_enqueue_script == script

    def confirm(self, ticket: int) -> None:
        """Note that this ticket's answer promises a change to stay."""
        self._changes.add(ticket)

    def is_promise(self, ticket: int) -> bool:
        return ticket in self._changes

    # --- Enqueue ----------------------------------------------------------------------------------

    def _enqueue(self, command: Enqueue, results: Any, now: Now) -> None:
        requests = self.requests.pop(command.ticket)
        if len(results) != len(requests):
            raise Broken("one result per item", f"{len(results)} for {len(requests)} messages")
        for request, result in zip(requests, results, strict=True):
            self._enqueue_one(request, result, now)
        if not all(isinstance(result, FilaError) for result in results):
            self.confirm(command.ticket)

    def _enqueue_one(self, request: Any, result: Any, now: Now) -> None:
        home = self.model.homes.get(request.queue)
        if home is None:
            expect(result, "QUEUE_NOT_FOUND", request)
            return
        due_ns = request.deliver_at.ToNanoseconds() - now.wall_ns
        if due_ns > self.config.limits.max_delay_ms * NS_PER_MS:  # the clock was set back since
            expect(result, "INVALID_ARGUMENT", request)
            return
        seen = self.model.seen.get((home.number, request.idempotency_key))
        if seen is not None and seen.binds(now, is_duplicate=isinstance(result, Duplicate)):
            if not isinstance(result, Duplicate) or result != seen.message_id:
                raise Broken("idempotency", f"{request} gave {result!r}, not a duplicate")
            self.counters[home.number]["duplicates"] += 1
            return
        if self._is_full(home, result):
            expect(result, "QUEUE_FULL", request)
            return
        if home.config.on_enqueue_script == REFUSE:
            expect(result, "HOOK_FAILED", request)
            return
        if isinstance(result, FilaError | Duplicate):
            raise Broken("an enqueue is accepted", f"{request} gave {result!r}")
        self._accept(home, request, str(result), now)

    def meet(self, throttle_keys: tuple[str, ...], now: Now) -> None:
        """Note throttle keys, so that those seen for the first time get their buckets."""
        if not self.model.throttle_keys.issuperset(throttle_keys):
            self.model.throttle_keys.update(throttle_keys)
            self.operations.limit(now)

    def _is_full(self, home: Home, result: Any) -> bool:
        most = home.config.max_messages
        # While a purge or redrive is under way nobody outside knows how far it has come.
        letters = self.model.of(home)
        least = sum(not letter.doom for letter in letters)
        more = sum(self.operations.may_be_in(it, home) for it in self.model.letters.values())
        if not most or len(letters) + more < most:
            return False
        is_refused = isinstance(result, FilaError) and result.reason == "QUEUE_FULL"
        return is_refused if least < most else True

    def _accept(self, home: Home, request: Any, message_id: str, now: Now) -> None:
        if message_id in self._ids:
            raise Broken("ids are never used twice", message_id)
        self._ids.add(message_id)
        key = request.fairness_key or "default"
        keys, cost = tuple(sorted(set(request.throttle_keys))), request.throttle_cost or 1
        if home.config.on_enqueue_script:
            key, _, keys, cost = routed(request.headers)
        letter = Letter(
            message_id,
            home.number,
            key,
            keys,
            cost if keys else 1,
            request.payload,
            tuple(sorted(request.headers.items())),
            since=self.turns,
        )
        due = Deadline.after(now, request.delay_ms * NS_PER_MS)
        if request.HasField("deliver_at"):
            due = Deadline.after(now, max(0, request.deliver_at.ToNanoseconds() - now.wall_ns))
        if due.span_ns:
            letter = letter._replace(place=DELAYED, due=due)
        ttl_ms = request.ttl_ms or home.config.default_ttl_ms
        if ttl_ms:
            letter = letter._replace(ends=Deadline.after(now, ttl_ms * NS_PER_MS))
        self.put(letter)
        self.meet(keys, now)
        self._count(letter, "enqueued")
        if request.idempotency_key:
            window_ns = home.config.idempotency_window_ms * NS_PER_MS or _DAY_NS
            seen = Seen.at(now, message_id, window_ns)
            self.model.seen[home.number, request.idempotency_key] = seen

    # --- Settling ---------------------------------------------------------------------------------

    def _ack(self, command: Ack, results: Any, now: Now) -> None:
        for item, result in zip(command.items, results, strict=True):
            letter = self._leased(item, result)
            if letter is not None:
                self.acked(letter)

    def acked(self, letter: Letter) -> None:
        self._released(letter)
        self.remove(letter, "acked")
        self._count(letter, "acked")

    def _nack(self, command: Nack, results: Any, now: Now) -> None:
        for item, result in zip(command.items, results, strict=True):
            letter = self._leased(item, result)
            if letter is not None:
                self.nacked(letter, item, now)

    def nacked(self, letter: Letter, item: Any, now: Now) -> None:
        self._count(letter, "nacked")
        if not item.HasField("retry_after_ms"):
            self._fail(
                self._released(letter), item.error, FAILURE_CAUSE_NACK, now, item.dead_letter
            )
            return
        if item.throttle_key and not self._home(letter).parent:
            most_ms = self.config.limits.max_backpressure_ms
            span_ns = min(item.retry_after_ms, most_ms) * NS_PER_MS
            rest = Rest.after(now, span_ns)
            known = self.model.backpressure.get(item.throttle_key, rest)
            self.model.backpressure[item.throttle_key] = max(known, rest)
        # Given back at once and unseen, it goes to its place, as if it had never been out.
        is_unseen = not item.retry_after_ms and not item.error
        letter = self._released(letter)._replace(is_fresh=letter.is_fresh and is_unseen)
        if letter.ends is not None and letter.ends.mono_ns <= now.mono_ns:
            self._time_out(letter)
        elif is_unseen:
            self.put(self.operations.claim(letter))
        else:
            self._retry(letter, item.error, item.retry_after_ms, now)

    def _extend(self, command: Extend, results: Any, now: Now) -> None:
        for item, result in zip(command.items, results, strict=True):
            letter = self._leased(item, None if isinstance(result, int) else result)
            if letter is None or letter.lease is None:
                continue
            home = self._home(letter)
            span_ns = (item.extend_ms or self.visibility_ms(home)) * NS_PER_MS
            if result != now.wall_ns + span_ns:
                raise Broken("an extension counts from now", f"{item} gave {result}")
            self.prolonged(letter, span_ns, now)

    def prolonged(self, letter: Letter, span_ns: int, now: Now) -> None:
        if letter.lease is not None:
            lease = letter.lease._replace(deadline=Deadline.after(now, span_ns))
            self.put(letter._replace(lease=lease))

    def _leased(self, item: Any, result: Any) -> Letter | None:
        """Return the leased message that an item settles, if it is right to be accepted."""
        home = self.model.homes.get(item.queue)
        if home is None:
            expect(result, "QUEUE_NOT_FOUND", item)
            return None
        letter = self.model.letters.get(item.message_id)
        if letter is None or letter.queue != home.number or letter.lease is None:
            expect(result, "LEASE_EXPIRED" if item.lease_token else "MESSAGE_NOT_FOUND", item)
            return None
        if item.lease_token and item.lease_token != letter.lease.token:
            expect(result, "LEASE_EXPIRED", item)
            return None
        key = getattr(item, "throttle_key", "")
        if key and item.HasField("retry_after_ms") and key not in letter.throttle_keys:
            expect(result, "INVALID_ARGUMENT", item)
            return None
        if result is not None:
            raise Broken("2: a live lease can be settled", f"{item} gave {result!r}")
        return letter

    def _released(self, letter: Letter) -> Letter:
        letter = letter._replace(lease=None, place=PENDING, is_fresh=False, since=self.turns)
        self.put(letter)
        return letter

    def _fail(
        self, letter: Letter, error: str, cause: int, now: Now, is_hopeless: bool = False
    ) -> None:
        """Count an attempt, and retry or bury the message."""
        if letter.ends is not None and letter.ends.mono_ns <= now.mono_ns:
            self._time_out(letter)
            return
        home = self._home(letter)
        config = home.config
        attempts = letter.attempts + 1
        delay_ms = 0
        if config.retry_delay_ms:
            longest = config.retry_delay_max_ms or _HOUR_MS
            delay_ms = min(longest, config.retry_delay_ms << min(attempts - 1, 40))
        is_dead = is_hopeless or 0 < config.max_attempts <= attempts
        if is_hopeless:
            pass
        elif config.on_failure_script == PATIENT and not is_dead:
            action, delay_ms = fate(attempts)
            is_dead = action == "dlq"
            cause = FAILURE_CAUSE_HOOK if is_dead else cause
        elif is_dead:
            cause = FAILURE_CAUSE_MAX_ATTEMPTS
        failures = (*letter.failures, (cause, error))[-FAILURES_KEPT:]
        letter = letter._replace(attempts=attempts, error=error, failures=failures)
        if is_dead and not home.parent:
            self._bury(letter, home)
        else:
            self._retry(letter, error, delay_ms, now)

    def _retry(self, letter: Letter, error: str, delay_ms: int, now: Now) -> None:
        letter = letter._replace(error=error or letter.error, due=None)
        if delay_ms:
            due = Deadline.after(now, delay_ms * NS_PER_MS)
            letter = letter._replace(place=DELAYED, due=due)
        self.put(self.operations.claim(letter))

    def _bury(self, letter: Letter, home: Home) -> None:
        name = home.name + ".dlq"
        grave = self.model.homes.get(name)
        if grave is None:
            grave = self.add_home(name, type(home.config)(), home.name)
        self._count(letter, "dead_lettered")
        letter = letter._replace(queue=grave.number, due=None, ends=None, since=self.turns)
        self.put(self.operations.claim(letter))
        self._count(letter, "enqueued")

    def _home(self, letter: Letter) -> Home:
        home = self.model.home(letter.queue)
        assert home is not None
        return home

    def visibility_ms(self, home: Home) -> int:
        return home.config.visibility_timeout_ms or self.config.scheduler.visibility_timeout_ms

    # --- Consumers --------------------------------------------------------------------------------

    def _open(self, command: OpenConsumer, answer: Any, now: Now) -> None:
        home = self.model.homes.get(command.queue)
        if home is None:
            expect(answer, "QUEUE_NOT_FOUND", command)
            return
        if answer is not None:
            raise Broken("a consumer is let in", f"{command} gave {answer!r}")
        credit = command.max_in_flight or self.config.limits.default_in_flight
        self.consumers[command.consumer] = Consumer(command, home, credit)

    def _frame_taken(self, command: FrameTaken, answer: Any, now: Now) -> None:
        consumer = self.consumers.get(command.consumer)
        if consumer is not None and consumer.under_way:
            consumer.under_way.popleft()

    def frame_left(self, grant: int) -> None:
        """Note that a frame has reached its client; only then can nobody give it back."""
        for bucket in self.model.buckets.values():
            bucket.left(grant)

    def _close(self, command: CloseConsumer, answer: Any, now: Now) -> None:
        self.consumers.pop(command.consumer, None)
        unsent = set(command.unsent)
        for letter in list(self.model.letters.values()):
            lease = letter.lease
            if lease is not None and lease.grant in unsent:
                self._give_back(letter, lease, now)
            elif lease is not None and lease.consumer == command.consumer:
                self.put(letter._replace(lease=lease._replace(consumer=0)))

    def _give_back(self, letter: Letter, lease: Lease, now: Now) -> None:
        """Undo a delivery that never reached its client: no attempt, no tokens."""
        if not self._home(letter).parent:
            for key in letter.throttle_keys:
                bucket = self.model.buckets.get(key)
                if bucket is not None:
                    bucket.give_back(lease.grant, letter.id, now)
        self._count(letter, "delivered", -1)
        letter = letter._replace(lease=None, place=PENDING)
        self.put(self.operations.claim(letter))
        if letter.ends is not None and letter.ends.mono_ns <= now.mono_ns:
            self._time_out(letter)

    def held_by(self, consumer: Consumer) -> int:
        """Return how much of a consumer's credit is in use."""
        letters = self.model.letters.values()
        return sum(it.lease is not None and it.lease.consumer == consumer.id for it in letters)

    # --- Deliveries -------------------------------------------------------------------------------

    def _deliver(self, consumer_id: int, grant: int, messages: list[Message], now: Now) -> None:
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise Broken("nothing is delivered to those who left", f"frame {grant}")
        home = self.model.home(consumer.queue)
        assert home is not None
        rules.check_frame(self, consumer, home, messages)
        token = messages[0].metadata.lease_token
        if token in self._tokens:
            raise Broken("tokens are never used twice", token)
        self._tokens.add(token)
        span_ns = (consumer.visibility_ms or self.visibility_ms(home)) * NS_PER_MS
        lease = Lease(grant, token, consumer_id, Deadline.after(now, span_ns))
        for message in messages:
            letter = self.operations.found(message.id, home)
            rules.check_delivery(self, home, letter, message, lease, now)
            assert letter is not None
            if not home.parent:
                for key in letter.throttle_keys:
                    bucket = self.model.buckets.get(key)
                    if bucket is not None:
                        bucket.take(letter.cost, grant, letter.id, now)
            self.put(letter._replace(place=LEASED, lease=lease, doom=()))
            self._count(letter, "delivered")
        consumer.under_way.append(grant)
        consumer.is_done = consumer.is_once

    # --- Restarts ---------------------------------------------------------------------------------

    def restart(self, model: Model, before: Now, now: Now) -> None:
        """Go on from what was on disk. Clients are gone, and what was counted is forgotten."""
        self.model = model = model.copy()
        self.consumers.clear()
        self.counters.clear()
        self.uncounted.clear()
        self.requests.clear()
        self._changes.clear()
        for letter in list(model.letters.values()):
            self.put(restarted(letter, now))
        for bucket in model.buckets.values():
            bucket.restart(before, now)
        for name, rest in model.backpressure.items():
            model.backpressure[name] = rest.restarted(before, now)
        for name, pause in model.pauses.items():
            model.pauses[name] = pause.restarted(before, now) if pause is not None else None
        self.operations.restart(now)


_MISSING: Any = object()
_FOLLOW: dict[type, Any] = {
    Enqueue: Ledger._enqueue,
    Ack: Ledger._ack,
    Nack: Ledger._nack,
    Extend: Ledger._extend,
    SettleGrants: grants.settle,
    OpenConsumer: Ledger._open,
    FrameTaken: Ledger._frame_taken,
    CloseConsumer: Ledger._close,
}
