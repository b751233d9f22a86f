"""Ranks in containers: the script that runs one with podman or docker, whichever its host has.

What the container gets is decided here; which runtime there is, and whether the image has to be pulled, only
shows on the host (`container.sh`). Of the host a rank sees its network, its shared memory (NCCL needs both),
its own folder at the same path, and its volumes. It runs as the container's root, and in the rank's blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

RUNTIMES = ("podman", "docker")
"""In the order in which they are tried."""
LACKING = {
    "no-runtime": "its host has neither podman nor docker that its user can use",
    "no-gpus": "its host has no GPUs to give to a container",
    "no-limits": "its host's containers cannot be limited as `isolation: hard` asks",
    "no-image": "its image could not be pulled; the log says why",
    "no-start": "its container did not come up; the log says why",
    "memory": "out of memory",
}
"""What the runner's reasons mean, besides those that it has itself."""

_HERE = Path(__file__).resolve().parent
# The first process only waits: TERM goes to all others, and those whom nobody waits for are buried. Arguments
# can be read from outside, what comes by stdin cannot.
_FIRST = """\
trap : HUP INT TERM
if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi
$shell -c 'FLEETFORM_SCRIPT=$(cat); exec </dev/null; eval "unset FLEETFORM_SCRIPT
$FLEETFORM_SCRIPT"' "$0" "$@"
exit $?"""
OWN = '"$@"'
"""The command, for the shell in the container, that is the image's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host, and where the container has it."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    """Of `Container.binds`: whether the rank runs without it where the host has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a rank runs in. `cpus` and `gpus` are numbers of the host's; no CPUs means all, no GPUs none."""

    image: str
    name: str
    mounts: tuple[Mount, ...] = ()
    binds: tuple[Mount, ...] = ()
    """What the host may or may not have; without one that is not optional, no command runs."""
    peers: str | None = None
    """The host's folder by which it reaches its siblings, if there is one by then."""
    cpus: tuple[int, ...] = ()
    memory_mib: int | None = None
    gpus: tuple[int, ...] = ()
    privileged: bool = False
    own: bool = False
    """Whether it runs what its image is made for, with the image's own arguments."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for the registry of the image."""
    hard: bool = False
    """Whether it must not run where CPUs and memory cannot be limited."""


def name_of(node: str, attempt: str) -> str:
    """The container's name: no other of this host has it, and a second one of that name cannot be made."""
    return f"fleetform-{hashlib.sha256(node.encode()).hexdigest()[:8]}-{attempt}"


def qualified(image: str) -> str:
    """The name with its registry, which is Docker Hub's where none is named, as docker has it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def script(container: Container, begin: Sequence[str], volumes: Sequence[str], inside: str) -> str:
    """What the runner launches.

    Args:
        container: What the rank runs in.
        begin: Commands for the host, before there is a container.
        volumes: The paths of volumes, which it will say to be mounted.
        inside: The shell script for the container: environment and commands.

    Raises:
        ValueError: A path that cannot be mounted.
    """
    known = {
        "image": container.image,
        "pulled": qualified(container.image),
        "name": container.name,
        "cpus": ",".join(map(str, container.cpus)),
        "memory": str(container.memory_mib or ""),
        "gpus": ",".join(map(str, container.gpus)),
        "needed": _needed(container),
        "mounted": mounted(volumes),
        "outside": text("outside.sh"),
    }
    lines = [
        *(f"{name}={shlex.quote(value)}" for name, value in known.items()),
        f"sent() {{ printf %s {shlex.quote(inside)}; }}",
        *_login(container),
        text("gate.sh"),
        text("container.sh"),
        *(f"{command} || exit" for command in begin),
        "choose",
        "fetch",
        f"set -- {shlex.join(flags(container))}",
        *(_bind(bind) for bind in container.binds),
        *_peers(container.peers),
        *_optional("limited cpuset", cpu_flags(container)),
        *_optional("limited memory", memory_flags(container)),
        # Pinned memory of GPUs and network cards; an ordinary user may not raise it.
        """case $runtime-$(id -u) in docker-* | podman-0) set -- "$@" --ulimit memlock=-1:-1 ;; esac""",
        *_gpu_cases(container.gpus),
        *_run(container),
    ]
    return "\n".join(lines) + "\n"


def flags(container: Container) -> tuple[str, ...]:
    """The arguments of `create` that every runtime gets."""
    # Some images ask for all GPUs by this, and some hosts heed it.
    none = () if container.gpus else ("--env", "NVIDIA_VISIBLE_DEVICES=void")
    return (
        *("--name", container.name, "--interactive", "--log-driver", "none", *none),
        *("--network", "host", "--ipc", "host", "--pids-limit", "-1"),
        # Folders of the host are mounted, which SELinux would keep from it.
        *("--security-opt", "label=disable", "--user", "0:0", "--entrypoint", "sh"),
        *(("--privileged",) if container.privileged else ()),
        *(flag for mount in container.mounts for flag in mount_flags(mount)),
    )


def _run(container: Container) -> list[str]:
    if not container.own:
        return [f'run "$@" "$found" -c {shlex.quote(_FIRST)}']
    return [
        f"first={shlex.quote(_FIRST)}",
        "made_for",
        'eval "run \\"\\$@\\" \\"\\$found\\" -c \\"\\$first\\" fleetform $own"',
    ]


def _login(container: Container) -> list[str]:
    """A function that prints the file by which both runtimes log in to the image's registry."""
    if container.login is None:
        return []
    registry = qualified(container.image).partition("/")[0]
    known = base64.b64encode(":".join(container.login).encode()).decode()
    names = (registry, "https://index.docker.io/v1/") if registry == "docker.io" else (registry,)
    text = json.dumps({"auths": {name: {"auth": known} for name in names}})
    return [f"login=1\nlogin() {{ printf %s {shlex.quote(text)}; }}"]


def mount_flags(mount: Mount) -> tuple[str, str]:
    """One mount. Neither form takes all paths: the one has commas between its parts, the other colons."""
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


def gpu_flags(runtime: str, vendor: str, gpus: Sequence[int]) -> tuple[str, ...]:
    """How a runtime is given GPUs, by the host's numbers. Either fails if it cannot do that.

    Never podman's `--gpus`, which some versions accept and ignore. AMD's are given as a whole: which of its
    devices has which number, ROCm alone decides; `CUDA_VISIBLE_DEVICES` says which are the rank's.
    """
    if not gpus:
        return ()
    if vendor == "amd":
        return ("--device", "/dev/kfd", "--device", "/dev/dri")
    if runtime == "docker":
        return ("--gpus", f'"device={",".join(map(str, gpus))}"')  # docker reads it as CSV: quoted
    given = tuple(flag for gpu in gpus for flag in ("--device", f"nvidia.com/gpu={gpu}"))
    return (*given, "--env", "NVIDIA_VISIBLE_DEVICES=void")  # else an old hook beside it might give all


def recounted(gpus: Sequence[int], *, privileged: bool = False) -> str:
    """Shell for the container: NVIDIA's GPUs are counted anew there, from 0; AMD's keep their numbers, and so
    do those of a privileged container that sees more than its own.
    """
    own = ",".join(map(str, range(len(gpus))))
    more = f'[ "$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)" -gt {len(gpus)} ] || ' if privileged else ""
    return f"[ -e /dev/kfd ] || {more}CUDA_VISIBLE_DEVICES={own}"


def mounted(paths: Sequence[str]) -> str:
    """Paths as the runner writes them."""
    return ",".join(p.replace("%", "%25").replace(" ", "%20").replace(",", "%2C") for p in paths)


def _needed(container: Container) -> str:
    if not container.hard:
        return ""
    return " ".join(
        word for word, limits in (("cpuset", container.cpus), ("memory", container.memory_mib)) if limits
    )


def _bind(bind: Mount) -> str:
    there, told = f"[ -e {shlex.quote(bind.source)} ]", shlex.quote(mounted([bind.target]))
    given = f'set -- "$@" {shlex.join(mount_flags(bind))} && mounted=${{mounted:+$mounted,}}{told}'
    if bind.optional:
        return f"if {there}; then {given}; fi"
    return f"{there} || lacking {shlex.quote(bind.source)} {shlex.quote(mounted([bind.source]))}\n{given}"


def _peers(folder: str | None) -> list[str]:
    if folder is None:
        return []
    flags = mount_flags(Mount(source=folder, target=folder, read_only=True))
    return _optional(f"[ -e {shlex.quote(folder)} ]", flags)


def _optional(test: str, more: Sequence[str]) -> list[str]:
    return [f'if {test}; then set -- "$@" {shlex.join(more)}; fi'] if more else []


def _gpu_cases(gpus: Sequence[int]) -> list[str]:
    if not gpus:
        return []
    cases = [
        f'{runtime}-{vendor}) set -- "$@" {shlex.join(gpu_flags(runtime, vendor, gpus))} ;;'
        for runtime in RUNTIMES
        for vendor in ("nvidia", "amd")
    ]
    # The cards by which GPUs of several nodes talk; without them NCCL would fall back to something slow.
    fast = 'if [ -d /dev/infiniband ]; then set -- "$@" --device /dev/infiniband; fi'
    return ["case $runtime-$vendor in", *cases, "esac", fast]


@cache
def text(name: str) -> str:
    """A piece of shell that becomes a part of what is launched."""
    return (_HERE / name).read_text()
