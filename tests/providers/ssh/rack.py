"""A project with the test hosts as its fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from providers.ssh.transport import background
from tests.providers.ssh.machines import Machines
from tests.support.cli import Project

OPTIONS = {"ssh_config": "/dev/null", "connect_timeout": 2}
SSH = {"type": "backend", "name": "ssh", "options": OPTIONS}
"""Nothing of the tester's own settings counts, and a silent host is not waited for long."""
SHAPE = {"cpu": 2, "memory": "512MB"}


class Rack(Project):
    """A project with the hosts as a fleet."""

    def __init__(self, path: Path, machines: Machines) -> None:
        super().__init__(path)
        self.machines = machines
        self.keys(machines.known_hosts)

    def keys(self, text: str) -> None:
        """The hosts' keys that the project knows."""
        self.write("known_hosts", text)

    def host(self, index: int, **more: Any) -> dict[str, Any]:
        """A host, with what is declared of it."""
        return {"hostname": self.machines[index].address, "resources": SHAPE, **more}

    def rack(self, *hosts: Any, **more: Any) -> dict[str, Any]:
        """The fleet; all three hosts if none are named."""
        config = {
            "user": "root",
            "identity_file": self.machines.login,
            "known_hosts": "known_hosts",
            "hosts": list(hosts) or [self.host(i) for i in range(3)],
        }
        return {
            "type": "fleet",
            "name": "rack",
            "placement": "cluster",
            "blocks": 2,
            "ssh_config": config,
            **more,
        }

    def bring(self, *documents: Any, args: tuple[str, ...] = (), code: int = 0) -> Any:
        """Declare and apply."""
        self.declare(SSH, *documents)
        return self.apply(*args, code=code)

    def add(self, *documents: Any) -> None:
        """Declare more, beside what was brought; in place of what was added before."""
        self.declare(*documents, file="more.yaml")

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Node → host and state."""
        return {n["name"]: (n["instance_type"], n["state"]) for n in self.status()["nodes"]}


CLEAR = """
umount /var/lib/fleetform/node 2>/dev/null || true
for p in $(grep -lsz ^FLEETFORM_RUN /proc/[0-9]*/environ | cut -d/ -f3); do kill -9 $p || true; done
left='/var/lib/fleetform /var/tmp/fleetform-* /etc/tmpfiles.d/fleetform* /var/tmp/ran /var/tmp/fill*'
left="$left /tmp/* /root/.bashrc /usr/local/bin/*"
tries=0
until rm -rf $left 2>/dev/null; do tries=$((tries + 1)); [ $tries -lt 200 ] || exit 1; sleep 0.05; done
"""


def wipe(machines: Machines) -> None:
    """End what tests started on hosts, and take away what they left there: the next one finds them as new."""
    for m in machines:
        m.plug()  # where a test failed while it was cut off
        m.sh(CLEAR)
    background.close()  # what this process knew of them is not so any more
