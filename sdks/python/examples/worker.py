# SPDX-License-Identifier: AGPL-3.0-only
"""A worker that runs handlers side by side: failures are retried, hopeless ones dead-lettered."""

import asyncio
import os
import uuid

import fila

MESSAGES = 20
HANDLERS = 5


async def handle(message: fila.AsyncConsumeMessage) -> None:
    """What a real worker does with a message; this one cannot stand the number 13."""
    await asyncio.sleep(0.02)
    if message.payload == b"13":
        raise ValueError("unlucky number")


async def work(consumer: fila.AsyncConsumer, settled: asyncio.Semaphore) -> None:
    async for message in consumer:
        try:
            await handle(message)
        except ValueError as error:
            await message.nack(str(error))
        else:
            await message.ack()
        settled.release()


async def main() -> None:
    async with fila.AsyncClient(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
        queue = f"worker-{uuid.uuid4().hex[:8]}"
        # The second failure of a message is its last.
        dead_letters = await client.create_queue(queue, max_attempts=2)
        await client.enqueue_many(
            fila.EnqueueMessage(queue, {}, str(n).encode()) for n in range(MESSAGES)
        )

        settled = asyncio.Semaphore(0)
        # No more in flight than there are handlers: what waits should wait at the broker, where
        # other workers can have it.
        async with client.consume(queue, max_in_flight=HANDLERS) as consumer:
            workers = [asyncio.create_task(work(consumer, settled)) for _ in range(HANDLERS)]
            for _ in range(MESSAGES + 1):  # one of them twice
                await settled.acquire()
        # Leaving the block closed the consumer, which ends the workers.
        await asyncio.gather(*workers)

        (letter,) = await client.receive(dead_letters, wait_ms=2_000)
        print(f"{MESSAGES - 1} messages were processed")
        print(f"message {letter.payload.decode()} is a dead letter: {letter.last_error}")
        await letter.ack()
        await client.delete_queue(queue)


asyncio.run(main())
