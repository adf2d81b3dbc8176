"""The relaunch table: which reasons replace a node, at whose expense, with how much memory."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.services.master.state.autoscale.autoscale_steps import job_with_oom
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus
from edl_workflows.services.master.state.nodes.relaunch import (
    RULES,
    ReplacementDecision,
    decide_replacement,
    exit_reason,
)
from edl_workflows.services.master.state.settings import JobSettings, RoleSettings

GIB = 2.0**30


def _settings(**role: Any) -> JobSettings:
    roles = {"ps": RoleSettings(), "worker": RoleSettings(**role)}
    return JobSettings("job", "default", roles, limits={"memory": 24 * GIB})


def _node(reason: ExitReason, relaunches: int = 0, memory: str | None = None, rank: int = 1) -> JobNode:
    resource = NodeResource(memory=memory)
    return JobNode(
        "worker",
        7,
        rank,
        0.0,
        NodeStatus.FAILED,
        resource,
        relaunches=relaunches,
        exit_reason=reason,
        exit_code=3,
    )


def _decide(node: JobNode, settings: JobSettings) -> ReplacementDecision:
    return decide_replacement(node, settings, job_with_oom(JobState(settings), node, 0.0))


@pytest.mark.parametrize(
    ("code", "pod_reason", "expected"),
    [
        (0, "", ExitReason.SUCCEEDED),
        (1, "Error", ExitReason.FATAL),
        (134, "", ExitReason.FATAL),
        (137, "Error", ExitReason.KILLED),
        (143, "", ExitReason.KILLED),
        (137, "OOMKilled", ExitReason.OOM),
        (247, "", ExitReason.OOM),
        (14, "", ExitReason.HARDWARE),
        (201, "", ExitReason.HARDWARE),
        (202, "", ExitReason.HARDWARE),
        (2, "", ExitReason.UNKNOWN),
        (None, "", ExitReason.KILLED),
        (None, "Evicted", ExitReason.KILLED),
        (None, "StartError", ExitReason.UNKNOWN),
    ],
)
def test_reason_of_an_exit(code: int | None, pod_reason: str, expected: ExitReason) -> None:
    """The exit code and the container's reason decide why a node ended, with the rules of upstream."""
    assert exit_reason(code, pod_reason) is expected


@pytest.mark.parametrize(
    ("reason", "relaunches", "always", "replaced", "counted"),
    [
        (ExitReason.KILLED, 0, False, True, False),
        (ExitReason.KILLED, 99, False, True, False),
        (ExitReason.UNKNOWN, 0, False, True, True),
        (ExitReason.UNKNOWN, 3, False, False, False),
        (ExitReason.HARDWARE, 2, False, True, True),
        (ExitReason.NO_HEARTBEAT, 2, False, True, True),
        (ExitReason.PENDING_TIMEOUT, 3, False, False, False),
        (ExitReason.FATAL, 0, False, False, False),
        (ExitReason.FATAL, 0, True, True, True),
        (ExitReason.FATAL, 3, True, False, False),
        (ExitReason.OOM, 0, False, True, True),
        (ExitReason.OOM, 3, False, False, False),
    ],
)
def test_who_is_replaced(
    reason: ExitReason, relaunches: int, always: bool, replaced: bool, counted: bool
) -> None:
    """Killed nodes are always replaced at no cost, nodes with fatal errors only under Always, and all others
    within the budget."""
    decision = _decide(_node(reason, relaunches), _settings(restart_always=always))
    assert (decision.resource is not None) is replaced
    assert bool(decision.refused) is not replaced
    if replaced:
        assert decision.relaunches == relaunches + counted


@pytest.mark.parametrize(
    ("memory", "template", "expected"),
    [
        ("1Gi", None, "2048Mi"),
        (None, "512Mi", "1024Mi"),
        ("10Gi", None, "18432Mi"),
        ("20Gi", None, "24576Mi"),
        ("24Gi", None, None),
        (None, None, "unlimited"),
    ],
)
def test_memory_after_running_out_of_it(
    memory: str | None, template: str | None, expected: str | None
) -> None:
    """The replacement has twice the memory, but at most 8 GiB more and no more than the job's limit. A node
    that already has the maximum is not replaced."""
    settings = _settings(resource=NodeResource(memory=template))
    decision = _decide(_node(ExitReason.OOM, memory=memory), settings)
    if expected is None:
        assert "no more memory" in decision.refused
    else:
        assert decision.resource is not None
        assert (decision.resource.memory or "unlimited") == expected


def test_limits_of_the_whole_job_lose_no_node() -> None:
    """If the other nodes leave no memory for more, the replacement has as much as before, until its restarts
    are used up."""
    settings = _settings(replicas=3, resource=NodeResource(memory="8Gi"))
    state = JobState(settings)
    state.nodes.add(*state.nodes.new_nodes("worker", [(0, NodeResource()), (1, NodeResource())], 0.0))
    for relaunches, replaced in ((0, True), (3, False)):
        node = _node(ExitReason.OOM, relaunches, "8Gi", rank=2)
        decision = decide_replacement(node, settings, job_with_oom(state, node, 0.0))
        assert (decision.resource == node.resource) is replaced
        assert ("budget" in decision.refused) is not replaced


@pytest.mark.parametrize(
    ("restart_count", "critical_nodes", "rank", "budget", "critical"),
    [
        (3, "", 1, 3, False),
        (100, "", 1, 5, False),
        (3, "", 0, 3, True),
        (3, "all", 2, 3, True),
        (3, "none", 2, 3, False),
        (3, "2:7", 2, 7, True),
        (3, "2:7,4:1", 4, 1, True),
        (3, "2:7", 3, 3, False),
    ],
)
def test_budgets_and_critical_nodes(
    restart_count: int, critical_nodes: str, rank: int, budget: int, critical: bool
) -> None:
    """A node may restart min(restartCount, 5) times, unless criticalNodes sets another number for its rank.
    The chief is always critical."""
    settings = _settings(restart_count=restart_count, critical_nodes=critical_nodes)
    assert settings.budget("worker", rank) == budget
    assert settings.critical("worker", rank) is critical
    assert settings.critical("ps", rank)


def test_the_last_line_of_output_tells_why() -> None:
    """The failure message has the last line of output, such as that of an uncaught error, without the
    traceback above it."""
    node = replace(_node(ExitReason.FATAL, 0), message="Traceback:\n  File x\nValueError: no such digit\n")
    assert decide_replacement(node, _settings()).refused == (
        "worker-7 ended with FatalError (3): ValueError: no such digit; it is not replaced, because its "
        "restartPolicy is not Always"
    )


def test_every_reason_but_success_has_a_rule() -> None:
    """Each exit reason except success has a rule, and no exit code has two reasons."""
    assert set(RULES) == set(ExitReason) - {ExitReason.SUCCEEDED}
    codes = [code for rule in RULES.values() for code in rule.codes]
    assert len(codes) == len(set(codes))
