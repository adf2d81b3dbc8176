"""Decides whether a failed node is replaced, and with which size; also records restarts.

One table maps the reasons for which nodes end to rules. The rules are those of DLRover's `_should_relaunch`,
except that an Allreduce job does not relaunch after fatal errors.
"""

import math
from dataclasses import dataclass, field, replace

from edl_workflows.core.backoff import FREE_REPLACEMENTS, count_replacements, replacement_pause
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import CHECKPOINT_EXIT_CODE, ExitReport
from edl_workflows.core.protocol.reported_text import find_cause
from edl_workflows.core.scaling.dlrover.bounds import size_range
from edl_workflows.core.scaling.dlrover.recovery import advise_oom_recovery
from edl_workflows.core.scaling.dlrover.resources import OptimizerJob
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.settings import JobSettings

TOLD_TO_END = 143
"""Exit code of a program that ended on SIGTERM."""
_CONTAINER_GONE = "ContainerStatusUnknown"
"""The kubelet's reason, with exit code 137, if it no longer knows a container, as after a reboot of its
machine."""
MAX_CAUSE = 500
"""Characters of the cause of a process's end in the job's message."""


def describe_cause(output: str, reason: str, code: int | None) -> str:
    """Why a process ended, from its output or what was said of it; "" if that doesn't tell.

    Args:
        output: the end of the output, or a sentence.
        reason: an `ExitReason`.
        code: the exit code, if there was one.
    """
    unsaid = reason in (ExitReason.SIGNAL, ExitReason.OOM)
    return "" if unsaid else find_cause(output, None if reason == ExitReason.KILLED else code)[:MAX_CAUSE]


@dataclass(frozen=True)
class ExitRule:
    """How the master reacts to an exit reason.

    Attributes:
        when: description of what happened, for people.
        codes: exit codes with this meaning.
        budget: whether a replacement uses up the node's budget.
        always_only: whether the node is replaced only under restartPolicy Always.
        more_memory: whether the replacement gets more memory (`advise_oom_recovery`).
        never: whether the node is never replaced, since its replacement would end like it.
    """

    when: str
    codes: tuple[int, ...] = ()
    budget: bool = True
    always_only: bool = False
    more_memory: bool = False
    never: bool = False


RULES: dict[ExitReason, ExitRule] = {
    ExitReason.KILLED: ExitRule(
        "told to end, evicted, preempted, or its pod or machine was removed", budget=False
    ),
    ExitReason.SIGNAL: ExitRule(
        "killed by a signal that nobody who runs the job sent: by the program itself, or by the kernel of a "
        "machine without memory",
        (137, 143),
    ),
    ExitReason.INIT: ExitRule("one of its init containers failed"),
    ExitReason.REFUSED: ExitRule("its machine can't run the pod, and neither can another", never=True),
    ExitReason.OOM: ExitRule("it ran out of memory", (247,), more_memory=True),
    ExitReason.FATAL: ExitRule(
        "the program's own fault: an uncaught error, or abort()", (1, 134), always_only=True
    ),
    ExitReason.HARDWARE: ExitRule("the program or its launcher found broken hardware", (14, 201, 202)),
    ExitReason.CHECKPOINT: ExitRule(
        "its training is finished, and the last checkpoint could not be saved", (CHECKPOINT_EXIT_CODE,)
    ),
    ExitReason.UNKNOWN: ExitRule("any other exit, and the restart of a container that holds the model"),
    ExitReason.LOST: ExitRule(
        "its machine is lost: nobody confirms the end of its deleted pod, or neither the machine nor the "
        "agent answers",
        budget=False,
    ),
    ExitReason.NO_HEARTBEAT: ExitRule("its agent was silent for too long"),
    ExitReason.PENDING_TIMEOUT: ExitRule(
        "it replaces another node and was pending for longer than restartTimeout"
    ),
    ExitReason.EVALUATION_TIMEOUT: ExitRule(
        "it held shards for evaluation and acknowledged no shard of any data set for `timeout_s`; "
        "critical nodes are not affected"
    ),
    ExitReason.CHECK_FAILED: ExitRule("it failed both rounds of the check before training (nodeCheck)"),
    ExitReason.ABSENT: ExitRule(
        "the other members of its training group waited for it in a step, and its process was silent for "
        "`silentMemberSeconds`, or training hung with `hangAction: restart`"
    ),
    ExitReason.PREPARE_TIMEOUT: ExitRule(
        "its agent lives, but its process did not become ready for the next version"
    ),
}
"""The table; `docs/reference/relaunch.md` is generated from it."""

_BY_CODE = {0: ExitReason.SUCCEEDED} | {code: reason for reason, rule in RULES.items() for code in rule.codes}


def exit_reason(code: int | None, pod_reason: str = "", *, asked: bool = False) -> ExitReason:
    """Why a node ended.

    Args:
        code: its exit code; None if there is none.
        pod_reason: the reason that Kubernetes gives.
        asked: whether its agent was told to end, or its pod was deleted, evicted or preempted, or lost its
            machine.
    """
    if pod_reason == "OOMKilled":
        return ExitReason.OOM
    if (asked or pod_reason == _CONTAINER_GONE) and code in (None, *RULES[ExitReason.SIGNAL].codes):
        return ExitReason.KILLED
    return ExitReason.UNKNOWN if code is None else _BY_CODE.get(code, ExitReason.UNKNOWN)


def reported_reason(report: ExitReport) -> ExitReason:
    """Why a training process ended, as its agent reports it."""
    # An agent that does not say whether it was told to end reports this code when it was.
    asked = report.code == TOLD_TO_END if report.asked is None else report.asked
    return exit_reason(report.code, asked=asked)


@dataclass(frozen=True)
class ReplacementDecision:
    """What happens to a failed node.

    Attributes:
        refused: why it is not replaced; "" if it is.
        resource: size of the replacement.
        relaunches: relaunch count of the replacement.
    """

    refused: str = ""
    resource: NodeResource | None = None
    relaunches: int = 0


def decide_replacement(
    node: JobNode, settings: JobSettings, job: OptimizerJob | None = None
) -> ReplacementDecision:
    """Decide whether `node`, which ended without success, is replaced.

    Args:
        node: the node.
        settings: settings of its job.
        job: `job_with_oom` of this node; required if the node ran out of memory.
    """
    assert node.exit_reason is not None
    rule = RULES[node.exit_reason]
    end = f"{node} ended with {node.exit_reason}" + (f" ({node.exit_code})" if node.exit_code else "")
    if cause := describe_cause(node.message, node.exit_reason, node.exit_code):
        end += f": {cause}"
    if rule.never:
        return ReplacementDecision(refused=f"{end}; it is not replaced, because its pod can't run anywhere")
    role = settings.roles[node.type]
    if rule.always_only and not role.restart_always:
        return ReplacementDecision(
            refused=f"{end}; it is not replaced, because its restartPolicy is not Always"
        )
    budget = settings.budget(node.type, node.rank)
    if rule.budget and node.relaunches >= budget:
        return ReplacementDecision(
            refused=f"{end}; its budget of {budget} replacements (restartCount) is used up"
        )
    resource = node.resource
    if rule.more_memory:
        assert job is not None
        grown = _more_memory(node, job)
        if isinstance(grown, str):
            return ReplacementDecision(refused=f"{end}; it can get no more memory: {grown}")
        resource = grown
    return ReplacementDecision(resource=resource, relaunches=node.relaunches + rule.budget)


def _more_memory(node: JobNode, job: OptimizerJob) -> NodeResource | str:
    """The replacement's size, or why it gets no more memory. Unlimited memory stays unlimited."""
    pod = names.node_name(job.name, node.type, node.id)
    has = next(candidate for candidate in job.nodes if candidate.name == pod).resource.memory
    if not has:
        return node.resource
    advice = advise_oom_recovery(job)
    memory = advice.node_resources[pod].memory if pod in advice.node_resources else None
    if memory is None and has < size_range(job, node.type, "memory", has).high:
        # `resourceLimits` leaves no more memory now. Retry with the same size, until the budget is used up.
        return node.resource
    if memory is None:
        return "; ".join(advice.notes)
    return node.resource.model_copy(update={"memory": f"{math.floor(memory)}Mi"})


def pace_successor(node: JobNode, successor: JobNode, now: float) -> JobNode:
    """The successor, whose pod is not requested too soon after that of the node, whatever ended the node."""
    return replace(
        successor,
        replacements=count_replacements(node.replacements, now - node.since),
        not_before=node.since + replacement_pause(node.replacements),
    )


def describe_paced(node: JobNode) -> str:
    """The warning about a rank whose nodes are replaced again and again; "" for any other."""
    if node.replacements <= FREE_REPLACEMENTS or not node.live:
        return ""
    return (
        f"rank {node.rank} of {node.type} was replaced {node.replacements} times in a row (status.restarts); "
        f"{node} is followed {replacement_pause(node.replacements):.0f} s after its creation at the earliest"
    )


MAX_RECENT = 20
MAX_MESSAGE = 300
"""Characters of a restart's message in the job's status."""

HANG = "Hang"
"""All training processes were restarted because training hung."""
RECOVERY = "Recovery"
"""Model and data returned to a checkpoint because a node that holds the model was lost."""
RESUME = "Resume"
"""A suspended job continues from its newest checkpoint; nodes removed by the suspension are not recorded."""
ROLLBACK = "Rollback"
"""The version that a plan made did not train."""


@dataclass(frozen=True)
class JobRestart:
    """One restart, or the end of a node that is not replaced.

    Attributes:
        time: Unix seconds.
        subject: the node that ended, or `version <number>` if the training processes of all nodes restarted.
        cause: a node's exit reason, or one of this module's constants.
        message: details.
        replaced: whether anything was restarted.
    """

    time: float
    subject: str
    cause: str
    message: str = ""
    replaced: bool = True


@dataclass(frozen=True)
class Restarts:
    """All restarts of a job.

    Attributes:
        counts: by cause.
        recent: the last few, in the order in which they happened.
    """

    counts: dict[str, int] = field(default_factory=dict)
    recent: tuple[JobRestart, ...] = ()


def record_restart(restarts: Restarts, restart: JobRestart) -> Restarts:
    counts = {**restarts.counts, restart.cause: restarts.counts.get(restart.cause, 0) + 1}
    short = replace(restart, message=restart.message[:MAX_MESSAGE])
    return Restarts(counts, (*restarts.recent, short)[-MAX_RECENT:])
