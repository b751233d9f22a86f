"""`fleetform conformance`."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from declarative import __version__
from declarative.cli.options import examples, project_command
from declarative.cli.output import check_writable, emit_text, say_line, write_whole
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed

if TYPE_CHECKING:
    from declarative.apply.conformance import Check, Trial
    from declarative.model.resource import Desired
    from declarative.provider import Provider

FORMAT = 1
"""The version of the report."""
NAMESPACE = b"fleetform-conformance"
"""The purpose of its signature: `ssh-keygen -Y verify -n fleetform-conformance`."""
FOLDER = Path(".fleetform") / "conformance"
"""Where keys of the trial's nodes are, and the name of an owner whose things are not deleted yet."""
FOR_LOGIN = ("identity_file", "known_hosts", "ssh_config")
"""Options that this command does not need: it logs in nowhere."""
SIZE, LARGER = "20GB", "30GB"
"""The sizes of a volume."""
UNDISTURBED = 7
"""Nodes that are made besides the disturbed lives."""


@click.command(
    "conformance",
    epilog=examples(
        "fleetform conformance lab --lives 50",
        "fleetform conformance aws --spend 5 --report aws.json --sign ~/.ssh/id_ed25519",
    ),
)
@click.argument("backend", metavar="BACKEND")
@click.option(
    "--lives",
    metavar="N",
    type=click.IntRange(0, 10_000),
    default=20,
    show_default=True,
    help="Nodes, and volumes, that are made and ended while requests are lost and commands die.",
)
@click.option(
    "--spend",
    metavar="USD",
    type=click.FloatRange(min=0, min_open=True),
    help="What it may cost. Needed unless the `endpoint` is on this machine.",
)
@click.option("--only", type=click.Choice(["nodes", "volumes"]), help="Try only these.")
@click.option("--instance-type", metavar="NAME", help="The nodes' type; default: the cheapest on demand.")
@click.option("--seed", metavar="N", type=int, default=0, help="Draws other disturbances.")
@click.option("--report", metavar="FILE", help="Write what was found, as JSON.")
@click.option("--sign", metavar="KEY", help="Sign the report with a private Ed25519 key, in FILE.sig.")
@project_command
def conformance_command(session: ProjectSession, backend: str, **asked: Any) -> int:
    """Try a cloud's driver: make and end nodes and volumes while requests are lost and commands are killed.

    BACKEND is one that the project declares, with its image, regions and credentials. The things belong to an
    owner of their own: nothing of the project is touched, and no state is read. All that is made is deleted,
    also by the next run after one that was killed. An hour of each node is counted as its cost; what volumes
    cost is not known.

    Exits 0 if all laws hold, and 1 if one is broken.
    """
    from declarative.apply.conformance import LawOutcome, checks
    from declarative.cli.plan_files import sign, signer_of

    report, key = asked["report"], asked["sign"]
    if key and not report:
        raise failed("usage", "`--sign` is about a report", "write it: `--report FILE`")
    if report:
        check_writable(report, "report", re.compile(rb'\s*\{\s*"format_version"'))
    signer = signer_of(key) if key else None
    desired = session.load().desired
    name = _backend(desired, backend)
    trial, place = _trial(session, desired, name, asked)
    config = trial.config
    say_line(f"{name} ({config.driver}), {place}: owner {config.lineage}, {trial.lives} lives each")
    started, done = time.time(), []
    try:
        for check in checks(trial):
            done.append(check)
            emit_text(_line(check) + "\n")
    except KeyboardInterrupt:
        say_line("interrupted: run it once more, which begins by deleting what is there")
        raise
    if done[-1].outcome is LawOutcome.PASSED:
        _owner_file(config.project_dir).unlink(missing_ok=True)
    broken = [check for check in done if check.outcome is LawOutcome.FAILED]
    held = len(done) - len(broken)
    emit_text(f"\n{held} laws hold, {len(broken)} broken.\n" if broken else f"\nAll {held} laws hold.\n")
    if report:
        content = _report(trial, place, done, started)
        write_whole(Path(report), content, 0o666)
        if signer:
            write_whole(Path(f"{report}.sig"), sign(content, signer, NAMESPACE), 0o666)
    return 1 if broken else 0


def _backend(desired: Desired, name: str) -> str:
    """The declared backend of that name, or the only one with a driver of that name."""
    from declarative.model.resource import EXISTING, LOCAL
    from declarative.model.text import suggest

    clouds = {n: b.provider for n, b in desired.backends.items() if b.provider not in (*EXISTING, LOCAL)}
    of_driver = [n for n, driver in clouds.items() if driver == name]
    if name in clouds or len(of_driver) == 1:
        return name if name in clouds else of_driver[0]
    hint = suggest(name, clouds) or (
        f"there are {', '.join(sorted(clouds))}" if clouds else "declare it: `type: backend`, with its driver"
    )
    raise failed("unknown-address", f"the project has no backend `{name}` of a cloud", hint)


def _trial(session: ProjectSession, desired: Desired, name: str, asked: dict[str, Any]) -> tuple[Trial, str]:
    """What is tried, and whether that is a real cloud."""
    from declarative.apply.conformance import BrokenLawError, Processes, Trial
    from declarative.model.inputs import NodeInputs, VolumeInputs, data_of
    from declarative.model.state import State
    from declarative.planner.offers import cheapest_first
    from declarative.provider import PermanentError

    try:
        base = session.backends(desired, State()).config(name, {})
    except PermanentError as error:
        raise failed("backend-refuses", f"backend {name}: {error.summary}", error.hint) from None
    is_here = urlsplit(base.endpoint or "").hostname in ("localhost", "127.0.0.1", "::1")
    if asked["spend"] is None and not is_here:
        summary = f"backend {name} is a real cloud, and what this makes costs money"
        raise failed("usage", summary, "say how much it may cost: `--spend 5`")
    folder = session.directory.resolve() / FOLDER / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {key: value for key, value in base.options.items() if key not in FOR_LOGIN}
    config = replace(base, project_dir=folder, lineage=_owner(folder), options=own)

    def choose(provider: Provider) -> dict[str, Any] | None:
        given = asked["instance_type"]
        fitting = [o for o in provider.offers() if not o.spot and given in (None, o.instance_type)]
        offer = min(fitting, key=cheapest_first, default=None)
        return (
            None
            if offer is None
            else data_of(
                NodeInputs(
                    fleet="trial",
                    blocks=1,
                    backend=name,
                    region=offer.region,
                    zone=offer.zone,
                    instance_type=offer.instance_type,
                    price=offer.price,
                    resources=offer.shape,
                )
            )
        )

    try:
        node = Processes(config).run(choose)  # in a process of its own: some clients do not survive a fork
    except BrokenLawError as error:
        raise failed("backend-refuses", f"backend {name} cannot be tried: {error}") from None
    if node is None:
        summary = f"backend {name} offers no {asked['instance_type'] or 'node on demand'}"
        raise failed("no-offer", summary, f"`fleetform offers --backend {name}` lists what it has")
    volume = VolumeInputs(backend=name, region=node["region"], zone=node.get("zone"), size=SIZE)
    only = asked["only"]
    trial = Trial(
        config=config,
        node=None if only == "volumes" else node,
        volume=None if only == "nodes" else data_of(volume),
        larger=LARGER,
        lives=asked["lives"],
        seed=asked["seed"],
        first=int(time.time()),
    )
    if not is_here and trial.node:
        trial = replace(trial, lives=min(trial.lives, _affordable(trial.node, asked["spend"])))
    return trial, "a stand-in on this machine" if is_here else "the real cloud"


def _affordable(node: Mapping[str, Any], spend: float) -> int:
    """How many disturbed lives so many USD pay for; `InvalidError` if not even the others."""
    price, kind = node.get("price"), node["instance_type"]
    if price is None:
        hint = "name another: `--instance-type`; or try `--only volumes`"
        raise failed("usage", f"the price of {kind} is not known", hint)
    lives = int(spend / price) - UNDISTURBED if price else 10_000
    if lives < 0:
        summary = f"{UNDISTURBED} nodes of {kind} may cost {UNDISTURBED * price:.2f} USD"
        raise failed("usage", summary, "allow that, or name a cheaper type: `--instance-type`")
    return lives


def _owner_file(folder: Path) -> Path:
    return folder / "owner"


def _owner(folder: Path) -> str:
    """The owner of the trial: that of the last one, if it did not delete all that it made."""
    file = _owner_file(folder)
    if not file.exists():
        write_whole(file, secrets.token_hex(16).encode(), 0o600)
    return file.read_text()


def _line(check: Check) -> str:
    return f"  {check.outcome.value:7}  {check.name}: {check.detail} ({check.seconds:.0f} s)"


def _report(trial: Trial, place: str, done: Sequence[Check], started: float) -> bytes:
    """The report: what was tried, with what, when, and what was found. It holds no secrets."""
    config, price = trial.config, trial.node and trial.node.get("price")
    data = {
        "format_version": FORMAT,
        "fleetform_version": __version__,
        "driver": config.driver,
        "place": place,
        "endpoint": urlsplit(config.endpoint or "").hostname,
        "regions": sorted(config.regions),
        "instance_type": trial.node and trial.node.get("instance_type"),
        "lives": trial.lives,
        "seed": trial.seed,
        "started_at": int(started),
        "ended_at": int(time.time()),
        "cost_at_most": price and round(price * (UNDISTURBED + trial.lives), 2),
        "passed": all(check.outcome.value != "failed" for check in done),
        "checks": [
            {"name": c.name, "outcome": c.outcome.value, "detail": c.detail, "seconds": round(c.seconds, 1)}
            for c in done
        ],
    }
    return json.dumps(data, indent=2, ensure_ascii=False).encode() + b"\n"
