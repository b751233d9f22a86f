"""`fleetform status` and `serve`, and what `--listen` means wherever it is an option."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from declarative.cli.options import all_of, declared, examples, json_option, project_command
from declarative.cli.output import emit, emit_text, out_style, say, stopping
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from declarative.model.state import State
    from declarative.model.status import Readiness
    from declarative.reconcile.loop import Round
    from declarative.render.status_view import StatusView
    from declarative.serve.latest_state import Recorded


@click.command("status", epilog=examples("fleetform status --json", "fleetform status --refresh"))
@json_option
@click.option("--offline", is_flag=True, help="Contact nothing: show what was last observed.")
@click.option(
    "--refresh", is_flag=True, help="Look at all hosts, also at those that are not nodes yet, and say when."
)
@project_command
def status_command(session: ProjectSession, as_json: bool, offline: bool, refresh: bool) -> int:
    """Show the fleets with their block map, the volumes and the tasks. Reads the backends, keeps nothing.

    With --refresh it also looks at declared hosts that are not nodes yet, as `plan` does, and says why they
    are not. With --json, unfit hosts are warnings on stderr.
    """
    from declarative.render.status import status_text
    from declarative.render.status_view import status_json

    if offline and refresh:
        raise failed("usage", "`--offline` contacts nothing, `--refresh` everything", "leave one of them out")
    view = gather(session, offline=offline, refresh=refresh)
    if as_json:
        say(view.diagnostics)  # in the text they have a table
        emit(status_json(view))
    else:
        emit_text(status_text(view, **out_style()))
    return 0


def gather(session: ProjectSession, *, offline: bool, refresh: bool = False) -> StatusView:
    """The records and the declaration, with what is observed now."""
    from declarative.apply.backend_look import look
    from declarative.apply.offers import notes_on, survey
    from declarative.apply.parallel import HURRIED
    from declarative.model.diagnostic import in_order, located
    from declarative.model.resource import Desired
    from declarative.planner.hosts import contact_notes, hosts_of
    from declarative.planner.inventory import (
        host_health,
        node_health,
        observed_state,
        shown_drift,
        warning_health,
    )
    from declarative.planner.offers import GpuNode, lacking_gpus, may_rehearse, rehearsals
    from declarative.planner.volumes import gone_volume
    from declarative.render.status_view import host_view, status_view, with_waits

    desired = declared(session, some=True) or Desired()
    store = session.state.open(desired, offline=offline)
    state = store.read()
    backends = session.backends(desired, state)
    gpus = may_rehearse(desired, state)
    inventory = look(state, backends, offline=offline, offers=False, gpus=gpus, patience=HURRIED).inventory
    current = observed_state(state, inventory)
    nodes = state.of("node")
    there = [GpuNode(r.node.fleet, r.node.backend, r.node.resources, r.address.name) for r in nodes]
    rehearsed = rehearsals(desired, there, inventory.own_gpus)
    lacking = {str(node.name): lacks for node, lacks in lacking_gpus(desired, there, inventory.own_gpus)}
    gone = (gone_volume(desired, address.name) for address in inventory.lost)
    hosts = hosts_of(desired, state) if refresh else ()
    others = survey(hosts, state, backends, gone=inventory.gone, patience=HURRIED)
    unfit = [readiness for _, readiness in others if readiness]
    contact = contact_notes(desired, state, replace(inventory, left_out=tuple(unfit)))
    noted = in_order((*located((*inventory.diagnostics, *rehearsed, *gone), desired.places), *contact))
    say(noted)
    view = status_view(
        desired,
        current,
        now=session.clock() if refresh or offline else None,
        at=session.clock(),
        lost=None if offline else inventory.lost,
    )
    view = with_waits(view, store.events.waiting())
    return replace(
        view,
        spent=store.spent(),
        drift=shown_drift(inventory, desired),
        left_alone=store.loop.left_alone(),
        nodes=tuple(replace(node, rehearsal=lacking.get(node.name, False)) for node in view.nodes),
        health=(
            *node_health(readiness_of_nodes(current), inventory.silent, session.clock()),
            *host_health(unfit),
            *warning_health(noted),
        ),
        hosts=tuple(host_view(host, readiness) for host, readiness in others),
        diagnostics=tuple(notes_on(unfit, offline=False)),
    )


def readiness_of_nodes(state: State) -> list[tuple[str, Readiness]]:
    """Each recorded node with its readiness."""
    from declarative.model.state import readiness_of
    from declarative.model.status import NodeState, Readiness

    unknown = Readiness(state=NodeState.UNKNOWN)
    nodes = {r.address.name: r for r in state.of("node")}
    return [(name, readiness_of(node, state.readiness.get(name, unknown))) for name, node in nodes.items()]


F = TypeVar("F", bound=Callable[..., Any])
TOKEN = "FLEETFORM_LISTEN_TOKEN"  # noqa: S105 (the variable's name)
LEAST = 16
"""Characters of a token."""
SHOWN = 50
"""Events on the page."""
RELOAD = 30.0
"""Seconds after which the project's files are read again."""


class Listen(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class _Place(click.ParamType[Listen]):
    """`HOST:PORT`, or `PORT` for this machine only."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Listen:
        host, _, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"`{value}` is no `HOST:PORT`, such as `127.0.0.1:9470`", param, ctx)
        return Listen(host, int(port))


def listen_options(default: str | None) -> Callable[[F], F]:
    """`--listen` and `--token-file`; without a `default` nothing listens unless asked to."""
    return all_of(
        click.option(
            "--listen",
            metavar="HOST:PORT",
            type=_Place(),
            default=default,
            show_default=default is not None,
            help="Answer /healthz, /readyz, /metrics and a live page there; a PORT alone is this "
            "machine's only.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"The token that a client has to send; else it is in {TOKEN}. Required where other "
            "machines reach `--listen`.",
        ),
    )


@click.command(
    "serve",
    epilog=examples("fleetform serve", "fleetform serve --listen 0.0.0.0:9470 --token-file token"),
)
@listen_options("127.0.0.1:9470")
@project_command
def serve_command(session: ProjectSession, listen: Listen, token_file: Path | None) -> int:
    """Show the fleet over HTTP until interrupted: a live page at /, /metrics for Prometheus, /healthz and
    /readyz.

    It reads the state and asks no backend, so it shows what commands observed last. It changes nothing, and
    works beside them. Where other machines reach it, it wants a token: in a header `Authorization: Bearer …`,
    or as the password for a browser, with any name.
    """
    session.load_if_any()
    with stopping("stopping") as stop, listening(session, listen, token_file):
        stop.wait()
    return 0


@contextmanager
def listening(
    session: ProjectSession,
    listen: Listen | None,
    token_file: Path | None,
    interval: Callable[[], float] | None = None,
) -> Iterator[Callable[[Round], None]]:
    """Answer over HTTP meanwhile. The result observes rounds, if there is one each `interval` seconds."""
    token = _token(token_file)
    if listen is None:
        yield lambda _: None
        return
    from declarative.serve.latest_state import LatestState
    from declarative.serve.metrics import Metrics
    from declarative.serve.server import Server, Site, is_loopback
    from declarative.spans import on_span_end

    def title() -> str:
        return session.current.project.name or session.directory.resolve().name

    latest = LatestState(title, _ProjectReader(session, reload=interval is None), session.clock, interval)
    metrics = Metrics(latest, loop=interval is not None)

    def observe(done: Round) -> None:
        latest.observe(done)
        metrics.observe(done)

    def observe_span(
        name: str, attributes: Mapping[str, str], seconds: float, error: BaseException | None
    ) -> None:
        latest.alive()
        metrics.observe_span(name, attributes, seconds, error)

    if token is None and not is_loopback(listen.host):
        hint = f"put a token into {TOKEN} or `--token-file`, or listen at 127.0.0.1 behind a proxy"
        raise failed("usage", f"other machines reach `{listen.host}`, and there is no token", hint)
    try:
        server = Server(listen.host, listen.port, Site(latest, metrics, token))
    except OSError as error:
        summary = f"cannot listen at {listen.host}:{listen.port}: {error.strerror or error}"
        raise failed("usage", summary, "name another one") from None
    server.start()
    unregister = on_span_end(observe_span)
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    click.echo(f"listening at http://{host}:{server.port}/", err=True)
    try:
        yield observe
    finally:
        unregister()
        server.close()


def _token(file: Path | None) -> str | None:
    """The token, which is never shown."""
    token = os.environ.get(TOKEN)
    where = TOKEN
    if file is not None:
        where = f"`--token-file {file}`"
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise failed("usage", f"{where} cannot be read", "write a token of one line into it") from None
    if token is not None and len(token) < LEAST:
        hint = "make one: `openssl rand -hex 32`"
        raise failed("usage", f"the token of {where} has fewer than {LEAST} characters", hint)
    return token


class _ProjectReader:
    """Reads the records and the declaration."""

    def __init__(self, session: ProjectSession, *, reload: bool) -> None:
        """`reload`: read the project's files again, since no loop does."""
        self._session = session
        self._loaded = session.clock() if reload else None
        self._turn = threading.Lock()

    def __call__(self) -> Recorded:
        from declarative.planner.inventory import node_health
        from declarative.render.status_view import status_view, with_waits
        from declarative.serve.latest_state import Recorded

        session = self._session
        with self._turn:
            due = self._loaded is not None and not 0 <= session.clock() - self._loaded < RELOAD
            if due:
                self._loaded = session.clock()
        if due:
            with suppress(InvalidError):  # what was declared before counts
                session.load_if_any()
        desired = session.current
        with session.state.read_anew(desired) as store:
            state, spent, last = store.read(), store.spent(), store.events.bounds()[1]
            events = store.events.after(max(0, last - SHOWN))
            waiting = store.events.waiting()
        view = replace(
            with_waits(status_view(desired, state, now=session.clock(), at=session.clock()), waiting),
            health=node_health(readiness_of_nodes(state), state.silent, session.clock()),
            spent=spent,
        )
        return Recorded(view=view, events=tuple(reversed(events)), declared=desired.fleets)
