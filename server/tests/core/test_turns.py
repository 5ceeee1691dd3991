# SPDX-License-Identifier: AGPL-3.0-only
"""A turn does a bounded amount of work, whatever the queue holds: every command and every timer
against queues of two sizes.
Work is measured in units, as the core counts it, and in lines of it that were run, which nobody can
forget to count. Neither may grow with the queue. `nox -s bench -- turns` does it with a million.
"""

from __future__ import annotations

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import AckRequest, EnqueueRequest, LeaseExtension, NackRequest
from fila_server.core.access import Minted
from fila_server.core.broker import Broker
from fila_server.core.commands import (
    Access,
    Ack,
    Admin,
    CloseConsumer,
    Command,
    Enqueue,
    Extend,
    Nack,
    OpenConsumer,
)
from server.tests.core.backlogs import BATCH, dead, lanes_of_one_key, leased, many, parked, wide
from server.tests.core.harness import Harness
from server.tests.core.meter import Case, assert_bounded, counting

DAY_MS = 86_400_000


def admin(request: Any) -> list[Command]:
    return [Admin(0, request)]


# --- The cases: each makes a queue of a size and returns what is then asked of the broker ---------


def list_queues(h: Harness, size: int) -> list[Command]:
    h.turn(*(Admin(n, pb.CreateQueueRequest(name=f"q{n}")) for n in range(size // 5)))
    return admin(pb.ListQueuesRequest())


def stats(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.GetStatsRequest(queue="q"))


def stats_of_all_keys(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.GetStatsRequest(queue="q", max_keys=2**32 - 1))


def stats_of_leases(h: Harness, size: int) -> list[Command]:
    leased(h, size)
    return admin(pb.GetStatsRequest(queue="q"))


def explain_a_key(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.ExplainRequest(queue="q", fairness_key="k7"))


def explain_a_key_of_many_lanes(h: Harness, size: int) -> list[Command]:
    lanes_of_one_key(h, size)
    return admin(pb.ExplainRequest(queue="q", fairness_key="k"))


def explain_the_last_message(h: Harness, size: int) -> list[Command]:
    h.create("q")
    ids = many(h, size)
    return admin(pb.ExplainRequest(queue="q", message_id=ids[-1]))


def explain_a_delayed_key(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, delay_ms=DAY_MS)
    return admin(pb.ExplainRequest(queue="q", fairness_key="nobody"))


def peek(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.PeekRequest(queue="q", limit=1000))


def peek_what_is_not_there(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.PeekRequest(queue="q", limit=1000, fairness_key="nobody"))


def list_throttles(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.ListThrottlesRequest(limit=10_000))


def list_config(h: Harness, size: int) -> list[Command]:
    for n in range(size // 4):
        h.set(f"name{n}", "value")
    return admin(pb.ListConfigRequest())


def enqueue_new_keys(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    requests = [EnqueueRequest(queue="q", fairness_key=f"new{n}") for n in range(BATCH)]
    return [Enqueue(0, h.drafts(*requests))]


def enqueue_idempotent(h: Harness, size: int) -> list[Command]:
    h.create("q")
    requests = [EnqueueRequest(queue="q", idempotency_key=f"k{n}") for n in range(size // 2)]
    return [Enqueue(0, h.drafts(*requests))]


def ack(h: Harness, size: int) -> list[Command]:
    return [Ack(0, [AckRequest(queue="q", message_id=it) for it in leased(h, size)])]


def nack(h: Harness, size: int) -> list[Command]:
    items = [NackRequest(queue="q", message_id=it, error="no") for it in leased(h, size)]
    return [Nack(0, items)]


def nack_to_death(h: Harness, size: int) -> list[Command]:
    ids = leased(h, size, max_attempts=1)
    return [Nack(0, [NackRequest(queue="q", message_id=it, error="no") for it in ids])]


def give_back(h: Harness, size: int) -> list[Command]:
    items = [NackRequest(queue="q", message_id=it, retry_after_ms=0) for it in leased(h, size)]
    return [Nack(0, items)]


def backpressure_on_new_throttle_keys(h: Harness, size: int) -> list[Command]:
    h.create("other")
    many(h, size, size // 4, queue="other")
    h.create("q")
    many(h, 200)
    items = []
    for n in range(200):
        h.enqueue("q", fairness_key="x", throttle_keys=[f"customer-{n}"])
    for message in h.receive("q", 400):
        for key in message.metadata.throttle_keys:
            item = NackRequest(queue="q", message_id=message.id, throttle_key=key)
            item.retry_after_ms = 1000
            items.append(item)
    return [Nack(0, items)]


def extend(h: Harness, size: int) -> list[Command]:
    ids = leased(h, size)
    return [Extend(0, [LeaseExtension(queue="q", message_id=it, extend_ms=9000) for it in ids])]


def open_a_stream_of_large_credit(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return [OpenConsumer(0, 900, "q", 10_000, 1000, 0, False)]


def open_many_streams(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return [OpenConsumer(n, 900 + n, "q", 1000, 1000, 0, False) for n in range(size // 1000)]


def close_a_stream_with_its_frames_unsent(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    consumer = h.open("q", credit=10_000, batch=1000)
    return [CloseConsumer(consumer, [grant for _, grant, _ in h.frames])]


def cancel(h: Harness, size: int) -> list[Command]:
    h.create("q")
    ids = many(h, size)
    return admin(pb.CancelMessageRequest(queue="q", message_id=ids[size // 2]))


def cancel_behind_cancelled_ones(h: Harness, size: int) -> list[Command]:
    h.create("q")
    ids = many(h, size)
    last = size // 2
    for message_id in ids[size // 10 : last]:
        h.turn(*admin(pb.CancelMessageRequest(queue="q", message_id=message_id)))
    return admin(pb.CancelMessageRequest(queue="q", message_id=ids[last]))


def purge(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.PurgeRequest(queue="q"))


def purge_one_key_of_delayed(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, 10, delay_ms=DAY_MS)
    return admin(pb.PurgeRequest(queue="q", fairness_key="k3"))


def purge_parked_lanes(h: Harness, size: int) -> list[Command]:
    parked(h, size)
    return admin(pb.PurgeRequest(queue="q"))


def delete_a_wide_queue(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.DeleteQueueRequest(queue="q"))


def delete_a_leased_queue(h: Harness, size: int) -> list[Command]:
    leased(h, size)
    return admin(pb.DeleteQueueRequest(queue="q"))


def delete_a_mortal_queue(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, 9, ttl_ms=DAY_MS)
    return admin(pb.DeleteQueueRequest(queue="q"))


def set_a_rate_pattern(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    h.open("q", credit=100)
    return admin(pb.SetConfigRequest(key="throttle.t*", value="10"))


def remove_a_concurrency_pattern(h: Harness, size: int) -> list[Command]:
    h.set("concurrency:t*:limit", "1")
    wide(h, size)
    h.open("q", credit=10_000)
    return admin(pb.SetConfigRequest(key="concurrency:t*:limit", value=""))


def set_a_weight_pattern(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return admin(pb.SetConfigRequest(key="weight:q:*", value="9"))


def set_the_first_limit_of_a_shared_key(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, size // 4, throttle_keys=["shared"])
    h.open("q", credit=100)
    h.take()
    return admin(pb.SetConfigRequest(key="throttle.shared", value="1,1"))


def remove_the_limit_that_all_wait_for(h: Harness, size: int) -> list[Command]:
    parked(h, size)
    return admin(pb.SetConfigRequest(key="throttle.shared", value=""))


def pause_a_key_of_many_lanes(h: Harness, size: int) -> list[Command]:
    h.set("throttle.t*", "0.001,1")
    lanes_of_one_key(h, size)
    return admin(pb.PauseRequest(queue="q", fairness_key="k"))


def resume_a_key_of_many_lanes(h: Harness, size: int) -> list[Command]:
    lanes_of_one_key(h, size)
    h.admin(pb.PauseRequest(queue="q", fairness_key="k"))
    return admin(pb.ResumeRequest(queue="q", fairness_key="k"))


def resume_a_throttle_key_that_all_carry(h: Harness, size: int) -> list[Command]:
    h.create("q")
    h.admin(pb.PauseRequest(throttle_key="shared"))
    many(h, size, size // 4, throttle_keys=["shared"])
    h.open("q", credit=10_000, batch=1000)
    return admin(pb.ResumeRequest(throttle_key="shared"))


def keys_that_wait_are_paused_one_by_one(h: Harness, size: int) -> list[Command]:
    parked(h, size)
    for n in range(size // 8):
        h.turn(*admin(pb.PauseRequest(queue="q", fairness_key=f"k{n}")))
    return admin(pb.SetConfigRequest(key="throttle.shared", value="1000,1"))


def redrive(h: Harness, size: int) -> list[Command]:
    dead(h, size)
    return admin(pb.RedriveRequest(dlq_queue="q.dlq"))


def redrive_what_was_enqueued_there(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, queue="q.dlq")
    return admin(pb.RedriveRequest(dlq_queue="q.dlq"))


def redrive_by_a_filter_that_fits_none(h: Harness, size: int) -> list[Command]:
    dead(h, size)
    return admin(pb.RedriveRequest(dlq_queue="q.dlq", error_contains="nothing says this"))


def redrive_one_of_many(h: Harness, size: int) -> list[Command]:
    ids = dead(h, size)
    return admin(pb.RedriveRequest(dlq_queue="q.dlq", message_ids=[ids[-1]]))


def delays_end_at_once(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, size // 4, delay_ms=10_000)
    h.clock.advance(11)
    return []


def lives_end_at_once(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, size // 4, ttl_ms=10_000)
    h.clock.advance(11)
    return []


def lives_end_behind_a_backlog(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size)
    many(h, size // 10, ttl_ms=10_000)
    h.clock.advance(11)
    return []


def leases_end_at_once(h: Harness, size: int) -> list[Command]:
    leased(h, size, visibility_timeout_ms=10_000)
    h.clock.advance(11)
    return []


def leases_of_one_each_end_at_once(h: Harness, size: int) -> list[Command]:
    leased(h, size // 4, frame=1, visibility_timeout_ms=10_000)
    h.clock.advance(11)
    return []


def a_retry_comes_back_into_a_long_lane(h: Harness, size: int) -> list[Command]:
    h.create("q", retry_delay_ms=5000)
    many(h, size // 2)
    for message in h.receive("q", 50):
        h.nack("q", message.id, error="no")
    many(h, size // 2)
    h.clock.advance(5)
    return []


def buckets_refill_at_once(h: Harness, size: int) -> list[Command]:
    h.set("throttle.t*", "0.1,1")
    wide(h, size)
    h.open("q", credit=10_000, batch=1000)
    h.take()
    h.clock.advance(11)
    return []


def a_bucket_that_all_wait_for_refills(h: Harness, size: int) -> list[Command]:
    parked(h, size)
    h.clock.advance(1001)
    return []


def backpressure_ends_for_all(h: Harness, size: int) -> list[Command]:
    h.create("q", visibility_timeout_ms=36_000_000)
    many(h, size, size // 4, throttle_keys=["shared"])
    (message,) = h.receive("q")
    h.nack("q", message.id, retry_after_ms=5000, throttle_key="shared")
    h.open("q", credit=10_000, batch=1000)
    h.clock.advance(6)
    return []


def idempotency_keys_expire(h: Harness, size: int) -> list[Command]:
    h.create("q", idempotency_window_ms=1000)
    for start in range(0, size, BATCH):
        keys = range(start, min(size, start + BATCH))
        requests = [EnqueueRequest(queue="q", idempotency_key=f"k{n}") for n in keys]
        h.run(Enqueue(0, h.drafts(*requests)))
    h.clock.advance(60)
    return []


def keys_and_limiters_are_forgotten(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    while messages := h.receive("q", 1000):
        h.run(Ack(0, [AckRequest(queue="q", message_id=it.id) for it in messages]))
    h.clock.advance(60)
    return []


def api_keys_expire_with_their_streams(h: Harness, size: int) -> list[Command]:
    h.create("q")
    expires_ms = h.clock.wall_ns // 1_000_000 + 10_000
    for n in range(size // 10):
        request = pb.CreateApiKeyRequest(name="key", expires_at_ms=expires_ms)
        request.acl.add(kind="consume", pattern="q")
        h.turn(Access(0, request, "", Minted(f"key{n}", b"s", b"d")))
        h.turn(OpenConsumer(0, 1000 + n, "q", 1, 1, 0, False, f"key{n}"))
    h.clock.advance(11)
    return []


def revoke_a_key_among_many_streams(h: Harness, size: int) -> list[Command]:
    api_keys_expire_with_their_streams(h, size)
    h.clock.advance(-11)
    return [Access(0, pb.RevokeApiKeyRequest(key_id="key7"), "")]


CASES: list[Case] = [
    list_queues,
    stats,
    stats_of_all_keys,
    stats_of_leases,
    explain_a_key,
    explain_a_key_of_many_lanes,
    explain_the_last_message,
    explain_a_delayed_key,
    peek,
    peek_what_is_not_there,
    list_throttles,
    list_config,
    enqueue_new_keys,
    enqueue_idempotent,
    ack,
    nack,
    nack_to_death,
    give_back,
    backpressure_on_new_throttle_keys,
    extend,
    open_a_stream_of_large_credit,
    open_many_streams,
    close_a_stream_with_its_frames_unsent,
    cancel,
    cancel_behind_cancelled_ones,
    purge,
    purge_one_key_of_delayed,
    purge_parked_lanes,
    delete_a_wide_queue,
    delete_a_leased_queue,
    delete_a_mortal_queue,
    set_a_rate_pattern,
    remove_a_concurrency_pattern,
    set_a_weight_pattern,
    set_the_first_limit_of_a_shared_key,
    remove_the_limit_that_all_wait_for,
    pause_a_key_of_many_lanes,
    resume_a_key_of_many_lanes,
    resume_a_throttle_key_that_all_carry,
    keys_that_wait_are_paused_one_by_one,
    redrive,
    redrive_what_was_enqueued_there,
    redrive_by_a_filter_that_fits_none,
    redrive_one_of_many,
    delays_end_at_once,
    lives_end_at_once,
    lives_end_behind_a_backlog,
    leases_end_at_once,
    leases_of_one_each_end_at_once,
    a_retry_comes_back_into_a_long_lane,
    buckets_refill_at_once,
    a_bucket_that_all_wait_for_refills,
    backpressure_ends_for_all,
    idempotency_keys_expire,
    keys_and_limiters_are_forgotten,
    api_keys_expire_with_their_streams,
    revoke_a_key_among_many_streams,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_largest_turn_does_not_grow_with_the_queue(case: Case) -> None:
    assert_bounded(case)


def test_recovery_looks_at_what_is_stored_and_not_at_limits_times_leases() -> None:
    lines = []
    for limits in (20, 200):
        h = Harness()
        leased(h, 2000)
        for n in range(limits):
            h.set(f"throttle.t{n}", "1000,1000")
            h.enqueue("q", throttle_keys=[f"t{n}"])
        broker = Broker(h.config, h.storage, h.compile_hooks, nonce=1)
        with counting() as count:
            broker.recover(h.clock.now())
        lines.append(count[0])
    assert lines[1] - lines[0] <= 180 * 300
