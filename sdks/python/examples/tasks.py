# SPDX-License-Identifier: AGPL-3.0-only
"""Tasks, as Celery and taskiq have them: functions that are called here and run by a worker.

    @tasks.task(throttle_keys=["smtp"])
    def send_receipt(tenant: str, order: int) -> None: ...

    send_receipt.delay("acme", 42)

All of it is `Tasks`, a hundred lines to copy and change: a name and arguments as JSON, one queue,
fair among tenants. Results are not kept; a task that fails is retried as the queue says.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec

import fila

P = ParamSpec("P")


class Task(Generic[P]):
    """A function that a worker runs. Calling it runs it here, which is what tests want."""

    def __init__(self, tasks: "Tasks", run: Callable[P, object], **options: Any) -> None:
        self.name = run.__name__
        self.run = run
        self._tasks = tasks
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> object:
        return self.run(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Has a worker run it, and returns the message's id."""
        return self._tasks.send(self.name, args, kwargs, **self._options)


class Tasks:
    """The tasks of one queue."""

    def __init__(self, client: fila.Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._known: dict[str, Task[Any]] = {}

    def task(
        self, *, throttle_keys: Iterable[str] = (), fair_by: str | None = None
    ) -> Callable[[Callable[P, object]], Task[P]]:
        """Makes a function a task; `fair_by` names the argument that says whose it is."""

        def register(run: Callable[P, object]) -> Task[P]:
            task = Task(self, run, throttle_keys=tuple(throttle_keys), fair_by=fair_by)
            self._known[task.name] = task
            return task

        return register

    def send(
        self,
        name: str,
        args: Iterable[Any],
        kwargs: dict[str, Any],
        *,
        throttle_keys: Iterable[str],
        fair_by: str | None,
    ) -> str:
        return self._client.enqueue(
            self._queue,
            {"task": name},
            json={"args": list(args), "kwargs": kwargs},
            fairness_key=str(kwargs[fair_by]) if fair_by else None,
            throttle_keys=throttle_keys,
        )

    def worker(self, **options: Any) -> fila.Worker:
        return self._client.worker(self._queue, self._handle, **options)

    def _handle(self, message: fila.ConsumeMessage) -> None:
        task = self._known.get(message.headers.get("task", ""))
        if task is None:
            raise fila.DeadLetter("no such task here")
        given = message.json()
        task.run(*given["args"], **given["kwargs"])


def main() -> None:
    with fila.Client(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
        queue = f"tasks-{uuid.uuid4().hex[:8]}"
        dead_letters = client.ensure_queue(queue, max_attempts=3)
        tasks = Tasks(client, queue)
        sent: list[str] = []

        @tasks.task(throttle_keys=["smtp"], fair_by="tenant")
        def send_receipt(order: int, *, tenant: str) -> None:
            time.sleep(0.01)  # a slow mail server
            sent.append(f"{tenant} {order}")

        @tasks.task()
        def divide(by: int) -> None:
            print(f"divided by {by}: {1 // by}")

        for order in range(5):
            send_receipt.delay(order, tenant="acme")
        send_receipt.delay(1, tenant="umbrella")
        divide.delay(0)

        left = 7

        def note(event: fila.WorkerEvent) -> None:
            """A real worker runs until SIGTERM stops it."""
            nonlocal left
            left -= event.kind == "acked"
            if event.kind == "nacked" and event.message.attempt_count == 2:
                left -= 1
            if not left:
                worker.stop()

        worker = tasks.worker(concurrency=4, on_event=note)
        worker.run()

        print(
            f"{len(sent)} receipts were sent, to {', '.join(sorted({s.split()[0] for s in sent}))}"
        )
        (letter,) = client.receive(dead_letters, wait_ms=2_000)
        print(f"{letter.headers['task']} was given up: {letter.last_error}")
        letter.ack()
        client.delete_queue(queue)


if __name__ == "__main__":
    main()
