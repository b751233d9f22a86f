"""What the findings of a machine mean for its node, as its fleet's `health` says. Pure."""

from __future__ import annotations

from dataclasses import replace

from declarative.model.health import Finding, HealthState
from declarative.model.spec.health import HealthPolicy
from declarative.model.status import NodeState, Readiness
from declarative.model.text import and_more

MOST_FINDINGS = 3
"""Findings that a reason names."""


def judged(readiness: Readiness, policy: HealthPolicy | None = None) -> Readiness:
    """The readiness with what its findings mean: an unhealthy node is not ready; a degraded one is, and says
    why. A node that is not ready anyway says what is wrong with its machine, too.
    """
    policy = policy or HealthPolicy()
    bad: list[Finding] = []
    worn: list[Finding] = []
    for finding in readiness.findings:
        if finding.rule in policy.ignore:
            continue
        if finding.verdict is HealthState.UNHEALTHY or finding.rule in policy.fail:
            bad.append(finding)
        elif finding.verdict is HealthState.DEGRADED:
            worn.append(finding)
    if not bad and not worn:
        return readiness
    verdict = HealthState.UNHEALTHY if bad else HealthState.DEGRADED
    takes_none = bool(bad) or policy.strict
    reason = f"{verdict.value}: {and_more(dict.fromkeys(map(str, (*bad, *worn))), MOST_FINDINGS, '; ')}"
    if takes_none:
        counting = bad + worn if policy.strict else bad
        rules = ", ".join(dict.fromkeys(finding.rule for finding in counting))
        reason += f"; to use it as it is, write `health: {{ignore: [{rules}]}}` at its fleet"
    if readiness.reason:
        reason = f"{readiness.reason}; {reason}"
    state = NodeState.NOT_READY if takes_none and readiness.state is NodeState.READY else readiness.state
    return replace(readiness, state=state, reason=reason)
