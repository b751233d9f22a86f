"""Metrics for Prometheus: gauges of the state, and counters of this process. The number of labels
is bounded.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from declarative import __version__
from declarative.model.status import NodeState, RankState
from declarative.planner.plan import Plan
from declarative.reconcile.loop import Round
from declarative.serve.latest_state import LatestState, Recorded
from declarative.store import StateError

CONTENT_TYPE = CONTENT_TYPE_LATEST
BLOCKS = ("busy", "idle", "reserved", "unavailable")
SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""Upper bounds of the buckets for a round's duration. A round that makes machines takes minutes."""
ACTIVE = ("starting", "running")


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, latest: LatestState, *, loop: bool) -> None:
        """`loop`: whether a loop runs, so that there are metrics of rounds."""
        self._registry = CollectorRegistry()
        self._registry.register(_StateMetrics(latest))
        ProcessCollector(registry=self._registry)
        build = Gauge(
            "fleetform_build_info", "The version, as a label.", ["version"], registry=self._registry
        )
        build.labels(__version__).set(1)
        self._loop = _LoopMetrics(self._registry) if loop else None

    def observe(self, done: Round) -> None:
        """Count a round that ended."""
        if self._loop:
            self._loop.observe(done)

    def observe_span(self, name: str, attributes: Mapping[str, str], seconds: float, error: object) -> None:
        """Count a span that ended."""
        if self._loop and name.startswith("backend."):
            self._loop.observe_call(name.removeprefix("backend."), attributes, seconds, error)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StateMetrics:
    """Gauges of the state, which is read when Prometheus asks."""

    def __init__(self, latest: LatestState) -> None:
        self._latest = latest

    def describe(self) -> tuple[Metric, ...]:
        """Nothing, so that registering does not read the state."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        up = GaugeMetricFamily("fleetform_state_readable", "1 if the state could be read for this answer.")
        try:
            recorded = self._latest.recorded()
        except StateError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _fleets(recorded)
        prices = GaugeMetricFamily(
            "fleetform_node_price_dollars_per_hour",
            "What a node costs; missing if it is not known.",
            labels=["fleet", "node", "instance_type"],
        )
        for node in recorded.view.nodes:
            if node.price is not None:
                _add(prices, [node.fleet, node.name, node.instance_type], node.price)
        yield prices
        tasks = Tally(task.state for task in recorded.view.tasks)
        family = GaugeMetricFamily("fleetform_tasks", "Tasks by state.", labels=["state"])
        for state in RankState:
            _add(family, [state.value], tasks[state.value])
        yield family
        spent = GaugeMetricFamily("fleetform_month_cost_dollars", "What nodes cost in this month (UTC).")
        if recorded.view.spent is not None:
            spent.add_metric([], recorded.view.spent.dollars)
        yield spent


def _add(family: GaugeMetricFamily, labels: list[str], value: float) -> None:
    family.add_metric([_valid(label) for label in labels], value)


def _valid(text: str) -> str:
    """The text as a label that can be sent."""
    return text.encode(errors="replace").decode()


def _fleets(recorded: Recorded) -> Iterator[Metric]:
    """Nodes and blocks of each fleet. Zeros are included, so that an alert sees what went away."""
    nodes = GaugeMetricFamily("fleetform_nodes", "Nodes by state.", labels=["fleet", "state"])
    blocks = GaugeMetricFamily("fleetform_blocks", "Blocks by their use.", labels=["fleet", "state"])
    declared = GaugeMetricFamily(
        "fleetform_nodes_declared", "How many nodes a fleet should have.", labels=["fleet", "bound"]
    )
    states: Tally[tuple[str, str]] = Tally((node.fleet, node.state) for node in recorded.view.nodes)
    active = {f"rank/{t.name}-{r.rank}" for t in recorded.view.tasks for r in t.ranks if r.state in ACTIVE}
    uses: Tally[tuple[str, str]] = Tally()
    for node in recorded.view.nodes:
        busy = sum(holder in active for holder in node.holders.values())
        idle = "idle" if node.state == NodeState.READY else "unavailable"  # it takes no work
        for use, count in (("busy", busy), ("reserved", node.busy - busy), (idle, node.total - node.busy)):
            uses[node.fleet, use] += count
    for fleet in recorded.view.fleets:
        for state in NodeState:
            _add(nodes, [fleet.name, state.value], states[fleet.name, state.value])
        for use in BLOCKS:
            _add(blocks, [fleet.name, use], uses[fleet.name, use])
    for name, spec in sorted(recorded.declared.items()):
        for bound in ("min", "target", "max"):
            number = len(spec.ssh_config.hosts) if spec.ssh_config is not None else getattr(spec.nodes, bound)
            if number is not None:
                _add(declared, [name, bound], number)
    yield from (nodes, blocks, declared)


class _LoopMetrics:
    """Metrics of the loop's rounds, and of its calls to backends."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"fleetform_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fleetform_{name}", text, labels, registry=registry)

        def durations(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"fleetform_{name}", text, labels, buckets=SECONDS, registry=registry)

        self._duration = durations("reconcile_duration_seconds", "How long rounds took.")
        self._success = gauge(
            "reconcile_last_success_timestamp_seconds", "When a round last did all it had to."
        )
        self._errors = counter("reconcile_errors_total", "Errors of rounds, by their codes.", "kind")
        self._restarts = counter(
            "rank_restarts_total", "Ranks that were started again, by the reason.", "task", "event"
        )
        self._actions = gauge("plan_actions", "Actions of the last plan.", "op")
        self._waits = gauge("plan_waiting", "What the last plan would do and the loop may not.", "action")
        self._drift = gauge("drift", "Differences between records and backends in the last plan.", "change")
        self._unplaced = gauge("unplaced_ranks", "Ranks without a place in the last plan, by code.", "code")
        self._up = gauge("backend_up", "1 if the last round could read it.", "backend")
        self._held = gauge("lease_held", "1 if this controller leads.")
        self._epoch = gauge("lease_epoch", "The number of the writer; it grows from leader to leader.")
        self._gpus = gauge(
            "gpu_utilization_ratio", "Use of GPUs that a utilization_policy samples.", "node", "gpu", "uuid"
        )
        self._commit = gauge("commit_info", "1 for the commit of the project that is in force.", "commit")
        self._hourly = gauge("cost_dollars_per_hour", "What all nodes cost an hour after the last plan.")
        self._calls = counter(
            "provider_requests_total", "Calls to backends, by their result.", "backend", "op", "code"
        )
        self._call_seconds = durations(
            "provider_request_duration_seconds", "How long calls to backends took.", "backend", "op"
        )

    def observe(self, done: Round) -> None:
        """Count a round that ended."""
        self._held.set(done.held)
        if done.epoch is not None:
            self._epoch.set(done.epoch)
        for error in done.errors:
            self._errors.labels(_valid(error.code)).inc()
        for result in done.results:
            if result.outcome == "failed":
                self._errors.labels(_valid(result.code or "action-failed")).inc()
        _set(self._commit, {_valid(done.in_force): 1} if done.in_force else {})
        if not done.held:
            return
        self._gpus.clear()
        for (node, gpu, uuid), percent in done.gpus.items():
            self._gpus.labels(_valid(node), gpu, _valid(uuid)).set(percent / 100)
        self._duration.observe(done.duration)
        if done.well:
            self._success.set(done.at + done.duration)
        if done.hourly is not None:
            self._hourly.set(done.hourly)
        _set(self._waits, Tally(wait.action for wait in done.waits))
        if done.backends:
            away = {wait.address for wait in done.waits}
            _set(self._up, {_valid(name): int(f"backend/{name}" not in away) for name in done.backends})
        if done.plan is not None:
            self._observe_plan(done.plan, done)

    def _observe_plan(self, plan: Plan, done: Round) -> None:
        ops = Tally(action.op.value for action in plan.actions)
        _set(self._actions, {op: ops[op] for op in ("create", "update", "delete")})
        _set(self._drift, Tally(drift.change for drift in plan.observed.drift))
        _set(self._unplaced, {r.code: 0 for r in plan.unplaced.refusals})
        for refusal in plan.unplaced.refusals:
            self._unplaced.labels(refusal.code).inc(len(refusal.ranks))
        done_ids = {result.id for result in done.results if result.outcome == "done"}
        for action in plan.actions:
            event = action.reason.value
            started = action.address.kind == "rank" and action.op == "create" and action.id in done_ids
            if started and event != "new":
                self._restarts.labels(action.address.name.rpartition("-")[0], event).inc()

    def observe_call(self, op: str, attributes: Mapping[str, str], seconds: float, error: object) -> None:
        """Count one call to a backend."""
        backend = _valid(attributes.get("backend", ""))
        kind = getattr(error, "kind", None)
        code = "ok" if error is None else str(getattr(kind, "value", type(error).__name__))
        self._calls.labels(backend, op, code).inc()
        self._call_seconds.labels(backend, op).observe(seconds)


def _set(gauge: Gauge, values: dict[str, int]) -> None:
    """Set these labels and drop all others."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)
