"""What a stage waits for: the goals, and the handle that names an object and its goal."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field

from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Object, version_of


class IfFinished(StrEnum):
    """The result of a change or a wait if the job succeeds before it, because training was faster than the
    pipeline."""

    SKIP = "skip"
    FAIL = "fail"
    SUCCEED = "succeed"


class JobGoal(Model):
    """A state of a job. All that is given must hold at once.

    Attributes:
        phases: any of these. A job that has Succeeded meets Running, too: it has run.
        step: global training step, or a later one.
        condition: type of a condition, as ``Running``, or its type and a status other than True, as
            ``Running=False``.
        nodes: number of ready nodes, all roles together; a job that has Succeeded needs none.
    """

    type: Literal["job"] = "job"
    phases: tuple[JobPhase, ...] = ()
    step: int | None = Field(default=None, ge=0)
    condition: str = ""
    nodes: int = Field(default=0, ge=0)


class ChangeGoal(Model):
    """A ScalePlan that has reached a phase, or a later one."""

    type: Literal["plan"] = "plan"
    phase: ScalePlanPhase = ScalePlanPhase.SUCCEEDED


class AdviceGoal(Model):
    """Advice of the job's own optimizer for its current state.

    Attributes:
        change: whether it must change something.
    """

    type: Literal["planned"] = "planned"
    change: bool = False


class ExistsGoal(Model):
    """The object exists, in any state."""

    type: Literal["exists"] = "exists"


class UnfinishedGoal(Model):
    """The job has not ended. This is the goal of a change that came after the job's end, and so can't be
    reached."""

    type: Literal["unfinished"] = "unfinished"


class GoneGoal(Model):
    """The object no longer exists."""

    type: Literal["gone"] = "gone"


Goal = Annotated[
    JobGoal | ChangeGoal | AdviceGoal | ExistsGoal | UnfinishedGoal | GoneGoal, Field(discriminator="type")
]


class Handle(Model):
    """What a stage waits for. It holds no secrets: engines store it as plain text.

    Attributes:
        kind, namespace, name: the object.
        goal: the state to wait for.
        uid: uid of the object; "" until it has been seen.
        version: resourceVersion when the stage began; older states are ignored.
        owner, attempt: the owner annotations of an object that the stage created; "" if it created none. A
            stage cancels only what it created.
        is_adopted: an earlier attempt created that object, and this one continues with it.
        if_finished: the result if the job succeeds before the goal is reached.
        waiter: the annotation by which a wait for a step is registered on the job; "" for none.
    """

    kind: str
    namespace: str
    name: str
    goal: Goal
    uid: str = ""
    version: int = 0
    owner: str = ""
    attempt: str = ""
    is_adopted: bool = False
    if_finished: IfFinished = IfFinished.FAIL
    waiter: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def describe_command(self) -> str:
        """The command that shows the object."""
        kind = "" if self.kind == ELASTIC_JOBS.kind else f" --kind {self.kind}"
        return f"edl describe {self.name}{kind} --namespace {self.namespace}"

    @classmethod
    def of(
        cls,
        kind: str,
        manifest: Object,
        goal: Goal,
        creator: StageIdentity | None = None,
        if_finished: IfFinished = IfFinished.FAIL,
        *,
        is_adopted: bool = False,
    ) -> Self:
        """The handle of an object as the API server returned it.

        Args:
            kind: kind of the object.
            manifest: the object.
            goal: the state to wait for.
            creator: who runs the stage, if the stage created the object or adopted it.
            if_finished: the result if the job succeeds before the goal is reached.
            is_adopted: an earlier attempt of the creator created the object.
        """
        metadata = manifest["metadata"]
        return cls(
            kind=kind,
            namespace=metadata["namespace"],
            name=metadata["name"],
            goal=goal,
            uid=metadata["uid"],
            version=version_of(manifest),
            owner=creator.owner if creator is not None else "",
            attempt=creator.attempt if creator is not None else "",
            is_adopted=is_adopted,
            if_finished=if_finished,
        )

    @classmethod
    def of_ended(cls, kind: str, manifest: Object, if_finished: IfFinished) -> Self | None:
        """The handle of a change for which a job has ended too early; None if the job has not ended.

        The change then creates nothing; `evaluate_goal` decides its result.

        Args:
            kind: kind of the job.
            manifest: the job.
            if_finished: the result if the job has succeeded.
        """
        job = read_object(kind, manifest)
        if not isinstance(job, JobView) or not job.phase.final:
            return None
        return cls.of(kind, manifest, UnfinishedGoal(), if_finished=if_finished)
