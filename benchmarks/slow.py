"""A TCP proxy that makes a line slow: each byte arrives `delay` seconds after it was sent.

Bytes that were sent together arrive together, as on a long line: what does not wait for an answer is not
slowed down.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """What comes from one side goes to the other, later."""
    now = asyncio.get_running_loop().time
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, chunk = await late.get()
            await asyncio.sleep(due - now())
            if not chunk:
                return writer.close()
            writer.write(chunk)

    delivery = asyncio.create_task(deliver())
    chunk = b"."
    while chunk:
        try:
            chunk = await reader.read(1 << 16)
        except ConnectionError:
            chunk = b""
        late.put_nowait((now() + delay, chunk))
    await delivery


@contextmanager
def slow(port: int, round_trip: float) -> Iterator[int]:
    """A port that leads to `port` of this machine, `round_trip` seconds further away, while this lasts."""
    started, ports = threading.Event(), list[int]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        there = _carry(reader, far_writer, round_trip / 2)
        await asyncio.gather(there, _carry(far_reader, writer, round_trip / 2))

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()

    loop = asyncio.new_event_loop()
    asyncio.run_coroutine_threadsafe(serve(), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    started.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
