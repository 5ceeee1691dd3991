# SPDX-License-Identifier: AGPL-3.0-only
"""The API key: fixed, or given by a function for each call. It is never shown."""

from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from fila.errors import FilaError, UnauthenticatedError

ApiKey = str | Callable[[], str]
AsyncApiKey = str | Callable[[], str | Awaitable[str]]
Metadata = tuple[tuple[str, str], ...]

_REDACTED = "[redacted]"
# Calls that fail while keys change may name the one before.
_REMEMBERED = 8


class KeyRing:
    """The key of one client, and what of it must not appear in a text."""

    def __init__(self, api_key: AsyncApiKey | None) -> None:
        self._ask = None if isinstance(api_key, str) else api_key
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)
        # One value for both, because threads may take different keys at once.
        self._latest: tuple[str, Metadata] | None = None
        # What travels with each call while there is only one key.
        self.metadata: Metadata = ()
        if api_key is not None and not callable(api_key):
            self.metadata = self._take(api_key)

    @property
    def is_asked(self) -> bool:
        """Whether a function gives the key."""
        return self._ask is not None

    def ask(self) -> Metadata:
        """The metadata for a call, by the function. What it raises fails the call."""
        return self._given(self._call())

    async def ask_async(self) -> Metadata:
        """As `ask`, of a function that may be one to await."""
        key = self._call()
        if isawaitable(key):
            try:
                key = await key
            except Exception as error:
                raise _failed(error) from error
        return self._given(key)

    def _call(self) -> Any:
        assert self._ask is not None
        try:
            return self._ask()
        except Exception as error:
            raise _failed(error) from error

    def _given(self, key: Any) -> Metadata:
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        try:
            return self._take(key)
        except (TypeError, ValueError) as error:
            raise _failed(error) from error

    def _take(self, key: Any) -> Metadata:
        if not isinstance(key, str):
            raise TypeError(f"api_key must be str, not {type(key).__name__}")
        # gRPC refuses other characters too, but with a text that repeats the key.
        if not key or not all("!" <= char <= "~" for char in key):
            raise ValueError("api_key must be printable ASCII without spaces, and not empty")
        self._seen.append(key)
        metadata: Metadata = (("authorization", f"Bearer {key}"),)
        self._latest = key, metadata
        return metadata

    def redacted(self, text: str) -> tuple[str, bool]:
        """The text without a key, and whether there was one in it."""
        shown = text
        for key in tuple(self._seen):
            shown = shown.replace(key, _REDACTED)
        return shown, shown != text


def _failed(error: Exception) -> FilaError:
    if isinstance(error, FilaError):
        return error
    text = f"the function that gives the api_key raised {type(error).__name__}: {error}"
    return UnauthenticatedError(text, code="UNAUTHENTICATED")
