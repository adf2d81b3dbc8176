"""Parts of an ElasticJob's spec: how workers of a collective job meet, and how failures are handled."""

from enum import StrEnum

from pydantic import Field

from edl_workflows.core.kubernetes.objects import Model

MAX_SECONDS = 365 * 86_400
"""A year. The bound keeps the end of each time-out a valid date."""


class Rendezvous(Model):
    """What a world of a collective job (``AllreduceStrategy``) may look like; other jobs don't read it. Names
    are those of DLRover's and torch's elastic agents.

    Attributes:
        min_nodes: the fewest workers that train together.
        max_nodes: the most, and the number of mini-batches that make the global batch, however many workers
            there are. 0: as many as the job had workers when it was submitted. It can't be changed: batch and
            data position are counted in it.
        node_unit: the number of workers that train is a multiple of it, where that is not below minNodes; the
            others wait.
        waiting_timeout_seconds: after the last worker joined, before fewer than wanted train together.
        join_timeout_seconds: the job fails when fewer than minNodes have joined for so long.
    """

    min_nodes: int = Field(default=1, ge=1, le=100_000)
    max_nodes: int = Field(default=0, ge=0, le=100_000)
    node_unit: int = Field(default=1, ge=1, le=100_000)
    waiting_timeout_seconds: int = Field(default=30, ge=0, le=MAX_SECONDS)
    join_timeout_seconds: int = Field(default=600, ge=1, le=MAX_SECONDS)


class PendingFailStrategy(StrEnum):
    """Which nodes fail the job when they are pending for too long (DLRover's ``pending_fail_strategy`` 0, 1
    and 2).
    """

    SKIP = "skip"
    NECESSARY = "necessary"
    ALL = "all"


class HangAction(StrEnum):
    """What follows when training stands still and the stack traces are written."""

    LOG = "log"
    RESTART = "restart"
    FAIL = "fail"


class FaultTolerance(Model):
    """How the job's master takes failures beyond the replacement of single nodes
    (`replicaSpecs.*.restartCount`).

    Attributes:
        pending_timeout_seconds: the job fails when nodes are pending for so long; 0: never. Left out: as the
            master was started (``edl master run --pending-timeout``, 900).
        pending_fail_strategy: which nodes: none (``skip``), those that the job can't train without
            (``necessary``), or any (``all``). A worker of a collective job counts only while fewer than
            ``minNodes`` workers have joined, unless it is critical.
        hang_timeout_seconds: training hangs when nothing moves for so long although its processes live: no
            step, no record, no checkpoint. 0: nobody looks.
        first_step_timeout_seconds: how long the first step of a cluster version may take before it counts as
            a hang, if that is longer than ``hangTimeoutSeconds``: it compiles, restores and fills caches. 0:
            as long as it likes.
        hang_action: what follows. In each case every training process first writes the stack of all its
            threads to its log. ``log``: no more than that and a warning. ``restart``: the training processes
            are restarted together, in their pods, from the newest checkpoint; if the members of a collective
            job can go on in place and wait for some that do not arrive, only these are replaced. ``fail``:
            the job fails with reason Hang.
        max_restarts: how often the training processes may be restarted together; the next hang fails the job.
        max_failed_saves: the job fails with reason CheckpointFailed when so many checkpoints in a row could
            not be saved; tries of the training's last one do not count. 0: training goes on without them, and
            `status.warnings` says so.
        silent_member_seconds: a member of a collective job is taken out when the others wait for it in a step
            and its process was silent for so long: it is stopped, or cut off from the network. The others
            go on, and another node takes its place. Only with programs that can change their group in place.
            0: nobody is taken out.
        node_check: whether nodes are checked in pairs before training begins; what fails twice is replaced.
        node_check_timeout_seconds: of one round of that.
        replaced_pods_history_limit: of the pods of each role that ended and were replaced, the newest so many
            stay while the job runs, for their logs; older ones are deleted.
        straggler_ratio: a node so many times slower than the median of all is reported as a straggler.
    """

    pending_timeout_seconds: int | None = Field(default=None, ge=0)
    pending_fail_strategy: PendingFailStrategy = PendingFailStrategy.NECESSARY
    hang_timeout_seconds: int = Field(default=1800, ge=0)
    first_step_timeout_seconds: int = Field(default=1800, ge=0)
    hang_action: HangAction = HangAction.LOG
    max_restarts: int = Field(default=3, ge=0, le=100)
    max_failed_saves: int = Field(default=0, ge=0, le=1000)
    silent_member_seconds: int = Field(default=10, ge=0, le=MAX_SECONDS)
    node_check: bool = False
    node_check_timeout_seconds: int = Field(default=300, ge=1, le=86_400)
    replaced_pods_history_limit: int = Field(default=5, ge=0, le=1000)
    straggler_ratio: float = Field(default=2.0, ge=1)
