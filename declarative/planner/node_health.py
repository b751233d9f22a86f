"""What the findings of a machine mean for its node, as its fleet's `health` says. Pure."""

from __future__ import annotations

from dataclasses import replace

from declarative.model.health import Finding, HealthState
from declarative.model.status import NodeState, Readiness
from declarative.model.text import and_more

MOST_FINDINGS = 3
"""Findings that a reason names."""


def judged(readiness: Readiness) -> Readiness:
    """The readiness with what its findings mean: an unhealthy node is not ready; a degraded one is, and says
    why. A node that is not ready anyway says what is wrong with its machine, too.
    """
    by_verdict: dict[HealthState, list[Finding]] = {verdict: [] for verdict in HealthState}
    for finding in readiness.findings:
        by_verdict[finding.verdict].append(finding)
    bad, worn = by_verdict[HealthState.UNHEALTHY], by_verdict[HealthState.DEGRADED]
    if not bad and not worn:
        return readiness
    verdict = HealthState.UNHEALTHY if bad else HealthState.DEGRADED
    reason = f"{verdict.value}: {and_more(dict.fromkeys(map(str, (*bad, *worn))), MOST_FINDINGS, '; ')}"
    if readiness.reason:
        reason = f"{readiness.reason}; {reason}"
    state = NodeState.NOT_READY if bad and readiness.state is NodeState.READY else readiness.state
    return replace(readiness, state=state, reason=reason)
