# SPDX-License-Identifier: AGPL-3.0-only
"""Pipelines: batch calls over one stream. See docs/internals/decisions/0008-pipelines.md.

Theory of operation. Requests are begun as they come and may overlap. A small one is handed in
together with other calls if the transport does that, and costs no task of its own; for any other a
task runs the handler of its call. Answers leave in the order of the requests: whoever has finished
and is the oldest sends its answer, and those of the others behind it that have finished, too. Who
is not the oldest leaves its answer to the one before it.

What a call means is its handler's business, and how messages travel the transport's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from fila_server.core.wire.pipelines import CALLS, cut_request, encode_answer, encode_refusal
from fila_server.errors import FilaError
from fila_server.rpc.method import Conversation, Metadata, Method, decoded, encoded
from fila_server.rpc.status import DEFECT
from fila_server.runtime.engine import Lasting

log = logging.getLogger(__name__)


class Pipelines:
    """The handler of pipelines."""

    def __init__(self, lasting: set[Lasting], batches: Mapping[str, Method]) -> None:
        """Serve batch calls, by the names of their fields in a PipelineRequest."""
        self._lasting = lasting
        self._methods = {CALLS[name]: method for name, method in batches.items()}

    async def run(self, request: None, call: Conversation) -> None:
        pipeline = _Pipeline(self._methods, call)
        self._lasting.add(pipeline)
        try:
            await pipeline.run()
        finally:
            self._lasting.discard(pipeline)


class _Carried:
    """What a batch call's handler sees of a request: it has no metadata of its own."""

    def metadata(self) -> Metadata:
        return ()


_CARRIED = _Carried()


class _Request:
    """A request under way."""

    __slots__ = ("answer", "task")

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.task: asyncio.Task[None] | None = None


class _Pipeline:
    """One pipeline, from its beginning to its end."""

    def __init__(self, methods: Mapping[int, Method], call: Conversation) -> None:
        self._methods = methods
        self._call = call
        self._under_way: deque[_Request] = deque()  # in order, until their answers are sent
        self._is_read = False  # there will be no further request
        self._refusal: FilaError | None = None  # what it ends with
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        # At once, so that a client that waits for them knows that the pipeline is open.
        await self._call.open()
        self._end_if_done()  # it may have been closed meanwhile
        reader = self._reader = asyncio.ensure_future(self._read())
        try:
            await self._ended
        finally:
            reader.cancel()
            for request in self._under_way:
                if request.task is not None:
                    request.task.cancel()

    def close(self, error: FilaError) -> None:
        """Read no further; answer what is under way, and end with an error."""
        self._refusal = error
        if self._reader is not None:
            self._reader.cancel()
            self._end_if_done()

    # --- Requests ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            await self._call.attend(self._begin)
        except Exception as error:
            if not self._ended.done():  # the transport has failed
                self._ended.set_exception(error)
        else:
            self._is_read = True
            self._end_if_done()

    def _begin(self, body: bytes | FilaError) -> None:
        request = _Request()
        self._under_way.append(request)
        try:
            if isinstance(body, FilaError):
                raise body
            number, content = cut_request(body)
        except FilaError as error:
            self._answer(request, encode_refusal(error))
            return
        method = self._methods[number]
        if not self._call.share(method, content, partial(self._shared, request, number)):
            request.task = _started(self._handle(request, number, method, content))

    def _shared(self, request: _Request, number: int, result: bytes | FilaError) -> None:
        """Take the result of a request that was handed in with others."""
        if isinstance(result, FilaError):
            self._answer(request, encode_refusal(result))
        else:
            self._answer(request, encode_answer(number, result))

    async def _handle(self, request: _Request, number: int, method: Method, content: bytes) -> None:
        self._answer(request, await self._handled(number, method, content))

    async def _handled(self, number: int, method: Method, content: bytes) -> bytes:
        try:
            self._call.readmit()
            request = decoded(method.decode, content)
            del content
            return encode_answer(number, encoded(await method.handler(request, _CARRIED)))
        except FilaError as error:
            return encode_refusal(error)
        except Exception:
            log.exception("a defect in %s", method.name)
            return encode_refusal(FilaError(DEFECT))

    # --- Answers ----------------------------------------------------------------------------------

    def _answer(self, request: _Request, answer: bytes) -> None:
        """Send an answer, and those that waited for it, unless an older one is missing."""
        request.answer = answer
        if self._ended.done():
            return
        under_way = self._under_way
        while under_way and (oldest := under_way[0].answer) is not None:
            under_way.popleft()
            self._call.reply(oldest)
        self._end_if_done()

    # --- The end ----------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        if self._under_way or self._ended.done():
            return
        if self._refusal is not None:
            self._ended.set_exception(self._refusal)
        elif self._is_read:
            self._ended.set_result(None)


def _started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin work now if Python can, in a task, rather than in the loop's next round."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.ensure_future(work)
