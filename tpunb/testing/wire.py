"""A wire between clients and a server on loopback, that can be cut when half an answer has gone through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")


class Wire:
    """Hand bytes from `port` to the server at `behind` and back, both on 127.0.0.1.

    Parameters
    ----------
    port
        Where clients connect; 0 for a free one, which ``port`` then says.
    behind
        The port of the server.
    """

    def __init__(self, port: int, behind: int) -> None:
        self._behind = behind
        self._left: int | None = None  # bytes that still go to clients before the cut
        self._writers: set[asyncio.StreamWriter] = set()
        self._joins: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tpunb-wire", daemon=True)
        self._thread.start()
        try:
            self._server = self._do(asyncio.start_server(self._join, "127.0.0.1", port))
        except OSError:
            self._end()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def cut_after(self, count: int) -> None:
        """Let `count` more bytes through to clients, then close all connections and listen no more."""

        async def note() -> None:
            self._left = count

        self._do(note())

    def close(self) -> None:
        """Cut now; the thread ends."""
        if self._thread.is_alive():
            self._do(self._finish())
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()  # whether or not the other side has read what is underway
        await asyncio.gather(*self._joins)

    def _cut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()  # what it was given goes through

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a client's connection to one of its own to the server, until either ends."""
        task = asyncio.current_task()
        assert task is not None
        self._joins.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer, to_client=True))
        finally:
            self._writers -= {writer, back}
            self._joins.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool = False
    ) -> None:
        with suppress(ConnectionError):  # whoever hangs up first ends both directions
            while chunk := await reader.read(1 << 16):
                if to_client and self._left is not None:
                    chunk = chunk[: self._left]
                    self._left -= len(chunk)
                writer.write(chunk)
                await writer.drain()
                if self._left == 0:
                    self._cut()
        writer.close()
