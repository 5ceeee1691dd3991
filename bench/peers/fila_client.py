# SPDX-License-Identifier: AGPL-3.0-only
"""Our Python SDK, as the benchmark of peers uses it."""

import asyncio
from collections.abc import Iterator, Sequence

import fila
from bench.peers.peer import LISTEN_WINDOW, UNDER_WAY, Client, Delivery, Outgoing

TIMEOUT_S = 60


class FilaClient(Client):
    """Single calls go through the blocking client, bulk through the one made of coroutines."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = fila.Client(address, timeout=TIMEOUT_S)

    def create(self, queue: str) -> None:
        self._client.create_queue(queue, visibility_timeout_ms=600_000)

    def delete(self, queue: str) -> None:
        self._client.delete_queue(queue)

    def limit(self, name: str, rate: float, burst: int) -> None:
        self._client.set_config(f"throttle.{name}", f"{rate:g},{burst}")

    def send(self, queue: str, message: Outgoing) -> None:
        self._client.enqueue(queue, payload=message.payload, fairness_key=message.key or None)

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        requests = [_enqueued(queue, message) for message in messages]
        asyncio.run(self._produce(requests, window))

    def send_singly(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        asyncio.run(self._send_singly(queue, messages, window))

    def consume(self, queue: str, count: int, window: int) -> int:
        return asyncio.run(self._consume(queue, count, window))

    async def _produce(self, requests: list[fila.EnqueueMessage], window: int) -> None:
        starts = iter(range(0, len(requests), window))
        async with fila.AsyncClient(self._address, timeout=TIMEOUT_S) as client:

            async def one_after_the_other() -> None:
                for start in starts:
                    for result in await client.enqueue_many(requests[start : start + window]):
                        result.unwrap()

            await asyncio.gather(*(one_after_the_other() for _ in range(UNDER_WAY)))

    async def _send_singly(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        left = iter(messages)
        async with fila.AsyncClient(self._address, timeout=TIMEOUT_S) as client:

            async def one_after_the_other() -> None:
                for message in left:
                    key = message.key or None
                    await client.enqueue(queue, payload=message.payload, fairness_key=key)

            await asyncio.gather(*(one_after_the_other() for _ in range(UNDER_WAY * window)))

    async def _consume(self, queue: str, count: int, window: int) -> int:
        received = 0
        acks: set[asyncio.Task[None]] = set()
        async with fila.AsyncClient(self._address, timeout=TIMEOUT_S) as client:

            async def ack(messages: list[fila.AsyncConsumeMessage]) -> None:
                for error in await client.ack_many(messages):
                    if error is not None:
                        raise error

            credit = UNDER_WAY * window
            consumer = client.consume(queue, max_in_flight=credit, batch_size=window)
            held: list[fila.AsyncConsumeMessage] = []
            async with consumer:
                async for message in consumer:
                    held.append(message)
                    received += len(message.payload)
                    count -= 1
                    if len(held) == window or count == 0:
                        acks.add(asyncio.create_task(ack(held)))
                        held = []
                    if len(acks) == UNDER_WAY:
                        done, acks = await asyncio.wait(acks, return_when="FIRST_COMPLETED")
                        await asyncio.gather(*done)
                    if count == 0:
                        break
                await asyncio.gather(*acks)
        return received

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        """Messages of a stream, each as it comes; its client waits for as long as it takes."""
        credit = UNDER_WAY * window
        with self._client.consume(queue, max_in_flight=credit, batch_size=window) as consumer:
            for message in consumer:
                yield [Delivery(message.payload, message)]

    def listen(self, queue: str) -> Iterator[list[Delivery]]:
        return self.deliveries(queue, LISTEN_WINDOW)

    def take(self, queue: str, count: int) -> list[Delivery]:
        found = self._client.receive(queue, count, wait_ms=0)
        return [Delivery(message.payload, message) for message in found]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for error in self._client.ack_many([delivery.handle for delivery in deliveries]):
            if error is not None:
                raise error

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        self._client.nack_many([delivery.handle for delivery in deliveries], "not now")

    def close(self) -> None:
        self._client.close()


def _enqueued(queue: str, message: Outgoing) -> fila.EnqueueMessage:
    return fila.EnqueueMessage(
        queue,
        None,
        message.payload,
        fairness_key=message.key or None,
        weight=message.weight,
        throttle_keys=(message.limit,) if message.limit else (),
    )
