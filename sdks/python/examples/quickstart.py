# SPDX-License-Identifier: AGPL-3.0-only
"""One message from a producer to a consumer."""

import os
import uuid

import fila

with fila.Client(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
    queue = f"quickstart-{uuid.uuid4().hex[:8]}"
    client.create_queue(queue)

    message_id = client.enqueue(queue, {"tenant": "acme"}, b"hello")
    print(f"enqueued {message_id}")

    with client.consume(queue) as consumer:
        for message in consumer:
            print(f"received {message.payload.decode()!r} of {message.headers['tenant']}")
            message.ack()
            break

    client.delete_queue(queue)
