"""What a node is told for its first start, as cloud-init reads it: who may log in, and its host key.

The host key is handed over, and not read back. To trust the first key that is offered is to trust whoever is
in between at that moment; what a node prints on its console comes minutes late, not from all images, and has
to be kept by somebody. A key that goes with the node's create is known before the node is there. Its price:
what runs on the node can read it (as whoever becomes root on a host can), and so can who may read the user
data of the account. With it, they can pose as this one node, and as no other.
"""

from __future__ import annotations

import json

from providers.ssh.pair import HostKey

USER = "fleetform"
"""Made on the node where no other user is named: what an image calls its own differs."""
MOST = 16 * 1024
"""Bytes that EC2 takes."""


def user_data(user: str, login: str, key: HostKey) -> str:
    """The same bytes for the same values: JSON is YAML. `login` is the public key that is let in."""
    own = {"name": user, "lock_passwd": True, "shell": "/bin/sh", "ssh_authorized_keys": [login]}
    told: dict[str, object] = {
        "ssh_deletekeys": True,  # those of the image are everybody's
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "users": ["default", own],
    }
    if user == "root":
        told["disable_root"] = False
    return "#cloud-config\n" + json.dumps(told, sort_keys=True) + "\n"
