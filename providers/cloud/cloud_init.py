"""What a node gets for its first start, as cloud-init reads it: who may log in, and its host key.

The host key is handed over, and not read back. To trust the first key that is offered is to trust whoever is
in between at that moment; what a node prints on its console comes minutes late, not from all images, and has
to be kept by somebody. A key that goes with the node's create is known before the node is there. Its price:
what runs on the node can read it (as whoever becomes root on a host can), and so can who may read the user
data of the account. With it, they can pose as this one node, and as no other.

To mount a volume takes root, which who logs in need not be: ranks run as that user. So the node is given one
program that mounts volumes, and the user may have sudo run that, and nothing else.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from providers.ssh.key_pairs import HostKey

USER = "fleetform"
"""Made on the node where no other user is named: what an image calls its own differs."""
UID = 47600
"""Its number, on every node: a volume's files are its own on whatever image they were written."""
MOST = 16 * 1024
"""Bytes that EC2 takes."""
PROGRAM = "/usr/local/sbin/fleetform-disk"
"""What mounts volumes, where the user is not root."""


@cache
def program() -> str:
    """Its text, without the comments."""
    text = (Path(__file__).parent / "disk.sh").read_text(encoding="utf-8")
    return re.sub(r"^ *#(?!!).*\n", "", text, flags=re.MULTILINE)


def user_data(user: str, login: str, key: HostKey) -> str:
    """The same bytes for the same values: JSON is YAML. `login` is the public key that may log in."""
    own: dict[str, object] = {
        "name": user,
        "lock_passwd": True,
        "shell": "/bin/sh",
        "ssh_authorized_keys": [login],
    }
    told: dict[str, object] = {
        "ssh_deletekeys": True,  # those of the image are everybody's
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "users": ["default", own],
    }
    if user == "root":
        told["disable_root"] = False
    else:
        own["sudo"] = f"ALL=(root) NOPASSWD: {PROGRAM}"
        told["write_files"] = [
            {"path": PROGRAM, "owner": "root:root", "permissions": "0755", "content": program()}
        ]
    if user == USER:
        own["uid"] = UID
    return "#cloud-config\n" + json.dumps(told, sort_keys=True) + "\n"
