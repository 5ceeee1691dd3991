# SPDX-License-Identifier: AGPL-3.0-only
"""A signal handler may raise wherever Python looks for signals, and no caller loses anything by it.

Every scenario runs with an interruption at the first such moment in the coalescer's code, at the
second, and so on until none is left.
"""

import dis
import itertools
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import fila
from fila import _coalesce, _wire
from fila._wire import Item
from fila.v1 import messages_pb2, service_pb2

PATIENCE_S = 60


class Interrupted(Exception):
    """What a signal handler raises."""


def moments(code):
    """Where in its bytecode CPython looks for signals: at its start, after calls, in loops."""
    instructions = list(dis.get_instructions(code))
    for before, instruction in itertools.pairwise(instructions):
        if before.opname == "RESUME" or before.opname.startswith("CALL"):
            yield instruction.offset
        if "JUMP_BACKWARD" in instruction.opname:
            yield instruction.argval


@contextmanager
def interrupted_at(number):
    """Raises Interrupted at the moment with this number in the coalescer's code, if it comes."""
    known = {}
    passed = itertools.count(1)

    def trace(frame, event, _):
        code = frame.f_code
        if code.co_filename != _coalesce.__file__:
            return None
        frame.f_trace_opcodes = True
        if code not in known:
            known[code] = set(moments(code))
        if event == "opcode" and frame.f_lasti in known[code] and next(passed) == number:
            raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Connection:
    """Answers every item, and does something else while it is at it."""

    def __init__(self):
        self.meanwhile = lambda: None
        self.sent = []
        self.has_grants = True

    def send(self, method, data, response, timeout, trace):
        self.meanwhile()
        acks = service_pb2.AckBatchRequest.FromString(data).acks
        self.sent += [ack.message_id for ack in acks]
        return service_pb2.AckBatchResponse(results=[messages_pb2.ItemResult()] * len(acks))


def seat(name, deadline):
    item = Item(_wire.ack_item("orders", name, None).data, "orders", name)
    return _coalesce._Seat(item, deadline, {})


def until_done(scenario):
    """Runs a scenario with an interruption at its first moment, its second, and so on."""
    for number in itertools.count(1):
        connection = Connection()
        coalescer = _coalesce.Coalescer(_wire.ACK, connection)
        check = scenario(coalescer, connection)
        is_interrupted = False
        try:
            with interrupted_at(number):
                coalescer.submit(_wire.ack_item("orders", "mine", None), PATIENCE_S)
        except Interrupted:
            is_interrupted = True
        except fila.FilaError:
            pass
        check()
        if not is_interrupted:
            return number - 1


def is_awake(waiting):
    return not waiting.woken.locked()


def test_a_lone_caller_may_be_interrupted_anywhere():
    def lone(coalescer, connection):
        def check():
            assert coalescer._free_slots == _coalesce.REQUESTS_UNDER_WAY_MAX
            assert not coalescer._lock.locked()

        return check

    assert until_done(lone) > 10


def test_a_leader_may_be_interrupted_anywhere_and_the_next_one_is_woken():
    def leader(coalescer, connection):
        late = [seat(f"late-{n}", time.monotonic() + n) for n in (2, 3, 1)]
        # As if they had come while the request was under way and no slot was free.
        connection.meanwhile = lambda: coalescer._waiting.extend(late)

        def check():
            assert coalescer._free_slots == _coalesce.REQUESTS_UNDER_WAY_MAX
            assert not coalescer._lock.locked()
            assert [is_awake(it) for it in late] == [False, bool(coalescer._waiting), False]
            assert _coalesce.peek(coalescer._waiting) in ([], late)
            assert not [it for it in late if it.outcome]

        return check

    assert until_done(leader) > 10


def test_who_is_woken_to_lead_others_may_be_interrupted_anywhere():
    def woken(coalescer, connection):
        busy = [seat(f"busy-{n}", time.monotonic()) for n in range(2)]
        coalescer._leaders.update(busy)
        early = [seat(f"early-{n}", time.monotonic()) for n in range(3)]
        coalescer._waiting.extend(early)

        def finish_one():
            while len(coalescer._waiting) == len(early) and helper.is_needed:
                time.sleep(0)
            with coalescer._lock:
                coalescer._leaders.discard(busy[0])
                following = coalescer._next_leader()
            if following is not None:
                following.wake()

        helper = threading.Thread(target=finish_one)
        helper.is_needed = True
        helper.start()

        def check():
            helper.is_needed = False
            helper.join()
            assert coalescer._leaders == {busy[1]}
            assert not coalescer._lock.locked()
            waiting = [it for it in early if not it.outcome]
            assert _coalesce.peek(coalescer._waiting) == waiting
            # All of them were sent, or given up with who led them, or one of them is to lead.
            assert waiting == [] or (waiting == early and [it for it in early if is_awake(it)])
            assert not set(connection.sent) & {it.item.message_id for it in waiting}

        return check

    assert until_done(woken) > 20


def test_who_runs_out_of_time_may_be_interrupted_anywhere():
    def late(coalescer, connection):
        busy = [seat(f"busy-{n}", time.monotonic()) for n in range(2)]
        coalescer._leaders.update(busy)
        other = seat("other", time.monotonic() - 1)

        def give_up(timeout):
            # Between its last look at the clock and its leaving, the slot becomes free.
            coalescer._waiting.append(other)
            coalescer._leaders.discard(busy[0])
            return False

        class Late(_coalesce._Seat):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                self.woken = SimpleNamespace(acquire=give_up)

        patch = pytest.MonkeyPatch()
        patch.setattr(_coalesce, "_Seat", Late)

        def check():
            patch.undo()
            assert not coalescer._lock.locked()
            live = _coalesce.peek(coalescer._waiting)
            assert live in ([], [other])
            assert not live or is_awake(other)

        return check

    assert until_done(late) > 10


def test_a_leader_whose_time_is_up_hands_the_slot_on():
    """The wake-up and the deadline can come together; then nobody else may be forgotten."""
    coalescer = _coalesce.Coalescer(_wire.ACK, connection=None)
    first, second = seat("first", 1.0), seat("second", 2.0)
    coalescer._waiting.extend((first, second))
    assert coalescer._next_leader() is second
    coalescer._leave(second)
    assert isinstance(second.outcome[0], fila.DeadlineExceededError)
    assert is_awake(first) and not first.outcome
    assert _coalesce.peek(coalescer._waiting) == [first]


def test_a_leader_takes_nobody_who_is_more_patient():
    coalescer = _coalesce.Coalescer(_wire.ACK, connection=None)
    first, second, third, last = (seat(str(n), n) for n in (1.0, 2.0, 3.0, 1.5))
    coalescer._waiting.extend((first, second, third, last))
    assert coalescer._lead(second)
    assert second.batch == [first, second]
    assert not coalescer._lead(last)  # it is behind one that waits longer
    assert coalescer._next_leader() is third
    assert list(coalescer._waiting) == [third, last]
