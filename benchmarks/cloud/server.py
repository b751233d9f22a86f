"""A light EC2 for the benchmark: instances in a dictionary, and an answer after a fixed time.

`python server.py LATENCY BOOT` writes its port on stdout and serves until it is killed. An instance is
pending until BOOT seconds after it was made. `GET /counts` tells what was asked for, and begins to count
anew.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

XMLNS = "http://ec2.amazonaws.com/doc/2016-11-15/"

REHEARSED = (
    b"<Response><Errors><Error><Code>DryRunOperation</Code><Message>it would</Message></Error></Errors>"
    b"</Response>"
)
"""The answer to what is only to be tried."""


class Ec2:
    """Instances by the token that made them."""

    def __init__(self, latency: float, boot: float) -> None:
        self.latency = latency
        self.boot = boot
        self.made: dict[str, dict[str, str]] = {}
        self.by_id: dict[str, dict[str, str]] = {}
        self.since: dict[str, float] = {}
        self.requests = 0
        self.first = self.last = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                data = self.counts() if line.startswith(b"GET /counts ") else await self.answer(body)
                status = b"412 Would" if data == REHEARSED else b"200 OK"
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def counts(self) -> bytes:
        """What was asked for since the last time."""
        found = {"requests": self.requests, "seconds": self.last - self.first}
        self.requests, self.first = 0, 0.0
        return json.dumps(found).encode()

    async def answer(self, body: bytes) -> bytes:
        """The answer to one action, after its time."""
        begun = time.monotonic()
        self.first = self.first or begun
        self.requests += 1
        data = self.said(dict(parse_qsl(body.decode())))
        # What it takes to say it is part of the latency.
        await asyncio.sleep(begun + self.latency - time.monotonic())
        self.last = time.monotonic()
        return data

    def said(self, asked: dict[str, str]) -> bytes:
        """The answer to one action."""
        if asked.get("DryRun") == "true":
            return REHEARSED
        action = asked["Action"]
        return f'<{action}Response xmlns="{XMLNS}">{self.content(action, asked)}</{action}Response>'.encode()

    def content(self, action: str, asked: dict[str, str]) -> str:
        """What an action says."""
        if action == "RunInstances":
            made = self.made.setdefault(asked["ClientToken"], {**asked, "id": f"i-{len(self.made):08x}"})
            self.by_id[made["id"]] = made
            self.since.setdefault(made["id"], time.monotonic())
            return f"<instancesSet>{item(made, 'pending')}</instancesSet>"
        if action == "DescribeInstances":
            wanted = {v for k, v in asked.items() if k.startswith("Filter.") and ".Value." in k}
            found = [self.by_id[v] for v in sorted(wanted) if v in self.by_id]
            found = found or [m for m in self.made.values() if wanted & set(m.values())]
            items = "".join(
                f"<item><instancesSet>{item(m, self.state(m))}</instancesSet></item>" for m in found
            )
            return f"<reservationSet>{items}</reservationSet>"
        if action == "DescribeImages":
            return f"<imagesSet><item><imageId>{asked['Filter.1.Value.1']}</imageId></item></imagesSet>"
        return "<volumeSet/><keySet/><instanceStatusSet/><return>true</return>"

    def state(self, made: dict[str, str]) -> str:
        """How far an instance is."""
        return "running" if time.monotonic() - self.since[made["id"]] >= self.boot else "pending"


def item(made: dict[str, str], state: str) -> str:
    """An instance as EC2 says it."""
    tags = ""
    number = 1
    while key := made.get(f"TagSpecification.1.Tag.{number}.Key"):
        value = escape(made.get(f"TagSpecification.1.Tag.{number}.Value", ""))
        tags += f"<item><key>{key}</key><value>{value}</value></item>"
        number += 1
    return (
        f"<item><instanceId>{made['id']}</instanceId><instanceState><name>{state}</name></instanceState>"
        f"<instanceType>{made['InstanceType']}</instanceType><privateIpAddress>10.0.0.1</privateIpAddress>"
        f"<placement><availabilityZone>{made['Placement.AvailabilityZone']}</availabilityZone></placement>"
        f"<tagSet>{tags}</tagSet></item>"
    )


async def main() -> None:
    """Serve until killed."""
    ec2 = Ec2(float(sys.argv[1]), float(sys.argv[2]))
    server = await asyncio.start_server(ec2.serve, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
