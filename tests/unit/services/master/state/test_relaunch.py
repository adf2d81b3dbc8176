"""The relaunch table: which reasons replace a node, at whose expense, with how much memory."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.protocol.nodes import ExitReport, NodeRef
from edl_workflows.services.master.state.autoscale.autoscale_steps import job_with_oom
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.pod_requests import PodRequests, next_request
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus
from edl_workflows.services.master.state.nodes.relaunch import (
    RULES,
    ReplacementDecision,
    decide_replacement,
    describe_paced,
    exit_reason,
    pace_successor,
    reported_reason,
)
from edl_workflows.services.master.state.settings import JobSettings, RoleSettings
from edl_workflows.services.master.state.transitions import settle_job

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
    ("code", "pod_reason", "asked", "expected"),
    [
        (0, "", False, ExitReason.SUCCEEDED),
        (1, "Error", False, ExitReason.FATAL),
        (134, "", False, ExitReason.FATAL),
        (137, "Error", False, ExitReason.SIGNAL),
        (143, "", False, ExitReason.SIGNAL),
        (137, "Error", True, ExitReason.KILLED),
        (143, "", True, ExitReason.KILLED),
        (137, "OOMKilled", True, ExitReason.OOM),
        (137, "ContainerStatusUnknown", False, ExitReason.KILLED),
        (247, "", False, ExitReason.OOM),
        (14, "", False, ExitReason.HARDWARE),
        (201, "", False, ExitReason.HARDWARE),
        (202, "", True, ExitReason.HARDWARE),
        (2, "", False, ExitReason.UNKNOWN),
        (1, "", True, ExitReason.FATAL),
        (None, "", False, ExitReason.UNKNOWN),
        (None, "Evicted", True, ExitReason.KILLED),
        (None, "StartError", False, ExitReason.UNKNOWN),
    ],
)
def test_reason_of_an_exit(code: int | None, pod_reason: str, asked: bool, expected: ExitReason) -> None:
    """The exit code, the container's reason and whether anybody asked for the end decide why a node ended,
    with the rules of upstream, except that a signal that nobody sent is the node's own fault."""
    assert exit_reason(code, pod_reason, asked=asked) is expected


@pytest.mark.parametrize(
    ("code", "asked", "expected"),
    [
        (137, False, ExitReason.SIGNAL),
        (143, False, ExitReason.SIGNAL),
        (143, True, ExitReason.KILLED),
        (143, None, ExitReason.KILLED),
        (137, None, ExitReason.SIGNAL),
        (1, True, ExitReason.FATAL),
    ],
)
def test_an_agent_knows_whether_it_was_told_to_end(
    code: int, asked: bool | None, expected: ExitReason
) -> None:
    """A process that SIGKILL ended without the agent's doing uses the budget; an agent of the version before,
    which does not say, reports 143 when it was told."""
    report = ExitReport(node=NodeRef(type="worker", id=0), incarnation="i", version=1, code=code, asked=asked)
    assert reported_reason(report) is expected


def test_a_program_that_kills_itself_uses_its_budget() -> None:
    """A rank whose process dies by SIGKILL each time is not replaced for ever."""
    node, settings = _node(ExitReason.SIGNAL), _settings()
    for _ in range(3):
        decision = _decide(node, settings)
        assert decision.resource is not None
        node = replace(node, relaunches=decision.relaunches)
    assert "its budget of 3 replacements" in _decide(node, settings).refused


def test_nodes_that_are_taken_away_again_and_again_are_paced() -> None:
    """Replacements that use no budget come at once three times in a row, then 10, 20, 40 … 300 s after their
    predecessors, and the job's status warns. After a node that lived for ten minutes the count begins
    anew."""
    node, gaps = _node(ExitReason.KILLED), []
    for _ in range(12):
        successor = replace(node, id=node.id + 1, status=NodeStatus.INITIAL, exit_reason=None)
        successor = pace_successor(node, successor, node.since + 1.0)
        gaps.append(max(1.0, successor.not_before - node.since))
        node = replace(successor, since=node.since + gaps[-1])

    assert gaps == [1, 1, 1, 10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert "rank 1 of worker was replaced 12 times in a row" in describe_paced(node)
    steady = pace_successor(node, node, node.since + 600.0)
    assert (steady.replacements, steady.not_before <= node.since + 600.0) == (1, True)
    assert describe_paced(steady) == ""


@pytest.mark.parametrize(
    ("reason", "relaunches", "always", "replaced", "counted"),
    [
        (ExitReason.KILLED, 0, False, True, False),
        (ExitReason.KILLED, 99, False, True, False),
        (ExitReason.SIGNAL, 0, False, True, True),
        (ExitReason.SIGNAL, 3, True, False, False),
        (ExitReason.INIT, 0, False, True, True),
        (ExitReason.INIT, 3, False, False, False),
        (ExitReason.REFUSED, 0, True, False, False),
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
    """Nodes that were told to end are always replaced at no cost, nodes with fatal errors only under Always,
    nodes that can't run anywhere never, and all others within the budget."""
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


def test_a_paced_node_asks_for_its_pod_when_its_time_has_come() -> None:
    """Until then it is not pending either, so no time-out for pending pods ends the job."""
    state = JobState(_settings(), watches_pods=True)
    state.nodes.add(replace(_node(ExitReason.KILLED), status=NodeStatus.INITIAL, not_before=50.0))
    registry = state.nodes

    assert next_request(PodRequests(), registry, 30.0, 49.0) is None
    request = next_request(PodRequests(), registry, 30.0, 50.0)
    assert request is not None
    assert request.create == (("worker", 7),)
    state.volatile.pending_since = {"worker-7": 1.0}
    settle_job(state, 49.0)
    assert state.volatile.pending_since["worker-7"] == 49.0
