"""Runs Slurm's commands: on this machine, or on a login node over SSH."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from declarative.model.record import struct
from declarative.provider import (
    Config,
    Fence,
    PermanentError,
    PermanentKind,
    ProviderError,
    Source,
    TransientError,
    TransientKind,
)
from providers.local.machine import inherited
from providers.ownership import key_of
from providers.runner import ANSWER_SECONDS, RunnerError, checked, joined, part
from providers.ssh.host import Host, Wrong, check_options, host_of, wrong_root
from providers.ssh.scripts import text
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost, Finished, LocalTransport

T = TypeVar("T")

_HERE = Path(__file__).resolve().parent
HERE = "this machine"
OWN = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
"""The variables of the caller's environment that Slurm's commands read if they run here."""
PATIENCE = 5
"""Seconds within which a job must start if there is room: Slurm's scheduler works in rounds."""
_AWAY = (
    "see `scontrol ping` on the login node; what runs goes on, and nothing was changed: run this again later"
)


class Login(Protocol):
    """A way to a login node. `once` remembers results as long as the way is the same."""

    host: Any
    fence: Fence

    def run(self, argv: Sequence[str], stdin: bytes | Source = b"", timeout: float | None = None) -> Finished:
        """See `Transport.run`."""

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The result of `make`, remembered under `key`."""


class Here:
    """This machine is a login node. Of the caller's environment, commands get only `inherited`."""

    host = HERE

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self._known: dict[str, object] = {}

    def run(self, argv: Sequence[str], stdin: bytes | Source = b"", timeout: float | None = None) -> Finished:
        self.fence()
        own = {name: os.environ[name] for name in OWN if name in os.environ}
        pairs = [f"{name}={value}" for name, value in {**inherited(os.environ), **own}.items()]
        content = stdin if isinstance(stdin, bytes) else _all(stdin)
        return LocalTransport().run(["env", "-i", *pairs, *argv], content, timeout)

    def once(self, key: str, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        return cast("T", self._known[key])


def _all(source: Source) -> bytes:
    return b"".join(iter(lambda: source.read(1 << 20), b""))


@cache
def script() -> str:
    """The program that runs on the login node."""
    return (_HERE.parent / "ssh" / "epoch.sh").read_text() + (_HERE / "cluster.sh").read_text()


@cache
def bundle() -> tuple[str, bytes, str]:
    """The program that runs on the nodes: its name, which includes its hash; its content; the hash."""
    content = (part("confine.sh") + (_HERE / "step.sh").read_text() + joined()).encode()
    digest = hashlib.sha256(content).hexdigest()
    return f"runner-{digest[:16]}.sh", content, digest


class Place:
    """The folder of one owner on the shared filesystem, and the scripts that work in it."""

    def __init__(self, login: Login, options: Mapping[str, Any], owner: str) -> None:
        self.login = login
        self._owner = owner
        self._given = options.get("root")
        self.start_seconds = int(options.get("start_seconds", PATIENCE))

    @property
    def root(self) -> str:
        """This user's shared folder, by default below the home folder, which clusters share."""
        return self.login.once(f"root {self._given}", self._find_root)

    def _find_root(self) -> str:
        if self._given:
            return "/" + str(self._given).strip("/")
        done = self.login.run(("sh", "-c", 'printf "FLEETFORM-HOME %s\n" "$HOME"'), b"", ANSWER_SECONDS)
        home = done.stdout.decode(errors="replace").partition("FLEETFORM-HOME ")[2].partition("\n")[0]
        if not home.startswith("/"):
            raise ConnectionLost(f"{self.login.host} did not say where the home is")
        return f"{home.rstrip('/')}/.fleetform/slurm"

    @property
    def folder(self) -> str:
        """The folder of this owner."""
        return f"{self.root}/{key_of(self._owner)}"

    def ask(
        self,
        verb: str,
        *arguments: str,
        stdin: bytes | Source = b"",
        seconds: float = ANSWER_SECONDS,
        begin: str = "",
    ) -> bytes:
        """The answer of `cluster.sh`. A complete answer starts with `begin`."""
        epoch = self.login.fence()
        env = () if epoch is None else (f"FLEETFORM_EPOCH={epoch}",)
        argv = ("env", *env, "sh", "-c", script(), "sh", verb, self.folder, *arguments)
        try:
            answer = checked(self.login.run(argv, stdin, seconds), f"a script on {self.login.host}")
        except RunnerError as error:
            if error.code == "slurm":
                raise fault(error.text, str(self.login.host)) from None
            raise
        if begin and begin.encode() not in answer:
            raise ConnectionLost(f"the answer of {self.login.host} is incomplete")
        return answer

    def bundle(self) -> str:
        """The path of the program that runs on the nodes. It is put there if missing."""
        name, content, digest = bundle()

        def put() -> str:
            there = f'[ "$(sha256sum <"$1")" = "{digest}  -" ] && echo FLEETFORM-HAVE || :'
            path = f"{self.root}/bin/{name}"
            if b"FLEETFORM-HAVE" not in self.login.run(("sh", "-c", there, "sh", path)).stdout:
                argv = ("sh", "-c", text("put.sh"), "sh", self.root, name, str(len(content)), digest)
                if b"FLEETFORM-PUT" not in checked(self.login.run(argv, content, ANSWER_SECONDS), "put.sh"):
                    raise ConnectionLost(f"{self.login.host} did not say whether it has the runner")
            return path

        return self.login.once(f"bundle {self.root} {name}", put)


def place_of(config: Config) -> Place:
    """The place of a backend; a fault names the wrong option."""
    options = config.options
    check_options(options, "slurm", _OPTIONS)
    login = options.get("login")
    if login is None:
        return Place(Here(config.fence), options, config.lineage)
    fields = {"hostname": login} if isinstance(login, str) else login
    host: Host = host_of(fields, config.project_dir, Host(hostname=""))
    return Place(SshTransport(host, config.fence), options, config.lineage)


def _wrong_login(value: object) -> str | None:
    return None if isinstance(value, str | Mapping) and value else "is not a host or a mapping"


def _wrong_seconds(value: object) -> str | None:
    fits = type(value) is int and 1 <= value <= ANSWER_SECONDS // 2
    return None if fits else "is not a whole number of seconds from 1 to 30"


_OPTIONS: Mapping[str, Wrong] = {
    "root": wrong_root,
    "login": _wrong_login,
    "start_seconds": _wrong_seconds,
}
"""The allowed options. None names programs or configuration: a project may be a stranger's."""


# ------------------------------------------------------------------------------ what Slurm's errors mean


@struct(frozen=True, slots=True)
class _Meaning:
    """The meaning of a text of Slurm's that matches. `{host}` and `{text}` are filled in."""

    pattern: str
    """In lower case."""
    kind: PermanentKind | TransientKind
    about: str | None
    hint: str
    summary: str = "Slurm refused: {text}"

    def fault(self, text: str, host: str) -> ProviderError:
        summary = self.summary.format(host=host, text=text)
        if isinstance(self.kind, TransientKind):
            return TransientError(self.kind, summary, about=self.about, hint=self.hint)
        return PermanentError(self.kind, summary, about=self.about, hint=self.hint)


_MEANINGS = (
    _Meaning(
        "munge|invalid authentication credential|protocol authentication error|authentication plugin",
        TransientKind.BUSY,
        None,
        "munge is not running there, or its key or clock differs from the controller's",
        "Slurm on {host} cannot authenticate us: {text}",
    ),
    _Meaning(  # its only message about a credential that it cannot decode
        "zero bytes were transmitted",
        TransientKind.BUSY,
        None,
        "its log says whether munge's key or clock differs; if it only restarts, run this again later",
        "Slurm's controller closed the connection of {host}: {text}",
    ),
    _Meaning(
        "unable to contact slurm controller|connection refused|connect failure|socket timed out"
        "|connection timed out|slurm backup controller in standby mode|slurm controller not responding"
        "|resource temporarily unavailable|error receiving|slurmctld is busy",
        TransientKind.BUSY,
        None,
        _AWAY,
        "Slurm's controller does not answer {host}: {text}",
    ),
    _Meaning(
        "(scontrol|sbatch|squeue).*not found|not found.*(scontrol|sbatch|squeue)",
        PermanentKind.INVALID,
        "options.login",
        "name a login node in `options.login`; there, the commands must be in the `PATH` of a login",
        "{host} has no commands of Slurm: {text}",
    ),
    _Meaning(
        "configuration source|slurm\\.conf",
        PermanentKind.INVALID,
        "options.login",
        "set `SLURM_CONF`, or name a login node in `options.login`",
        "Slurm on {host} has no configuration: {text}",
    ),
    _Meaning("invalid partition", PermanentKind.INVALID, "partition", "`sinfo -s` lists the partitions"),
    _Meaning(
        "invalid account or account/partition",
        PermanentKind.AUTH,
        "account",
        "`sacctmgr show associations user=$USER` lists the accounts that you may use with a partition",
    ),
    _Meaning("invalid account", PermanentKind.AUTH, "account", "write an `account` of yours in the fleet"),
    _Meaning("invalid qos", PermanentKind.INVALID, "qos", "`sacctmgr show qos` lists them"),
    _Meaning(
        "requested reservation is invalid",
        PermanentKind.INVALID,
        "reservation",
        "`scontrol show reservation`",
    ),
    _Meaning(
        "access denied to requested reservation", PermanentKind.AUTH, "reservation", "ask for access to it"
    ),
    _Meaning("invalid feature", PermanentKind.INVALID, "constraint", "`sinfo -o '%N %f'` lists the features"),
    _Meaning(
        "requested time limit is invalid",
        PermanentKind.INVALID,
        "max_duration",
        "give the task a `max_duration` within the partition's MaxTime",
    ),
    _Meaning("qosmax", PermanentKind.QUOTA, "qos", "ask for less, or for another `qos`"),
    _Meaning(
        "association limit", PermanentKind.QUOTA, "account", "ask for less, or wait until jobs of yours end"
    ),
    _Meaning(
        "violates accounting", PermanentKind.QUOTA, "qos", "ask for less: `sacctmgr show qos` has the limits"
    ),
    _Meaning(
        "node count specification invalid",
        PermanentKind.QUOTA,
        "partition",
        "the partition allows fewer nodes",
    ),
    _Meaning(
        "user's group not permitted",
        PermanentKind.AUTH,
        "partition",
        "ask for access to the partition, or name another one",
    ),
    _Meaning(
        "not available in this partition",
        PermanentKind.NO_CAPACITY,
        "partition",
        "run this again: it begins with the cluster as it is now",
    ),
    _Meaning(
        "requested node configuration is not available",
        PermanentKind.NO_CAPACITY,
        "partition",
        "a node may have been drained since the plan was made: run this again",
    ),
    _Meaning("invalid generic resource", PermanentKind.INVALID, "resources", "`sinfo -o '%N %G'` lists them"),
    _Meaning(
        "access/permission denied",
        PermanentKind.AUTH,
        "partition",
        "the cluster does not let this user do that",
    ),
)
"""The first match counts."""


def fault(output: str, host: str) -> ProviderError:
    """The port's fault for the output of a failed Slurm command."""
    low, text = output.lower(), output.strip() or "it said nothing"
    for meaning in _MEANINGS:
        if re.search(meaning.pattern, low, re.DOTALL):
            return meaning.fault(text, host)
    return PermanentError(PermanentKind.INVALID, f"Slurm refused: {text}")
