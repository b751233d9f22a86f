"""An EC2 with the answers that a test gives: pages, states that come late, invalid answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
IMAGE = (
    "<imagesSet><item><imageId>ami-1</imageId><rootDeviceName>/dev/xvda</rootDeviceName></item></imagesSet>"
)
Asked = dict[str, str]
Answer = tuple[int, str]


class Scripted(ThreadingHTTPServer):
    """`with Scripted(answer) as ec2:`; `answer` is given the parameters of each request."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Asked], Answer | str]) -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.port = self.server_address[1]
        self.answer = answer
        self.asked: list[Asked] = []
        self.headers: list[Mapping[str, str]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""


class _OneRequest(BaseHTTPRequestHandler):
    server: Scripted
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = dict(parse_qsl(body.decode(), keep_blank_values=True))
        if asked.get("Filter.1.Name") == "image-id":
            found: Answer | str = answer("DescribeImages", IMAGE)  # whichever it is; no test is about that
        else:
            self.server.asked.append(asked)
            self.server.headers.append(dict(self.headers))
            found = self.server.answer(asked)
        status, text = found if isinstance(found, tuple) else (200, found)
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def answer(action: str, content: str, namespace: str = NAMESPACE) -> str:
    """The answer to an action."""
    return f'<{action}Response xmlns="{namespace}"><requestId>t</requestId>{content}</{action}Response>'


def refusal(code: str, message: str = "no", status: int = 400) -> Answer:
    """An error, as EC2 says it."""
    text = f"<Code>{code}</Code><Message>{message}</Message>"
    return status, f"<Response><Errors><Error>{text}</Error></Errors><RequestID>t</RequestID></Response>"


def tag_set(tags: Mapping[str, str]) -> str:
    """Tags, as EC2 says them."""
    items = "".join(f"<item><key>{k}</key><value>{_escaped(v)}</value></item>" for k, v in tags.items())
    return f"<tagSet>{items}</tagSet>"


def instance(made: str, tags: Mapping[str, str], state: str = "running", reason: str = "") -> str:
    """An item of an `instancesSet`."""
    code = f"<stateReason><code>{reason}</code><message>{reason}</message></stateReason>" if reason else ""
    return (
        f"<item><instanceId>{made}</instanceId><instanceState><code>0</code><name>{state}</name></instanceState>"
        f"<instanceType>t3.micro</instanceType><placement><availabilityZone>us-east-1a</availabilityZone>"
        f"</placement><privateIpAddress>10.0.0.9</privateIpAddress>{code}{tag_set(tags)}</item>"
    )


def reservations(*instances: str, token: str = "") -> str:
    """The content of an answer to DescribeInstances."""
    items = "".join(f"<item><instancesSet>{i}</instancesSet></item>" for i in instances)
    return f"<reservationSet>{items}</reservationSet>" + (f"<nextToken>{token}</nextToken>" if token else "")


def volume(
    made: str, tags: Mapping[str, str], state: str = "available", held: str = "", size: int = 1
) -> str:
    """An item of a `volumeSet`; `held` is `instance device state`."""
    on = ""
    if held:
        there, device, how = held.split()
        on = f"<item><instanceId>{there}</instanceId><device>{device}</device><status>{how}</status></item>"
    return (
        f"<item><volumeId>{made}</volumeId><size>{size}</size><status>{state}</status>"
        f"<availabilityZone>us-east-1a</availabilityZone><attachmentSet>{on}</attachmentSet>{tag_set(tags)}</item>"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
