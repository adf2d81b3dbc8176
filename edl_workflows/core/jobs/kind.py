"""The description of a kind: a part of the registry (`edl_workflows.core.jobs.kinds`), and the resource types
that kinds watch.

The controller starts a LIST+WATCH for every kind and every `Source`, groups what it sees by (namespace, job
name) and calls `Kind.decide` for each object of a group in which something changed. Stages and the CLI take
`Kind.view` from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import cache_fields, isolation, left_alone, manifests, replacements
from edl_workflows.core.jobs.actions import (
    Actions,
    Deletion,
    Event,
    InstallationSettings,
    Manifest,
    Observed,
    RoleChange,
    SpecEdit,
    apply_merge_patch,
    merge_patch,
)
from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.conversion import ConvertedJob
from edl_workflows.core.jobs.refused_pods import fail_refused
from edl_workflows.core.jobs.status import Job, JobStatus, KindPhase, phases_of
from edl_workflows.core.jobs.usage.model import SpentTime
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.core.kubernetes.api import NETWORK_POLICIES, PODS, ApiResource
from edl_workflows.core.kubernetes.objects import Condition, Resource, set_condition
from edl_workflows.core.schemas.definition import CrdOptions

WATCH_VERBS = ("list", "watch")
"""Verbs on objects that are only read."""
CREATE_VERBS = (*WATCH_VERBS, "create")
"""Verbs on objects that are also created."""

INVALID_SPEC = "InvalidSpec"
"""Status reason of an object that the API server has admitted but this package rejects."""


@dataclass(frozen=True)
class Source:
    """A resource type to watch.

    Attributes:
        job_of: name of the job (in the same namespace) that an object belongs to; "" for none.
        selector: label selector of the LIST and the WATCH: "" for all, or one ``key`` or ``key=value``. If
            several kinds make children of the same resource type, each under its own labels, each kind has
            its own source.
        rights: subresource ("" for the object itself) → the verbs that the controller uses on it; its role is
            made from these (`edl_workflows.pipelines.install.rbac`).
        keep: reduces an object to the parts that the cache keeps and decisions see.
        silent: fields of the status that the controller reads, but whose changes ask for no decision.
    """

    api: ApiResource
    job_of: Callable[[Manifest], str]
    selector: str = ""
    rights: tuple[tuple[str, tuple[str, ...]], ...] = (("", WATCH_VERBS),)
    keep: Callable[[Manifest], dict[str, Any]] = cache_fields.keep_whole
    silent: tuple[str, ...] = ()

    @property
    def metadata_only(self) -> bool:
        """Whether the API server need not send more than the objects' metadata."""
        return self.keep is cache_fields.keep_head

    def asks_for_decision(self, new: Manifest, old: Manifest) -> bool:
        """Whether a change of an object can change a decision. The cache takes each new state in any case, so
        that a write carries the newest resourceVersion.

        Args:
            new: the newest state, as `keep` returns it.
            old: the state before.
        """
        return cache_fields.differ(new, old, self.silent)

    def selects(self, manifest: Manifest) -> bool:
        """Whether the selector matches an object of this resource type."""
        key, _, value = self.selector.partition("=")
        labels = manifest["metadata"].get("labels") or {}
        return not key or (key in labels and value in ("", labels[key]))


@dataclass(frozen=True)
class Kind:
    """A kind that this package reconciles.

    Attributes:
        source: the kind's own objects.
        observes: what else its `reconcile` reads. When one of these objects changes, the objects of this kind
            that belong to the same job are reconciled.
        reconcile: the pure state machine, called through `decide`.
        crd: its CustomResourceDefinition apart from the schema.
        view: how pipelines see an object; None if the kind is not a job.
        makes: resources that its `reconcile` creates but the controller does not watch, since the cluster may
            lack their CustomResourceDefinition.
        labels: keys of the labels on a job's pods that have the job's name, the role and the index.
        foreign_labels: keys of the labels by which jobs of other kinds find their pods; pods of this kind
            must not have them. Filled in by the registry.
        suspend: path, below ``spec``, of the boolean that suspends a job.
        failed: the phase of a failed job, as this kind spells it.
        scale: returns the edit of the spec that sets replicas by role; None for kinds that are scaled by
            ScalePlans.
        elastic: returns the role that the controller's autoscaler may resize in a job, or None if it must
            leave the job alone. None for a kind that it never resizes.
        made_here: whether this package made a pod of a job, and not another operator of the kind.
        spent: returns how a stored job's time was spent; None if nobody accounts for it.
        restarts: returns how often a stored job was restarted, by cause; None for a kind that counts its
            failed pods only.
        conversions: what ``edl convert`` can turn a job into: a kind or an ``apiVersion``, and how.
    """

    source: Source
    model: type[Resource]
    reconcile: Callable[[Any, Observed], Actions]
    observes: tuple[Source, ...]
    crd: CrdOptions
    view: Callable[[Any], JobView] | None = None
    makes: tuple[Source, ...] = ()
    labels: tuple[str, str, str] = (names.JOB_LABEL, names.REPLICA_TYPE_LABEL, names.REPLICA_INDEX_LABEL)
    foreign_labels: frozenset[str] = field(default=frozenset(), compare=False)
    suspend: tuple[str, ...] = ("suspend",)
    failed: str = "Failed"
    scale: Callable[[Any, Mapping[str, RoleChange]], SpecEdit] | None = None
    elastic: Callable[[Any], ElasticRole | None] | None = None
    made_here: Callable[[Manifest, Observed], bool] = lambda _pod, _observed: True
    spent: Callable[[Manifest], SpentTime | None] = lambda _job: None
    restarts: Callable[[Manifest], Mapping[str, int]] | None = None
    conversions: tuple[tuple[str, Callable[[Any], ConvertedJob]], ...] = ()

    @property
    def name(self) -> str:
        """The ``kind`` of its manifests."""
        return self.source.api.kind

    @property
    def phases(self) -> tuple[KindPhase, ...]:
        """The phases of its jobs, in the kind's own spelling."""
        return phases_of(self.model.model_fields["status"].annotation)

    @property
    def pods(self) -> Source:
        """The pods that it makes. If several operators share the job label, the selector restricts them to
        this kind's operator."""
        return next(source for source in self.observes if source.api is PODS)

    def pods_of(self, job: str) -> str:
        """Label selector of a job's pods."""
        operator = f",{self.pods.selector}" if "=" in self.pods.selector else ""
        return f"{self.labels[0]}={job}{operator}"

    def isolated(self) -> "Kind":
        """The same kind, which also observes the NetworkPolicies of its jobs
        (`InstallationSettings.network_policies`)."""
        if self.view is None:
            return self
        return replace(self, observes=(*self.observes, JOB_NETWORK_POLICIES))

    def node_of(self, pod: Manifest) -> str:
        """What people call a job's pod: its role and index, as ``worker-0``."""
        labels = pod["metadata"].get("labels") or {}
        return f"{labels.get(self.labels[1], '')}-{labels.get(self.labels[2], '')}"

    def _place_of(self, pod: Manifest) -> str:
        """What a job's pod has in common with those that replace it: its role and index; a master, of which
        there is one, has a new index each time."""
        is_master = manifests.get_label(pod, self.labels[1]) == names.MASTER_TYPE
        return names.MASTER_TYPE if is_master else self.node_of(pod)

    def suspended(self, manifest: Manifest) -> bool:
        """Whether a job's spec suspends the job."""
        value: Any = manifest["spec"]
        for key in self.suspend:
            value = value.get(key) if isinstance(value, Mapping) else None
        return bool(value)

    def suspension(self, *, suspend: bool) -> dict[str, Any]:
        """The merge patch of ``spec`` that suspends or resumes a job."""
        value: Any = suspend
        for key in reversed(self.suspend):
            value = {key: value}
        patch: dict[str, Any] = value
        return patch

    def view_stored(self, manifest: Manifest) -> JobView:
        """How pipelines see a job that an API server has admitted, even if this package rejects its spec. A
        job that does not validate and has not ended has the reason InvalidSpec.
        """
        assert self.view is not None, "asked for jobs only"
        job, wrong = self.model.read_stored(manifest)
        view = self.view(job)
        if wrong is None or view.phase.final:
            return view
        return replace(view, reason=INVALID_SPEC, message=_describe_problems(wrong))

    def rescale(self, manifest: Manifest, role_changes: Mapping[str, RoleChange]) -> SpecEdit:
        """The edit that gives a job these replicas by role. If the job is invalid already, the edit may leave
        its problems but adds none.

        Raises:
            ManifestError: the job has no such role, or the edit would make its spec invalid.
        """
        assert self.scale is not None, "asked for kinds that are scaled by their spec"
        job, wrong = self.model.read_stored(manifest)
        try:
            scaling = self.scale(job, role_changes)
        except ManifestError as error:
            raise wrong or error from error
        edited = {**manifest, "spec": apply_merge_patch(manifest["spec"], scaling.spec)}
        _, new_error = self.model.read_stored(edited)
        earlier_paths = {problem.path for problem in wrong.problems} if wrong else set()
        added = (
            [problem for problem in new_error.problems if problem.path not in earlier_paths]
            if new_error
            else []
        )
        if added:
            raise ManifestError(f"change of {self.name} {job.key}", added)
        return scaling

    def decide(self, manifest: Manifest, observed: Observed) -> Actions:
        """What to do about this object now. Never raises because of a user's manifest.

        An object that is being deleted is left to the garbage collector. A manifest that does not validate
        (the API server's schema is older or missing) gets reason InvalidSpec: a new object becomes Failed; an
        object that has a phase keeps it until its spec is corrected; an object that has ended, perhaps under
        an operator that accepted the spec, keeps its status. A job is deleted once its time to live after its
        end is over. A job that another operator runs is left alone.
        """
        if manifest["metadata"].get("deletionTimestamp"):
            return Actions()
        if self.view is not None:
            evidence = self._find_other_operator(manifest, observed)
            decision = left_alone.leave_alone(manifest, evidence, observed.now)
            if decision is not None:
                return decision
        try:
            resource = self.model.parse(manifest)
        except ManifestError as error:
            return self._rejected(manifest, error, observed.now)
        actions = self.reconcile(resource, observed)
        if isinstance(resource, Job):
            actions = self._bound_creates(resource, manifest, observed, actions)
        actions = replace(
            actions,
            create=tuple(self._complete(child, observed.settings) for child in actions.create),
            events=(*actions.events, *_outlived_pod_events(actions, observed)),
        )
        if observed.settings.network_policies and self.view is not None:
            labels = dict(part.split("=", 1) for part in self.pods_of(resource.metadata.name).split(","))
            actions = isolation.isolate_pods(resource, labels, manifest, observed, actions)
        default = observed.settings.ttl_seconds_after_finished
        if isinstance(resource, Job) and resource.ended_elsewhere:
            default = None
        left = resource.seconds_to_live(observed.now, default) if isinstance(resource, Job) else None
        if left is None:
            return actions
        if left <= 0:
            api, metadata = self.source.api, resource.metadata
            gone = Deletion(
                api.api_version,
                api.kind,
                metadata.name,
                metadata.uid,
                resource_version=metadata.resource_version,
            )
            return Actions(delete=(gone,))
        return replace(actions, requeue_after=min(left, actions.requeue_after or left))

    def _bound_creates(self, job: Job, manifest: Manifest, observed: Observed, actions: Actions) -> Actions:
        """The decision about a job without pods that come too soon; its end if the API server will never
        accept one of its pods."""
        if end := fail_refused(manifest, self.failed, self.labels[1], observed, actions):
            return end
        pace = replacements.ReplacementPace(manifest, self._place_of, observed)
        held = pace.find_held(actions)
        if held:
            actions = self.reconcile(job, replace(observed, held=held))
        return pace.count_created(actions, held)

    def _find_other_operator(self, job: Manifest, observed: Observed) -> str:
        """What another operator did for a job of which it made all pods; "" if there is no sign of one.
        Kubeflow's operator writes no phase, and may have no pod at the moment."""
        uid, status = job["metadata"].get("uid"), job.get("status") or {}
        pods = [pod for pod in observed.of(PODS.kind) if manifests.owner_of(pod).get("uid") == uid]
        if any(self.made_here(pod, observed) for pod in pods):
            return ""
        if pods:
            return f"made pod {manifests.name_of(pods[0])}"
        begun = "phase" not in status and left_alone.find_foreign_conditions(job)
        return "wrote the status" if begun and not self._ended(status) else ""

    def _complete(self, made: Manifest, settings: InstallationSettings) -> Manifest:
        """Put the installation's template below a training pod, and keep the pod from jobs of other kinds."""
        if made["kind"] != PODS.kind:
            return made
        if manifests.get_label(made, names.REPLICA_TYPE_LABEL) != names.MASTER_TYPE:
            made = manifests.put_below_pod(settings.training_template, made)
        return self._keep_from_other_jobs(made)

    def _keep_from_other_jobs(self, made: Manifest) -> Manifest:
        """Remove from a pod the labels of other kinds' jobs, which a user's template may have: those jobs'
        Services would send traffic to the pod.
        """
        labels = made["metadata"].get("labels") or {}
        if self.foreign_labels.isdisjoint(labels):
            return made
        own = {key: value for key, value in labels.items() if key not in self.foreign_labels}
        return {**made, "metadata": {**made["metadata"], "labels": own}}

    def _rejected(self, manifest: Manifest, error: ManifestError, now: datetime) -> Actions:
        status = manifest.get("status") or {}
        if ended := self._ended(status):
            return Actions(status=merge_patch(status, ended))
        message = _describe_problems(error)
        desired = {
            "phase": status.get("phase") or self.failed,
            "reason": INVALID_SPEC,
            "message": message,
            "observedGeneration": manifest["metadata"].get("generation", 0),
        }
        if "phase" not in status:
            failed = Condition(type="Failed", status="True", reason=INVALID_SPEC, message=message)
            desired["conditions"] = [c.to_dict() for c in set_condition((), failed, now)]
        patch = merge_patch(status, desired)
        return Actions(status=patch, events=(Event("Warning", INVALID_SPEC, message),) if patch else ())

    def _ended(self, status: Mapping[str, Any]) -> dict[str, str] | None:
        """How a job has ended, by its phase or its conditions; None while it has not, or if the kind is no
        job.
        """
        model = self.model.model_fields["status"].annotation
        if not (isinstance(model, type) and issubclass(model, JobStatus)):
            return None
        job_status = model.model_validate(status)
        if job_status.phase is None or not job_status.phase.final:
            return None
        return {"phase": str(job_status.phase), "reason": job_status.reason, "message": job_status.message}


def _outlived_pod_events(actions: Actions, observed: Observed) -> list[Event]:
    """An Event for each pod that is deleted because a container outlives the job's own."""
    deleted = {deletion.name for deletion in actions.delete if deletion.kind == PODS.kind}
    pods = [pod for pod in observed.of(PODS.kind) if manifests.name_of(pod) in deleted] if deleted else []
    reasons = [pod_state.describe_outliving(pod) for pod in pods]
    return [Event("Normal", "OwnContainerEnded", reason) for reason in reasons if reason]


def _describe_problems(error: ManifestError) -> str:
    return "; ".join(str(problem) for problem in error.problems)[:4096]


def job_by_name(manifest: Manifest) -> str:
    """The name of the job that a job's own object belongs to: its own name."""
    name: str = manifest["metadata"]["name"]
    return name


def job_by_label(key: str) -> Callable[[Manifest], str]:
    """A function that reads the name of an object's job from a label."""

    def job_of(manifest: Manifest) -> str:
        labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
        return labels.get(key, "")

    return job_of


def made_with_label(key: str) -> Callable[[Manifest, Observed], bool]:
    """`Kind.made_here` for a kind whose pods have a label that no other operator writes."""
    return lambda pod, _observed: bool(manifests.get_label(pod, key))


def job_source(
    api: ApiResource,
    *verbs: str,
    keep: Callable[[Manifest], dict[str, Any]] = cache_fields.keep_whole,
    silent: tuple[str, ...] = (),
) -> Source:
    """The source of a job kind's own objects.

    Args:
        api: the kind.
        verbs: the controller's verbs on them besides list and watch, as ``delete``.
        keep: see `Source`.
        silent: see `Source`.
    """
    # finalizers: children have blockOwnerDeletion, which the admission plugin
    # OwnerReferencesPermissionEnforcement allows only to those who may update the owner's finalizers.
    rights = (("", (*WATCH_VERBS, *verbs)), ("status", ("patch",)), ("finalizers", ("update",)))
    return Source(api, job_by_name, rights=rights, keep=keep, silent=silent)


JOB_NETWORK_POLICIES = Source(
    NETWORK_POLICIES,
    job_by_label(names.ISOLATES_LABEL),
    names.ISOLATES_LABEL,
    (("", CREATE_VERBS),),
    cache_fields.keep_head,
)
"""The policies that `edl_workflows.core.jobs.isolation` makes for jobs of every kind."""
