"""Ranks in containers: the script that runs one with podman or docker, whichever its host has.

This module decides what the container gets. `container.sh` finds out on the host which runtime there is, and
pulls the image if necessary. A rank sees the host's network and shared memory (NCCL needs both), its own
folder at the same path, and its volumes. It runs as the container's root, and in the rank's blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import field
from functools import cache
from pathlib import Path

from declarative.model.record import struct

RUNTIMES = ("podman", "docker")
"""The runtimes, in the order in which they are tried."""
LACKING = {
    "no-runtime": "its host has neither podman nor docker that its user can use",
    "gpus": "its host does not have all GPUs now that are recorded of it; the log names the missing one",
    "no-gpus": "its host has no GPUs to give to a container",
    "no-limits": "its host's containers cannot be limited as `isolation: hard` asks",
    "no-image": "its image could not be pulled; the log says why",
    "no-start": "its container did not come up; the log says why",
    "memory": "out of memory",
}
"""The runner's reasons for an end that only containers have."""

_HERE = Path(__file__).resolve().parent
# The first process only waits: TERM goes to all others, and it reaps orphans. The script comes by stdin, for
# other users of the host can read arguments.
_FIRST = """\
trap : HUP INT TERM
if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi
$shell -c 'FLEETFORM_SCRIPT=$(cat); exec </dev/null; eval "unset FLEETFORM_SCRIPT
$FLEETFORM_SCRIPT"' "$0" "$@"
exit $?"""
_RUN_OWN = 'eval "run \\"\\$@\\" \\"\\$found\\" -c \\"\\$first\\" fleetform $own"'
OWN = '"$@"'
"""The image's own command, as a command for the shell in the container."""


@struct(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host, and where the container has it."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    """Whether the rank runs without it where the host has none."""


@struct(frozen=True, slots=True, kw_only=True)
class Container:
    """A rank's container. `cpus` are the host's, `gpus` see `gpus.sh`; no CPUs means all, no GPUs none."""

    image: str
    name: str
    mounts: tuple[Mount, ...] = ()
    binds: tuple[Mount, ...] = ()
    """Paths that the host may lack; if it lacks one that is not optional, no command runs."""
    peers: str | None = None
    """The host's folder by which it reaches its siblings, if it exists when the container starts."""
    cpus: tuple[int, ...] = ()
    memory_mib: int | None = None
    gpus: tuple[str, ...] = ()
    privileged: bool = False
    own: bool = False
    """Whether it runs the image's own program, with the image's own arguments."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for the registry of the image."""
    hard: bool = False
    """Whether it must not run on a host that cannot limit CPUs and memory."""


def name_of(node: str, attempt: str) -> str:
    """The container's name, which no other container of this host has or can get."""
    return f"fleetform-{hashlib.sha256(node.encode()).hexdigest()[:8]}-{attempt}"


def qualified(image: str) -> str:
    """The name with its registry, by default Docker Hub, as docker completes it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _variables(container: Container, volumes: Sequence[str]) -> dict[str, str]:
    """The input of `container.sh`."""
    needed = {"cpuset": container.cpus, "memory": container.memory_mib}
    return {
        "image": container.image,
        "pulled": qualified(container.image),
        "name": container.name,
        "cpus": ",".join(map(str, container.cpus)),
        "memory": str(container.memory_mib or ""),
        "gpus": " ".join(container.gpus),
        "needed": " ".join(name for name, limit in needed.items() if limit and container.hard),
        "mounted": mounted(volumes),
        "outside": text("outside.sh"),
    }


def script(container: Container, begin: Sequence[str], volumes: Sequence[str], inside: str) -> str:
    """The shell script that the runner launches.

    Args:
        container: What the rank runs in.
        begin: Commands for the host, before there is a container.
        volumes: The paths of volumes, which it reports as mounted.
        inside: The shell script for the container: environment and commands.

    Raises:
        ValueError: A path that cannot be mounted.
    """
    folder = container.peers
    peers = mount_flags(Mount(source=folder, target=folder, read_only=True)) if folder else ()
    variables = _variables(container, volumes)
    lines = [
        *(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
        f"sent() {{ exports; printf %s {shlex.quote(inside)}; }}",
        *_login(container),
        text("gpus.sh"),
        text("gate.sh"),
        text("container.sh"),
        f"devices {shlex.join(container.gpus)}",
        *(f"{command} || exit" for command in begin),
        "choose",
        "fetch",
        f"set -- {shlex.join(flags(container))}",
        *(_bind(bind) for bind in container.binds),
        *_optional(f"[ -e {shlex.quote(folder or '')} ]", peers),
        *_optional("limited cpuset", cpu_flags(container)),
        *_optional("limited memory", memory_flags(container)),
        # Pinned memory of GPUs and network cards; an ordinary user may not raise it.
        """case $runtime-$(id -u) in docker-* | podman-0) set -- "$@" --ulimit memlock=-1:-1 ;; esac""",
        *([GPU_FLAGS] if container.gpus else []),
        f"first={shlex.quote(_FIRST)}",
        *(("made_for", _RUN_OWN) if container.own else ('run "$@" "$found" -c "$first"',)),
    ]
    return "\n".join(lines) + "\n"


def flags(container: Container) -> tuple[str, ...]:
    """The arguments of `create` that every runtime gets."""
    # Some images ask for all GPUs by this variable, and some hosts give them.
    none = () if container.gpus else ("--env", "NVIDIA_VISIBLE_DEVICES=void")
    return (
        *("--name", container.name, "--interactive", "--log-driver", "none", *none),
        *("--network", "host", "--ipc", "host", "--pids-limit", "-1"),
        # The container gets folders of the host, which SELinux would refuse.
        *("--security-opt", "label=disable", "--user", "0:0", "--entrypoint", "sh"),
        *(("--privileged",) if container.privileged else ()),
        *(flag for mount in container.mounts for flag in mount_flags(mount)),
    )


def _login(container: Container) -> list[str]:
    """A function that prints the file by which both runtimes log in to the image's registry."""
    if container.login is None:
        return []
    registry = qualified(container.image).partition("/")[0]
    credentials = base64.b64encode(":".join(container.login).encode()).decode()
    names = (registry, "https://index.docker.io/v1/") if registry == "docker.io" else (registry,)
    text = json.dumps({"auths": {name: {"auth": credentials} for name in names}})
    return [f"login=1\nlogin() {{ printf %s {shlex.quote(text)}; }}"]


def mount_flags(mount: Mount) -> tuple[str, str]:
    """One mount. Neither form takes all paths: one has commas between its parts, the other colons."""
    paths = mount.source + mount.target
    if not set(',"\n') & set(paths):
        end = ",readonly" if mount.read_only else ""
        return "--mount", f"type=bind,source={mount.source},target={mount.target}{end}"
    if set(":\n") & set(paths):
        raise ValueError(f"no container can have this mounted: {mount.source!r} at {mount.target!r}")
    return "--volume", f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


def cpu_flags(container: Container) -> tuple[str, ...]:
    """The CPUs of the rank's blocks."""
    return ("--cpuset-cpus", ",".join(map(str, container.cpus))) if container.cpus else ()


def memory_flags(container: Container) -> tuple[str, ...]:
    """The memory of the rank's blocks, in MiB."""
    return ("--memory", f"{container.memory_mib}m") if container.memory_mib else ()


GPU_FLAGS = """\
case $runtime-$vendor in
docker-nvidia) set -- "$@" --gpus "\\"device=$named\\"" ;;
podman-nvidia)
  for gpu in $(echo "$named" | tr , ' '); do set -- "$@" --device "nvidia.com/gpu=$gpu"; done
  set -- "$@" --env NVIDIA_VISIBLE_DEVICES=void
  ;;
*-amd) set -- "$@" --device /dev/kfd --device /dev/dri ;;
esac
if [ -d /dev/infiniband ]; then set -- "$@" --device /dev/infiniband; fi"""
"""Shell for the flags that give a runtime the GPUs that `devices` of `gpus.sh` has `named`. Either runtime
fails if it cannot do that.

Never podman's `--gpus`, which some versions accept and ignore; docker reads it as CSV, so it is quoted.
Beside podman, an old hook might give all. A container gets all of AMD's GPUs: only ROCm knows which device
has which number, and `ROCR_VISIBLE_DEVICES` says which are the rank's. Without the cards by which GPUs of
several nodes talk, NCCL would fall back to something slow.
"""


def recounted(count: int, *, privileged: bool = False) -> str:
    """Shell for the container, which counts its NVIDIA GPUs from 0. AMD's keep their numbers, MIG instances
    are known by UUID, and a privileged container that sees more than its own counts as its host.
    """
    own = ",".join(map(str, range(count)))
    more = f'[ "$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)" -gt {count} ] || ' if privileged else ""
    anew = f"[ -e /dev/kfd ] || {more}CUDA_VISIBLE_DEVICES={own}"
    return f"case $CUDA_VISIBLE_DEVICES in MIG*) ;; *) {anew} ;; esac"


def mounted(paths: Sequence[str]) -> str:
    """Paths as the runner writes them."""
    return ",".join(p.replace("%", "%25").replace(" ", "%20").replace(",", "%2C") for p in paths)


def _bind(bind: Mount) -> str:
    exists, target = f"[ -e {shlex.quote(bind.source)} ]", shlex.quote(mounted([bind.target]))
    bind_words = f'set -- "$@" {shlex.join(mount_flags(bind))} && mounted=${{mounted:+$mounted,}}{target}'
    if bind.optional:
        return f"if {exists}; then {bind_words}; fi"
    return (
        f"{exists} || lacking {shlex.quote(bind.source)} {shlex.quote(mounted([bind.source]))}\n{bind_words}"
    )


def _optional(test: str, more: Sequence[str]) -> list[str]:
    return [f'if {test}; then set -- "$@" {shlex.join(more)}; fi'] if more else []


@cache
def text(name: str) -> str:
    """A piece of shell that becomes a part of what is launched."""
    return (_HERE / name).read_text()
