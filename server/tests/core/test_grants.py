# SPDX-License-Identifier: AGPL-3.0-only
"""Whole grants: one token settles what is left of a frame, and nothing else."""

from collections.abc import Sequence
from typing import Any

import pytest

from fila.v1 import admin_pb2
from fila.v1.messages_pb2 import Message
from fila.v1.service_pb2 import (
    AckRequest,
    GrantAck,
    GrantExtension,
    GrantNack,
    GrantSettlement,
    LeaseExtension,
)
from fila_server.config import LimitsConfig
from fila_server.core.commands import Ack, Admin, CloseConsumer, Command, Extend, SettleGrants
from fila_server.core.turn import SLICE
from fila_server.core.wire.answers import Settled
from fila_server.errors import FilaError, InvalidArgument, LeaseExpired, QueueNotFound
from fila_server.storage.api import Column
from server.tests.core.backlogs import leased
from server.tests.core.harness import MS, Harness, S, check_consistent
from server.tests.core.meter import assert_bounded

ACK: dict[str, Any] = {"ack": GrantAck()}
RELEASE: dict[str, Any] = {"nack": GrantNack(retry_after_ms=0)}
HOUR_MS = 3_600_000
MANY = 2 * SLICE + 7  # more than a turn settles


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def frame(h: Harness, count: int, keys: Sequence[str] = ("",), **fields: Any) -> list[Message]:
    """Enqueue messages and lease all of them in one frame."""
    h.enqueue_many("q", count, keys, **fields)
    found = h.receive("q", count)
    assert len(found) == count and len({it.metadata.lease_token for it in found}) == 1
    return found


def token_of(messages: Sequence[Message]) -> str:
    return messages[0].metadata.lease_token


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


def rows(h: Harness, column: Column) -> int:
    return len(list(h.storage.scan(column, b"", b"\xff" * 13)))


def extension(ms: int = 0) -> dict[str, Any]:
    return {"extend": GrantExtension(extend_ms=ms)}


# --- Ack ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, MANY])
def test_one_token_acks_a_frame(h: Harness, count: int) -> None:
    token = token_of(frame(h, count, ("a", "b")))
    assert h.settle("q", token, **ACK) == Settled(count)
    stats = h.stats("q")
    assert (stats.in_flight, stats.counters.acked) == (0, count)
    h.clock.advance(3600)
    h.restart()
    assert h.receive("q", 10) == []
    assert rows(h, Column.MESSAGES) == rows(h, Column.LEASES) == 0
    check_consistent(h)


def test_a_repeated_ack_changes_nothing(h: Harness) -> None:
    token = token_of(frame(h, 3))
    assert h.settle("q", token, **ACK) == Settled(3)
    other = frame(h, 2)
    assert isinstance(h.settle("q", token, **ACK), LeaseExpired)
    assert h.stats("q").in_flight == 2
    assert h.settle("q", token_of(other), **ACK) == Settled(2)


def test_all_but_some(h: Harness) -> None:
    messages = frame(h, 5)
    token = token_of(messages)
    kept = ids(messages[1:3])
    result = h.settle("q", token, except_message_ids=[*kept, "nonsense"], **ACK)
    assert result == Settled(3)
    check_consistent(h)
    for message_id in kept:
        assert h.ack("q", message_id, token) is None
    assert rows(h, Column.LEASES) == rows(h, Column.MESSAGES) == 0


def test_all_but_all_of_them(h: Harness) -> None:
    messages = frame(h, 2)
    token = token_of(messages)
    assert h.settle("q", token, except_message_ids=ids(messages), **ACK) == Settled(0)
    assert h.stats("q").in_flight == 2


def test_what_was_settled_before_does_not_count(h: Harness) -> None:
    messages = frame(h, 4)
    token = token_of(messages)
    assert h.ack("q", messages[0].id) is None
    assert h.nack("q", messages[1].id) is None
    assert h.settle("q", token, **ACK) == Settled(2)
    (again,) = h.receive("q", 10)
    assert again.id == messages[1].id
    check_consistent(h)


def test_a_count_that_is_expected_decides(h: Harness) -> None:
    messages = frame(h, 4)
    token = token_of(messages)
    assert h.ack("q", messages[0].id) is None
    refused = h.settle("q", token, expected_messages=4, **ACK)
    assert isinstance(refused, LeaseExpired) and "3 messages are left" in refused.message
    assert h.stats("q").in_flight == 3
    kept = ids(messages[:2])  # of which one is gone
    assert h.settle("q", token, expected_messages=2, except_message_ids=kept, **ACK) == Settled(2)
    assert h.settle("q", token, expected_messages=1, **ACK) == Settled(1)


def test_a_token_is_of_one_queue(h: Harness) -> None:
    h.create("other")
    token = token_of(frame(h, 2))
    assert isinstance(h.settle("other", token, **ACK), LeaseExpired)
    assert isinstance(h.settle("nobody", token, **ACK), QueueNotFound)
    assert h.stats("q").in_flight == 2


@pytest.mark.parametrize("made", ["0{}", "0x{}", " {}", "{}_", "-{}", "{}0", "é", "{}" * 9, "g"])
def test_only_the_token_itself_is_one(h: Harness, made: str) -> None:
    token = token_of(frame(h, 1))
    assert isinstance(h.settle("q", made.replace("{}", token), **ACK), LeaseExpired)
    assert h.settle("q", token, **ACK) == Settled(1)


def test_a_number_of_an_extension_is_no_token(h: Harness) -> None:
    (message,) = frame(h, 1)
    h.extend("q", message.id)
    (number,) = h.broker.state.places.grants
    assert f"{number:x}" != token_of([message])
    assert isinstance(h.settle("q", f"{number:x}", **ACK), LeaseExpired)
    assert h.settle("q", token_of([message]), **ACK) == Settled(1)


def test_what_makes_no_sense(h: Harness) -> None:
    token = token_of(frame(h, 1))
    for fields in (
        {"token": ""} | ACK,
        {"token": token},
        {"token": token, "nack": GrantNack(retry_after_ms=2**62)},
        {"token": token, "nack": GrantNack(retry_after_ms=0, throttle_key="t")},
        {"token": token} | extension(2**62),
    ):
        assert isinstance(h.settle("q", **fields), InvalidArgument), fields
    assert isinstance(h.settle("", token, **ACK), InvalidArgument)
    assert h.settle("q", token, **ACK) == Settled(1)


def test_each_item_is_done_or_refused_on_its_own(h: Harness) -> None:
    first, second = frame(h, 2), frame(h, 3)
    items = [
        GrantSettlement(queue="q", lease_token=token_of(first), ack=GrantAck()),
        GrantSettlement(queue="q", lease_token=token_of(first), ack=GrantAck()),
        GrantSettlement(queue="nobody", lease_token=token_of(second), ack=GrantAck()),
        GrantSettlement(queue="q", lease_token=token_of(second), nack=GrantNack()),
    ]
    (results,) = h.run(SettleGrants(0, items))
    assert (results[0], results[3]) == (Settled(2), Settled(3))
    assert isinstance(results[1], LeaseExpired) and isinstance(results[2], QueueNotFound)


def test_credit_comes_back_with_the_frame(h: Harness) -> None:
    h.open("q", credit=4, batch=4)
    h.enqueue_many("q", 8)
    messages = h.take()
    assert len(messages) == 4
    assert h.settle("q", token_of(messages), **ACK) == Settled(4)
    assert len(h.take()) == 4
    check_consistent(h)


def test_slots_come_back_with_the_frame(h: Harness) -> None:
    h.set("concurrency:gpu:limit", "3")
    h.enqueue_many("q", 6, throttle_keys=["gpu"])
    messages = h.receive("q", 10)
    assert len(messages) == 3
    assert h.settle("q", token_of(messages), **ACK) == Settled(3)
    assert len(h.receive("q", 10)) == 3
    check_consistent(h)


def test_messages_with_a_past_leave_no_records(h: Harness) -> None:
    messages = frame(h, 3, ttl_ms=HOUR_MS)
    assert h.settle("q", token_of(messages), nack=GrantNack(error="no")) == Settled(3)
    again = h.receive("q", 3)
    assert rows(h, Column.RETRIES) == 3
    assert h.settle("q", token_of(again), **ACK) == Settled(3)
    assert rows(h, Column.RETRIES) == 0 and not h.broker.state.places.mortal


# --- Nack -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, MANY])
def test_a_nack_fails_each_message(h: Harness, count: int) -> None:
    messages = frame(h, count)
    assert h.settle("q", token_of(messages), nack=GrantNack(error="no")) == Settled(count)
    assert h.stats("q").counters.nacked == count
    check_consistent(h)
    again = h.receive("q", count)
    assert sorted(ids(again)) == sorted(ids(messages))
    assert {it.metadata.attempt_count for it in again} == {1}
    assert {it.metadata.last_error for it in again} == {"no"}


def test_dead_letters_are_answered_durably(h: Harness) -> None:
    h.create("frail", max_attempts=1)
    h.enqueue_many("frail", 2)
    (message, _) = h.receive("frail", 2)
    item = GrantSettlement(
        queue="frail", lease_token=message.metadata.lease_token, nack=GrantNack()
    )
    effects = h.turn(SettleGrants(0, [item]))
    assert effects.durable_answers == [(0, [Settled(2)])] and not effects.answers
    assert h.stats("frail.dlq").depth == 2


@pytest.mark.parametrize("count", [4, MANY])
def test_a_frame_that_is_given_back_stands_where_it_stood(h: Harness, count: int) -> None:
    messages = frame(h, count)
    h.enqueue_many("q", 1)
    kept = ids(messages[:1])
    result = h.settle("q", token_of(messages), except_message_ids=kept, **RELEASE)
    assert result == Settled(count - 1)
    check_consistent(h)
    again = h.receive("q", count)
    assert ids(again)[: count - 1] == ids(messages[1:])
    assert {it.metadata.attempt_count for it in again} == {0}
    check_consistent(h)


def test_what_is_given_back_is_under_no_earlier_record(h: Harness) -> None:
    messages = frame(h, 3)
    token = token_of(messages)
    h.extend("q", messages[0].id, token)
    h.extend("q", messages[1].id, token, ms=90_000)
    assert h.settle("q", token, except_message_ids=ids(messages[2:]), **RELEASE) == Settled(2)
    check_consistent(h)


def test_backpressure_rests_a_key_that_one_message_carries(h: Harness) -> None:
    h.enqueue("q", throttle_keys=["mail"])
    h.enqueue("q")
    messages = h.receive("q", 2)
    nack = GrantNack(retry_after_ms=5000, throttle_key="mail")
    assert h.settle("q", token_of(messages), nack=nack) == Settled(2)
    h.enqueue("q", throttle_keys=["mail"])
    h.enqueue("q")
    assert len(h.receive("q", 10)) == 1
    h.clock.advance(5.1)
    h.tick()
    assert len(h.receive("q", 10)) == 3
    check_consistent(h)


# --- Extension ------------------------------------------------------------------------------------


def test_an_extension_prolongs_all(h: Harness) -> None:
    messages = frame(h, 3)
    token = token_of(messages)
    records = rows(h, Column.LEASES)
    result = h.settle("q", token, **extension(100_000))
    assert result == Settled(3, h.clock.wall_ns + 100_000 * MS)
    assert rows(h, Column.LEASES) == records == 1
    check_consistent(h)
    h.restart()
    h.clock.advance(99)
    assert h.receive("q", 3) == []
    assert h.settle("q", token, **ACK) == Settled(3)


def test_an_extension_of_all_but_some_lets_those_expire(h: Harness) -> None:
    messages = frame(h, 3)
    token = token_of(messages)
    kept = ids(messages[:1])
    assert h.settle("q", token, except_message_ids=kept, **extension(100_000)) == Settled(
        2, h.clock.wall_ns + 100_000 * MS
    )
    check_consistent(h)
    h.clock.advance(50)
    assert ids(h.receive("q", 3)) == kept
    assert h.settle("q", token, expected_messages=2, **ACK) == Settled(2)
    check_consistent(h)


def test_a_token_finds_extensions_and_what_they_left(h: Harness) -> None:
    messages = frame(h, 4)
    token = token_of(messages)
    for at in (0, 2):
        h.extend("q", messages[at].id, token, ms=(at + 1) * 90_000)
    assert h.settle("q", token, **extension(50_000)) == Settled(4, h.clock.wall_ns + 50_000 * MS)
    check_consistent(h)
    h.restart()
    assert h.settle("q", token, expected_messages=4, **ACK) == Settled(4)
    places = h.broker.state.places
    assert not places.grants and not places.renewals
    assert rows(h, Column.LEASES) == 0


# --- Turns ----------------------------------------------------------------------------------------


def item(messages: Sequence[Message], **fields: Any) -> GrantSettlement:
    return GrantSettlement(queue="q", lease_token=token_of(messages), **fields)


def test_a_large_grant_takes_several_turns(h: Harness) -> None:
    messages = frame(h, MANY)
    h.units.clear()
    (results,) = h.run(SettleGrants(0, [item(messages, **ACK)]))
    assert results == [Settled(MANY)]
    assert len(h.units) > 1 and max(h.units) <= SLICE + 2


def test_leases_do_not_run_out_while_their_grant_is_settled(h: Harness) -> None:
    messages = frame(h, MANY)
    effects = h.turn(SettleGrants(0, [item(messages, expected_messages=MANY, **ACK)]))
    assert effects.more and not effects.answers
    h.clock.advance(31)  # the visibility timeout is 30
    h.tick()
    assert h.stats("q").counters.acked == MANY
    assert h.stats("q").counters.expired == 0


@pytest.mark.parametrize("size", [1, 2, 3, SLICE // 2, SLICE - 1, SLICE, SLICE + 1])
def test_what_is_expected_is_settled_or_nothing_is(h: Harness, size: int) -> None:
    """Leases may run out while a request waits for its next turn, but not a part of an item's."""
    frames = [frame(h, size) for _ in range(1 + 5 * SLICE // size)]
    items = [item(it, expected_messages=size, **ACK) for it in frames]
    h.turn(SettleGrants(0, items))
    assert h.last.more
    h.clock.advance(31)  # the visibility timeout is 30
    while not h.last.answers:
        h.turn()
    ((_, results),) = h.last.answers
    done = [it for it in results if not isinstance(it, LeaseExpired)]
    assert done == [Settled(size)] * len(done)
    h.tick()
    counters = h.stats("q").counters
    assert counters.acked == size * len(done)
    assert counters.expired == size * (len(frames) - len(done))
    check_consistent(h)


@pytest.mark.parametrize(
    "nack",
    [GrantNack(retry_after_ms=2**62), GrantNack(retry_after_ms=0, throttle_key="t")],
)
def test_a_refused_settlement_prolongs_nothing(h: Harness, nack: GrantNack) -> None:
    messages = frame(h, MANY)
    assert isinstance(h.settle("q", token_of(messages), nack=nack), InvalidArgument)
    h.clock.advance(31)  # the visibility timeout is 30
    h.tick()
    assert h.stats("q").counters.expired == MANY
    check_consistent(h)


def test_what_a_long_settlement_leaves_alone_expires_as_before(h: Harness) -> None:
    messages = frame(h, MANY)
    h.settle("q", token_of(messages), except_message_ids=ids(messages[:2]), **ACK)
    h.clock.advance(29)
    h.tick()
    assert h.stats("q").in_flight == 2
    h.clock.advance(2)
    h.tick()
    assert h.stats("q").counters.expired == 2
    check_consistent(h)


def test_others_may_settle_some_of_it_meanwhile(h: Harness) -> None:
    messages = frame(h, MANY)
    effects = h.turn(SettleGrants(7, [item(messages, **ACK)]))
    assert effects.more
    last, other = messages[-1].id, messages[-2].id
    effects = h.turn(
        Extend(8, [LeaseExtension(queue="q", message_id=last)]),
        Ack(9, [AckRequest(queue="q", message_id=other)]),
    )
    answers = dict(effects.answers)
    assert answers[8] == [h.clock.wall_ns + 30 * S] and answers[9] == [None]
    assert h.turn().answers == [(7, [Settled(MANY - 1)])]
    assert h.stats("q").in_flight == 0
    assert h.stats("q").counters.acked == MANY
    check_consistent(h)


@pytest.mark.parametrize("action", [ACK, RELEASE, {"nack": GrantNack()}])
def test_a_queue_that_is_deleted_meanwhile(h: Harness, action: dict[str, Any]) -> None:
    messages = frame(h, MANY)
    h.turn(SettleGrants(1, [item(messages, **action)]))
    answers = dict(h.turn(Admin(2, admin_pb2.DeleteQueueRequest(queue="q"))).answers)
    while h.last.more:
        answers.update(h.turn().answers)
    ((error,),) = [answers[1]]
    assert isinstance(error, QueueNotFound)
    assert all(rows(h, column) == 0 for column in (Column.MESSAGES, Column.LEASES, Column.RETRIES))
    check_consistent(h)


def test_many_small_requests_share_a_turn_and_leave_the_rest_for_the_next() -> None:
    h = Harness(limits=LimitsConfig(max_frame_messages=SLICE))
    h.create("q")
    frames = [frame(h, SLICE) for _ in range(12)]
    h.units.clear()
    answers = h.run(*(SettleGrants(at, [item(it, **ACK)]) for at, it in enumerate(frames)))
    assert answers == [[Settled(SLICE)]] * len(frames)
    assert max(h.units) <= 6 * SLICE


def test_naming_a_grant_again_and_again_costs_units(h: Harness) -> None:
    messages = frame(h, SLICE)
    kept = ids(messages)
    items = [item(messages, except_message_ids=kept, **ACK)] * 20
    h.units.clear()
    (results,) = h.run(SettleGrants(0, items))
    assert results == [Settled(0)] * 20
    assert len(h.units) >= 20 and max(h.units) <= 3 * SLICE


def test_singles_and_grants_in_one_group(h: Harness) -> None:
    messages = frame(h, 3)
    single = AckRequest(queue="q", message_id=messages[0].id)
    results = h.run(
        Ack(0, [single]),
        SettleGrants(1, [item(messages, **ACK)]),
        Ack(2, [single]),
    )
    assert results[0] == [None] and results[1] == [Settled(2)]
    assert isinstance(results[2][0], FilaError)


@pytest.mark.parametrize(
    "action",
    [ACK, RELEASE, {"nack": GrantNack(error="no")}, extension(9000)],
    ids=["ack", "release", "nack", "extend"],
)
def test_the_largest_turn_does_not_grow_with_the_queue(action: dict[str, Any]) -> None:
    def settle_all(h: Harness, size: int) -> list[Command]:
        leased(h, size)
        held = h.broker.state.queues["q"].leases.values()
        tokens = sorted({it.grant.token for it in held if it.grant is not None})
        items = [GrantSettlement(queue="q", lease_token=it, **action) for it in tokens]
        return [SettleGrants(0, items)]

    assert_bounded(settle_all)


@pytest.mark.parametrize("how", ["whole", "each"])
def test_what_was_extended_has_reached_somebody_though_its_frame_was_not_sent(
    h: Harness, how: str
) -> None:
    """A consumer that extends and leaves may be faster than the word that it got the frame."""
    consumer = h.open("q")
    h.enqueue_many("q", 2)
    ((_, grant, messages),) = h.frames
    h.frames = []
    token = token_of(messages)
    if how == "whole":
        settled = h.settle("q", token, extend=GrantExtension(extend_ms=50_000))
        assert isinstance(settled, Settled) and settled.messages == 2
    else:
        for message in messages:
            assert h.extend("q", message.id, token, 50_000) == h.clock.wall_ns + 50 * S
    h.run(CloseConsumer(consumer, [grant]))
    assert h.receive("q", 2) == []
    assert h.settle("q", token, **ACK).messages == 2  # type: ignore[union-attr]
    check_consistent(h)
