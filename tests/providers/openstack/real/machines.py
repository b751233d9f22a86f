"""Machines behind the servers of an OpenStack, so that ranks can run on them, as tests/providers/ssh has for
EC2.

Nova's hypervisor only pretends, but it reports a server's address and keeps its user data; cinder reports its
volumes. So a machine starts at that address, with its disks.
"""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any, Self

from tests.providers.openstack.real.cloud import Admin
from tests.providers.ssh import disks
from tests.providers.ssh.test_instances import Cloud


class VirtioDisks(disks.Disks):
    """Disks that tell the beginning of their volume's id, as KVM's do."""

    def link(self, volume: str) -> str:
        return f"virtio-{volume[:20]}"


class Stack(Cloud):
    """The OpenStack of up.sh, with as many machines as `count` on a network of their own."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self.disks = VirtioDisks(folder, self.machines.name)
        self.admin = Admin()
        self.network = f"machines-{self.machines.name}"
        self._copier = threading.Thread(target=self._copy, daemon=True)

    def __enter__(self) -> Self:
        prefix, ask = self.machines.prefix, self.admin.ask
        network = ask(
            "network", "POST", "/v2.0/networks", {"network": {"name": self.network, "shared": True}}
        )
        self._made = network["network"]["id"]
        subnet = {
            "network_id": self._made,
            "ip_version": 4,
            "cidr": f"{prefix}.0/24",
            "gateway_ip": f"{prefix}.1",
            "enable_dhcp": False,
            "allocation_pools": [{"start": f"{prefix}.2", "end": f"{prefix}.{len(self.machines) + 1}"}],
        }
        ask("network", "POST", "/v2.0/subnets", {"subnet": subnet})
        self._thread.start()
        self._copier.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._copier.join()
        self._thread.join()
        self.machines.down()
        self.admin.ask("network", "DELETE", f"/v2.0/networks/{self._made}")

    def _copy(self) -> None:
        """Write down what there is, as the server of EC2 does."""
        running: set[str] = set()
        try:
            while not self._ended.wait(0.5):
                running = self._write(running)
        except BaseException as error:
            self.faults.append(error)
            raise

    def _write(self, running: set[str]) -> set[str]:
        now: set[str] = set()
        for server in self.admin.servers():
            found = server["addresses"].get(self.network)
            if not found or server["status"] != "ACTIVE" or server["OS-EXT-STS:task_state"] == "deleting":
                continue
            name = f"i-{server['id']}"
            now.add(name)
            text = base64.b64decode(server["OS-EXT-SRV-ATTR:user_data"]).decode()
            self._put(f"{name}.json", {"address": found[0]["addr"], "user_data": text})
        held = {
            volume["id"]: {"instance": f"i-{on['server_id']}", "device": on["device"], "size": volume["size"]}
            for volume in self.admin.volumes()
            for on in volume["attachments"]
            if volume["status"] in ("in-use", "extending")
        }
        self._put("disks", held)
        for name in running - now:
            (self.folder / f"{name}.gone").touch()
        return now

    def _put(self, name: str, content: Any) -> None:
        """Whole, or not yet."""
        partial = self.folder / f".{name}.partial"
        partial.write_text(json.dumps(content))
        partial.rename(self.folder / name)
