"""A process between one client and a server. Stopping it cuts the client off silently.

    python tests/support/relay.py HERE THERE

It passes on bytes between port HERE, where it listens, and port THERE, both of this machine. As long as it is
stopped (SIGSTOP), connections are neither refused nor closed and nothing arrives; what was sent arrives when
it goes on, unless it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await source.read(1 << 16):
            sink.write(some)
            await sink.drain()
    sink.close()


async def _serve(here: int, there: int) -> None:
    async def connected(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            server, forth = await asyncio.open_connection("127.0.0.1", there)
        except OSError:
            back.close()
            return
        await asyncio.gather(_pass_on(client, forth), _pass_on(server, back))

    listening = await asyncio.start_server(connected, "127.0.0.1", here)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
