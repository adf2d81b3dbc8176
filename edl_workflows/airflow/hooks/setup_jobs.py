"""Finds the jobs that the setups of a teardown created in its run.

A setup notes its job in an XCom as soon as it has created it. If it was lost before, its jobs are found by
their owner annotations, where the setup's arguments say that they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.airflow.hooks.task_object import OBJECT_KEY, TaskObject
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.runtime.kube.connect import Cluster


@dataclass(frozen=True)
class SetupTask:
    """A setup of a teardown.

    Attributes:
        owner: the owner annotation of its jobs. One that ends in a slash stands for all instances of a mapped
            task.
        kind, namespace: kind and namespace of its jobs, as far as its arguments say; else "".
        noted: what it noted in its XComs.
    """

    owner: str
    kind: str = ""
    namespace: str = ""
    noted: tuple[TaskObject, ...] = ()

    @classmethod
    def of(cls, setup: Any, ti: Any, run: str, index: int | None) -> "SetupTask":
        """Read what is known of a setup.

        Args:
            setup: the operator, possibly mapped.
            ti: the task instance of the teardown.
            run: prefix of the owner annotations of the run.
            index: map index of the setup's instance; None for all instances of a mapped task.
        """
        indexes = {} if index is None else {"map_indexes": index}
        pulled = ti.xcom_pull(task_ids=setup.task_id, key=OBJECT_KEY, **indexes)
        values = pulled if isinstance(pulled, list | tuple) else [pulled]
        arguments = getattr(setup, "partial_kwargs", None) or vars(setup)
        manifest = arguments.get("manifest")
        fields = manifest if isinstance(manifest, Mapping) else {}
        metadata = fields.get("metadata")
        own_namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        kind = getattr(getattr(setup, "operator_class", setup), "manifest_kind", "")
        return cls(
            owner=f"{run}{setup.task_id}/{'' if index is None else index}",
            kind=_literal(fields.get("kind")) or kind,
            namespace=_literal(own_namespace) or _literal(arguments.get("namespace")),
            noted=tuple(noted for value in values if (noted := TaskObject.read(value)) is not None),
        )

    def created(self, job: Handle) -> bool:
        """Whether it created a job that has its owner annotation. Two Airflows without names write the same
        annotations, but each notes only its own job."""
        return not self.noted or self.owner.endswith("/") or job.uid in {noted.uid for noted in self.noted}


def list_setup_jobs(
    cluster: Cluster, setups: Iterable[SetupTask], kind: str, namespace: str, *, named: bool
) -> list[Handle]:
    """The jobs of some setups, even those that have ended. A setup has several if the name in its manifest
    has changed between its attempts.

    Args:
        cluster: the API server.
        setups: the setups.
        kind: kind of the jobs of setups that don't say it.
        namespace: namespace of the jobs of setups that don't say it.
        named: whether the Airflow has a name, so that no other one writes the same annotations.
    """
    jobs: dict[str, Handle] = {}
    for setup in setups:
        places = {(noted.kind, noted.namespace) for noted in setup.noted}
        for place in places or {(setup.kind or kind, setup.namespace or namespace)}:
            if kind_of(place[0]).view is None:
                continue  # a plan
            for job in ownership.list_of_owner(cluster, *place, setup.owner):
                if named or setup.created(job):
                    jobs[job.uid] = job
    return list(jobs.values())


def _literal(argument: object) -> str:
    """An argument of another task, which is not rendered here; "" if it is a template or no text."""
    return argument if isinstance(argument, str) and "{" not in argument else ""
