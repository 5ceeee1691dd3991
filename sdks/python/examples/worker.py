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
        raise fila.DeadLetter("unlucky number")
    if message.payload == b"7" and message.attempt_count == 0:
        raise ConnectionError("better luck next time")


async def main() -> None:
    async with fila.AsyncClient(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
        queue = f"worker-{uuid.uuid4().hex[:8]}"
        dead_letters = await client.create_queue(queue)
        await client.enqueue_many(
            fila.EnqueueMessage(queue, {}, str(n).encode()) for n in range(MESSAGES)
        )

        left = MESSAGES
        processed = 0

        def note(event: fila.WorkerEvent) -> None:
            """A real worker counts these in its metrics, and runs until SIGTERM stops it."""
            nonlocal left, processed
            processed += event.kind == "acked"
            left -= event.kind in ("acked", "dead_lettered")
            if not left:
                worker.stop()

        # While a handler runs its message stays leased; nothing is lost when the worker stops.
        worker = client.worker(queue, handle, concurrency=HANDLERS, on_event=note)
        await worker.run()

        (letter,) = await client.receive(dead_letters, wait_ms=2_000)
        print(f"{processed} messages were processed")
        print(f"message {letter.payload.decode()} is a dead letter: {letter.last_error}")
        await letter.ack()
        await client.delete_queue(queue)


asyncio.run(main())
