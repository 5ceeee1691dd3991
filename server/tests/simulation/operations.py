# SPDX-License-Identifier: AGPL-3.0-only
"""What operators do, as the ledger follows it: queues, settings, pauses, purges, redrives.

A purge or a redrive may take several turns, and nobody outside knows how far it has come. Until
its answer its messages are doomed: gone or not, both are right. The answer, or a restart, ends
that, and a look at the queue says what became of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.errors import FilaError
from server.tests.simulation import readings
from server.tests.simulation.broken import Broken
from server.tests.simulation.bucket import Bucket
from server.tests.simulation.model import DELAYED, LEASED, PENDING, Deadline, Home, Letter, Rest
from server.tests.simulation.scripts import REFUSE, routed

_EITHER = "either"

if TYPE_CHECKING:
    from fila_server.core.commands import Admin
    from server.tests.simulation.ledger import Ledger

Look = Callable[[str], dict[str, pb.PeekedMessage]]


class Work(NamedTuple):
    """A purge (no target) or a redrive that was asked for."""

    ticket: int
    source: Home
    target: Home | None
    most: int  # messages that it may take
    candidates: int
    begun: Now
    is_named: bool = False  # by the ids of its messages
    taken: int = 0  # those that were seen to be moved before the answer
    answer: int | None = None  # how many it says it took
    is_ended: bool = False
    is_cut: bool = False  # by a restart
    is_resolved: bool = False


class _Fates(NamedTuple):
    """What became of the messages that a purge or redrive could take."""

    stayed: list[Letter]
    taken: list[Letter]


class Operations:
    """Follows commands of operators. True while a look is needed to know where messages are."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._works: dict[int, Work] = {}
        self._claimed: dict[int, set[str]] = defaultdict(set)  # by ticket
        self._is_unsure = False
        self._follow: dict[type, Callable[[Any, Any, Now], str]] = {
            pb.CreateQueueRequest: self._create,
            pb.UpdateQueueRequest: self._update,
            pb.DeleteQueueRequest: self._delete,
            pb.PauseRequest: self._pause,
            pb.ResumeRequest: self._resume,
            pb.CancelMessageRequest: self._cancel,
            pb.SetConfigRequest: self._set,
            pb.DeleteConfigRequest: self._unset,
        }
        self._closing: set[int] = set()
        self._now = self._restarted = Now(0, 0)

    def __bool__(self) -> bool:
        return self._is_unsure

    @property
    def unsure(self) -> set[int]:
        """The queues that a purge or redrive is at work in, or that a restart may have changed."""
        works = [work for work in self._works.values() if not work.is_resolved]
        at_work = {home.number for home in self._homes(works)}
        letters = self._ledger.model.letters.values() if self._is_unsure else ()
        return at_work | {it.queue for it in letters if it.due is not None}

    def administer(self, command: Admin, answer: Any, now: Now) -> set[int]:
        """Follow one command. Return the consumers that it ends."""
        request: Any = command.request
        kind = request.__class__
        self._now = now
        self._closing = set()
        if kind is pb.PurgeRequest:
            self._begin(command, answer, self._purge(command), now)
        elif kind is pb.RedriveRequest:
            self._begin(command, answer, self._redrive(command), now)
        elif kind in self._follow:
            reason = self._follow[kind](request, answer, now)
            if reason != _EITHER:
                self._judge(command, answer, reason)
            if not isinstance(answer, FilaError):
                self._ledger.confirm(command.ticket)
        else:
            readings.check(self._ledger, request, answer, now)
        return self._closing

    def _judge(self, command: Admin, answer: Any, reason: str) -> None:
        given = answer.reason if isinstance(answer, FilaError) else ""
        if given != reason or type(answer) is object:
            asked = " ".join(str(command.request).split())
            raise Broken(f"operators are answered {reason or 'well'}", f"{asked} gave {answer!r}")

    # --- Queues -----------------------------------------------------------------------------------

    def _create(self, request: pb.CreateQueueRequest, answer: Any, now: Now) -> str:
        homes = self._ledger.model.homes
        if request.name in homes:
            return "QUEUE_ALREADY_EXISTS"
        config = pb.QueueConfig()
        config.CopyFrom(request.config)
        self._ledger.add_home(request.name, config)
        if request.name + ".dlq" not in homes:
            self._ledger.add_home(request.name + ".dlq", pb.QueueConfig(), request.name)
        return ""

    def _update(self, request: pb.UpdateQueueRequest, answer: Any, now: Now) -> str:
        home = self._ledger.model.homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        config = pb.QueueConfig()
        config.CopyFrom(home.config)
        for path in request.update_mask.paths:
            setattr(config, path, getattr(request.config, path))
        self._change(home, config=config)
        return ""

    def _change(self, home: Home, **fields: Any) -> None:
        self._ledger.model.homes[home.name] = home._replace(**fields)

    def _delete(self, request: pb.DeleteQueueRequest, answer: Any, now: Now) -> str:
        homes = self._ledger.model.homes
        home = homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        counts = [self._remove(home)]
        grave = homes.get(home.name + ".dlq")
        if grave is not None and grave.parent == home.name and not request.keep_dead_letters:
            counts.append(self._remove(grave))
        given = [answer.messages, answer.dead_letters]
        if given[: len(counts)] != counts and home.number not in self.unsure:
            raise Broken("a deletion says what went", f"{counts} messages went, not {given}")
        return ""

    def _remove(self, home: Home) -> int:
        ledger = self._ledger
        letters = ledger.model.of(home)
        for letter in letters:
            targets = [self._works[ticket].target for ticket in letter.doom]
            if not any(target is not None and self._has(target) for target in targets):
                ledger.remove(letter, "deleted")
        for where in [where for where in ledger.model.seen if where[0] == home.number]:
            del ledger.model.seen[where]
        for consumer in [it.id for it in ledger.consumers.values() if it.queue == home.number]:
            del ledger.consumers[consumer]
            self._closing.add(consumer)
        del ledger.model.homes[home.name]
        return len(letters)

    # --- Pauses -----------------------------------------------------------------------------------

    def _pause(self, request: pb.PauseRequest, answer: Any, now: Now) -> str:
        if request.throttle_key:
            span_ns = request.duration_ms * NS_PER_MS
            self._ledger.meet((request.throttle_key,), now)
            rest = Rest.after(now, span_ns) if span_ns else None
            self._ledger.model.pauses[request.throttle_key] = rest
            if rest is not None:  # the operator knows better than a consumer did
                self._ledger.model.backpressure.pop(request.throttle_key, None)
            return ""
        home = self._ledger.model.homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        if request.fairness_key:
            self._change(home, paused_keys=home.paused_keys | {request.fairness_key})
        else:
            self._change(home, is_paused=True)
        return ""

    def _resume(self, request: pb.ResumeRequest, answer: Any, now: Now) -> str:
        if request.throttle_key:
            self._ledger.model.pauses.pop(request.throttle_key, None)
            self._ledger.model.backpressure.pop(request.throttle_key, None)
            return ""
        home = self._ledger.model.homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        if request.fairness_key:
            self._change(home, paused_keys=home.paused_keys - {request.fairness_key})
        else:
            self._change(home, is_paused=False)
        return ""

    # --- Settings ---------------------------------------------------------------------------------

    def _set(self, request: pb.SetConfigRequest, answer: Any, now: Now) -> str:
        for key, value in [(it.key, it.value) for it in request.entries] or [
            (request.key, request.value)
        ]:
            self._ledger.model.set(key, value)
            self._wake(key, now)
        self.limit(now)
        return ""

    def _unset(self, request: pb.DeleteConfigRequest, answer: Any, now: Now) -> str:
        if request.key not in self._ledger.model.settings:
            return "CONFIG_NOT_FOUND"
        self._ledger.model.set(request.key, "")
        self._wake(request.key, now)
        self.limit(now)
        return ""

    def _wake(self, setting: str, now: Now) -> None:
        """Whoever sets the limits of a throttle key anew knows better than a consumer did.

        A pause by an operator stays, and what a consumer said while one lasted stays with it.
        """
        model = self._ledger.model
        name = setting.removeprefix("throttle.").removeprefix("throttle:")
        name = name.removeprefix("concurrency:")
        for field in (":rate", ":burst", ":limit"):
            name = name.removesuffix(field)
        rest = model.backpressure.get(name)
        if rest is None:
            return
        if name not in model.pauses:
            del model.backpressure[name]
        elif model.pauses[name] is not None:
            until = rest.until._replace(mono_ns=now.mono_ns)
            model.backpressure[name] = Rest(until, rest.latest_ns, is_known=False)

    def limit(self, now: Now) -> None:
        """Bring the buckets in line with the settings."""
        model = self._ledger.model
        for name in {*model.buckets, *model.throttle_keys}:
            limits = model.limits(name)
            bucket = model.buckets.get(name)
            if not limits.rate:
                model.buckets.pop(name, None)
            elif bucket is None:
                model.buckets[name] = Bucket(limits.rate, limits.burst, now)
            elif (bucket.rate, bucket.burst) != (limits.rate, limits.burst):
                bucket.change(limits.rate, limits.burst, now)

    # --- Messages ---------------------------------------------------------------------------------

    def _cancel(self, request: pb.CancelMessageRequest, answer: Any, now: Now) -> str:
        home = self._ledger.model.homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        letter = self._ledger.model.letters.get(request.message_id)
        if letter is None or letter.queue != home.number:
            return "MESSAGE_NOT_FOUND"
        if letter.place == LEASED:
            return "MESSAGE_LEASED"
        if letter.doom:
            if not isinstance(answer, FilaError):
                self._ledger.remove(letter, "cancelled")
            return _EITHER
        self._ledger.remove(letter, "cancelled")
        return ""

    def _purge(self, command: Admin) -> Work | str:
        request: Any = command.request
        home = self._ledger.model.homes.get(request.queue)
        if home is None:
            return "QUEUE_NOT_FOUND"
        chosen = [
            letter
            for letter in self._ledger.model.letters.values()
            if (letter.queue == home.number or self.may_be_in(letter, home))
            and letter.place != LEASED
            and request.fairness_key in ("", letter.key)
        ]
        return self._doom(command, home, None, chosen, 0)

    def may_be_in(self, letter: Letter, home: Home) -> bool:
        """Whether a redrive may have brought the message to this queue."""
        targets = [self._works[ticket].target for ticket in letter.doom]
        return any(target is not None and target.number == home.number for target in targets)

    def _redrive(self, command: Admin) -> Work | str:
        request: Any = command.request
        homes = self._ledger.model.homes
        source = homes.get(request.dlq_queue)
        if source is None:
            return "QUEUE_NOT_FOUND"
        if not source.parent:
            return "NOT_A_DEAD_LETTER_QUEUE"
        target = homes.get(source.parent)
        if target is None:
            return "PARENT_QUEUE_NOT_FOUND"
        chosen = [
            letter
            for letter in self._ledger.model.of(source)
            if letter.place == PENDING
            and request.fairness_key in ("", letter.key)
            and request.error_contains in letter.error
            and (not request.message_ids or letter.id in request.message_ids)
        ]
        work = self._doom(command, source, target, chosen, request.count)
        return work._replace(is_named=bool(request.message_ids))

    def _doom(
        self, command: Admin, source: Home, target: Home | None, chosen: list[Letter], most: int
    ) -> Work:
        for letter in chosen:
            self._ledger.put(letter._replace(doom=(*letter.doom, command.ticket)))
        return Work(command.ticket, source, target, most or len(chosen), len(chosen), self._now)

    def claim(self, letter: Letter) -> Letter:
        """Return a message that has just come to wait, as those under way see it.

        A purge or redrive of its queue that is under way may take it, and need not.
        """
        for work in self._works.values():
            if work.source.number == letter.queue and not work.is_ended:
                self._claimed[work.ticket].add(letter.id)
                if work.ticket not in letter.doom:
                    letter = letter._replace(doom=(*letter.doom, work.ticket))
        return letter

    def _begin(self, command: Admin, answer: Any, work: Work | str, now: Now) -> None:
        if isinstance(work, str):
            self._judge(command, answer, work)
            return
        self._works[command.ticket] = work
        self._is_unsure = True
        if type(answer) is not object:
            self.finish(command.ticket, answer)

    def finish(self, ticket: int, answer: Any) -> None:
        """Note the answer to a purge or redrive; the look that follows finds what it did."""
        work = self._works.get(ticket)
        if work is None or work.is_ended:
            raise Broken("only what was asked is answered", f"ticket {ticket}: {answer!r}")
        if isinstance(answer, FilaError):
            is_full = answer.reason == "QUEUE_FULL" and work.target is not None
            if (
                not is_full
                and self._has(work.source)
                and (work.target is None or self._has(work.target))
            ):
                raise Broken("operators are answered well", f"{work} gave {answer!r}")
            self._works[ticket] = work._replace(is_ended=True)
            return
        count = answer.purged if work.target is None else answer.redriven
        self._works[ticket] = work._replace(is_ended=True, answer=count)
        self._ledger.confirm(ticket)

    def _has(self, home: Home) -> bool:
        return self._ledger.model.home(home.number) is not None

    # --- What became of it ------------------------------------------------------------------------

    def found(self, message_id: str, home: Home) -> Letter | None:
        """Return a message that a queue delivers, be it that a redrive has just put it there."""
        letter = self._ledger.model.letters.get(message_id)
        if letter is not None and letter.queue != home.number:
            for ticket in letter.doom:
                target = self._works[ticket].target
                if target is not None and target.number == home.number:
                    return self._redriven(letter, ticket, home)
        return letter

    def _redriven(self, letter: Letter, ticket: int, home: Home) -> Letter:
        work = self._works[ticket]
        if len(letter.doom) == 1:  # else another may have taken it
            self._works[ticket] = work._replace(taken=work.taken + 1)
        if home.config.on_enqueue_script:
            key, _, keys, cost = routed(dict(letter.headers))
            letter = letter._replace(key=key, throttle_keys=keys, cost=cost if keys else 1)
            self._ledger.meet(keys, self._now)
        letter = letter._replace(queue=home.number, attempts=0, doom=(), is_fresh=False)
        if home.config.default_ttl_ms:
            ends = Deadline.after(work.begun, home.config.default_ttl_ms * NS_PER_MS)
            if work.is_cut:
                ends = ends.restarted(self._restarted)
            letter = letter._replace(ends=ends)
        self._ledger.put(letter)
        if not work.is_cut:
            self._ledger.counters[home.number]["enqueued"] += 1
        return letter

    def resolve(self, look: Look) -> None:
        """Look at the queues in question, and take over where their messages are."""
        self._is_unsure = False
        works = [work for work in self._works.values() if not work.is_resolved]
        seen = {home.number: look(home.name) for home in self._homes(works) if self._has(home)}
        fates: dict[int, _Fates] = defaultdict(lambda: _Fates([], []))
        for letter in sorted(self._ledger.model.letters.values(), key=lambda it: it.number):
            if letter.doom:
                self._resolve_letter(letter, seen, fates)
            elif letter.place == PENDING and letter.due is not None:
                home = self._ledger.model.home(letter.queue)
                assert home is not None
                self._delay_again(letter, look(home.name))
        for work in works:
            if not work.is_ended:
                raise Broken("10: every command is answered", f"{work} was not")
            self._judge_work(self._works[work.ticket], fates[work.ticket])
            self._works[work.ticket] = work._replace(is_resolved=True)

    def _resolve_letter(
        self, letter: Letter, seen: dict[int, dict[str, Any]], fates: dict[int, _Fates]
    ) -> None:
        works = [self._works[ticket] for ticket in letter.doom]
        targets = [(work.ticket, work.target) for work in works if work.target is not None]
        moved = [
            (ticket, target)
            for ticket, target in targets
            if letter.id in seen.get(target.number, ())
        ]
        is_there = letter.id in seen.get(letter.queue, ())
        if is_there + bool(moved) > 1:
            raise Broken("3: a message is in exactly one place", f"{letter} is in two queues")
        if moved:
            self._redriven(letter, *moved[0])
        elif is_there:
            self._ledger.put(letter._replace(doom=()))
            self._delay_again(letter._replace(doom=()), seen[letter.queue])
        elif len(targets) < len(works) or not all(map(self._has, self._homes(works))):
            self._ledger.remove(letter, "purged")
            self._ledger.uncounted.update(target.number for _, target in targets)
        else:
            raise Broken("3: a message is in exactly one place", f"{letter} is nowhere")
        for work in works:
            (fates[work.ticket].stayed if is_there else fates[work.ticket].taken).append(letter)

    def _delay_again(self, letter: Letter, seen: dict[str, Any]) -> None:
        """A clock that was set back before a restart may make a message wait once more."""
        there = seen.get(letter.id)
        if there is not None and letter.due is not None and there.state == pb.MESSAGE_STATE_DELAYED:
            self._ledger.put(letter._replace(place=DELAYED))

    def _judge_work(self, work: Work, fates: _Fates) -> None:
        if work.answer is None:
            return  # it was cut short
        claimed = self._claimed[work.ticket]
        stayed = [letter for letter in fates.stayed if letter.id not in claimed]
        taken = [letter for letter in fates.taken if len(letter.doom) == 1]
        least = len(taken) if work.target is None else work.taken
        if not least <= work.answer <= work.candidates + len(claimed):
            raise Broken("a purge or redrive counts right", f"{work} took {least}")
        can_refuse = work.target is not None and _refuses(work.target)
        if stayed and (work.target is None or (work.answer < work.most and not can_refuse)):
            raise Broken("a purge or redrive takes all it may", f"{work} left {stayed[0]}")
        is_ordered = not work.is_named and not can_refuse
        if is_ordered and stayed and taken and stayed[0].number < taken[-1].number:
            raise Broken("a redrive takes the oldest first", f"{work} left {stayed[0]}")

    @staticmethod
    def _homes(works: list[Work]) -> list[Home]:
        homes = [home for work in works for home in (work.source, work.target)]
        return [home for home in homes if home is not None]

    def restart(self, now: Now) -> None:
        """Whatever was under way is cut short: nobody waits for its answer."""
        self._is_unsure = True
        self._restarted = now
        for ticket, work in self._works.items():
            cut = work._replace(is_ended=True, is_cut=True, is_resolved=False, answer=None)
            self._works[ticket] = cut


def _refuses(home: Home) -> bool:
    """Whether a queue may refuse a message."""
    return bool(home.config.max_messages) or home.config.on_enqueue_script == REFUSE
