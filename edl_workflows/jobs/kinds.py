"""The one registry of kinds: a new kind is one folder and one row here.

The controller starts a LIST+WATCH for every row and every `Source`, groups what it sees by (namespace, job name) and calls
`Kind.decide` for each object of a group in which something changed. Stages and the CLI take `Kind.view` from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edl_workflows.exceptions import InvalidError, ManifestError
from edl_workflows.jobs import api, kept, names
from edl_workflows.jobs.actions import Actions, Event, Manifest, Observed, Scaling, Wanted, merge_patch
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.elastic_job import model as elastic_job
from edl_workflows.jobs.elastic_job.crd import OPTIONS as ELASTIC_JOB_CRD
from edl_workflows.jobs.elastic_job.reconcile import reconcile as reconcile_elastic_job
from edl_workflows.jobs.elastic_job.view import view as view_elastic_job
from edl_workflows.jobs.objects import Condition, Resource, set_condition
from edl_workflows.jobs.scale_plan import model as scale_plan
from edl_workflows.jobs.scale_plan.crd import OPTIONS as SCALE_PLAN_CRD
from edl_workflows.jobs.scale_plan.reconcile import reconcile as reconcile_scale_plan
from edl_workflows.jobs.schema import CrdOptions
from edl_workflows.jobs.tf_job import model as tf_job
from edl_workflows.jobs.tf_job import pods as tf_job_pods
from edl_workflows.jobs.tf_job.crd import OPTIONS as TF_JOB_CRD
from edl_workflows.jobs.tf_job.reconcile import reconcile as reconcile_tf_job
from edl_workflows.jobs.tf_job.scale import scale as scale_tf_job
from edl_workflows.jobs.tf_job.view import view as view_tf_job
from edl_workflows.jobs.view import JobView

_WATCHED = ("list", "watch")
_MADE = (*_WATCHED, "create")


@dataclass(frozen=True)
class Source:
    """A resource type to watch.

    Attributes:
        job_of: name of the job (in the same namespace) that an object belongs to; "" for none.
        selector: label selector of the LIST and the WATCH: "" for all, or one ``key`` or ``key=value``. Kinds that make
            children of one resource type under labels of their own have a source each.
        rights: subresource ("" for the object itself) → the verbs that the controller uses on it; its role is made from
            these (`edl_workflows.install.rbac`).
        keep: what a cache keeps of an object; decisions see no more.
    """

    api: ApiResource
    job_of: Callable[[Manifest], str]
    selector: str = ""
    rights: tuple[tuple[str, tuple[str, ...]], ...] = (("", _WATCHED),)
    keep: Callable[[Manifest], dict[str, Any]] = kept.whole

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
        observes: what else its `reconcile` sees; a change there makes the job's objects of this kind be decided anew.
        reconcile: the pure state machine, called through `decide`.
        crd: what its CustomResourceDefinition has beside the schema.
        view: how pipelines see an object; None for a kind that is no job.
        makes: what its `reconcile` creates and nobody watches, since its definition need not be installed.
        labels: of a job's pods: the job's name, the role, the index.
        suspend: path of the switch below ``spec``.
        scale: for kinds that are scaled by their spec: the edit that asks for replicas by role; None for one that is scaled
            by ScalePlans.
    """

    source: Source
    model: type[Resource]
    reconcile: Callable[[Any, Observed], Actions]
    observes: tuple[Source, ...]
    crd: CrdOptions
    view: Callable[[Any], JobView] | None = None
    makes: tuple[Source, ...] = ()
    labels: tuple[str, str, str] = (names.JOB_LABEL, names.REPLICA_TYPE_LABEL, names.REPLICA_INDEX_LABEL)
    suspend: tuple[str, ...] = ("suspend",)
    scale: Callable[[Any, Mapping[str, Wanted]], Scaling] | None = None

    @property
    def name(self) -> str:
        """The ``kind`` of its manifests."""
        return self.source.api.kind

    def pods_of(self, job: str) -> str:
        """Label selector of a job's pods."""
        return f"{self.labels[0]}={job}"

    def node_of(self, pod: Manifest) -> str:
        """What people call a job's pod: its role and index, as ``worker-0``."""
        labels = pod["metadata"].get("labels") or {}
        return f"{labels.get(self.labels[1], '')}-{labels.get(self.labels[2], '')}"

    def suspended(self, manifest: Manifest) -> bool:
        """Whether a job's spec says that it shall have no pods."""
        value: Any = manifest["spec"]
        for key in self.suspend:
            value = value.get(key) if isinstance(value, Mapping) else None
        return bool(value)

    def suspension(self, *, suspend: bool) -> dict[str, Any]:
        """The merge patch of ``spec`` that says so, or that it shall run."""
        value: Any = suspend
        for key in reversed(self.suspend):
            value = {key: value}
        found: dict[str, Any] = value
        return found

    def decide(self, manifest: Manifest, observed: Observed) -> Actions:
        """What to do about this object now. Never raises for what a user wrote.

        An object that is being deleted is left to the garbage collector. A manifest that does not validate (the API
        server's schema is older or missing) gets reason InvalidSpec: a new object is Failed, one that already has a phase
        keeps it until its spec is corrected.
        """
        if manifest["metadata"].get("deletionTimestamp"):
            return Actions()
        try:
            resource = self.model.parse(manifest)
        except ManifestError as error:
            return _rejected(manifest, error, observed.now)
        return self.reconcile(resource, observed)


def _rejected(manifest: Manifest, error: ManifestError, now: datetime) -> Actions:
    status = manifest.get("status") or {}
    message = "; ".join(str(problem) for problem in error.problems)[:4096]
    wanted = {
        "phase": status.get("phase") or "Failed",
        "reason": "InvalidSpec",
        "message": message,
        "observedGeneration": manifest["metadata"].get("generation", 0),
    }
    if "phase" not in status:
        failed = Condition(type="Failed", status="True", reason="InvalidSpec", message=message)
        wanted["conditions"] = [c.to_dict() for c in set_condition((), failed, now)]
    patch = merge_patch(status, wanted)
    return Actions(status=patch, events=(Event("Warning", "InvalidSpec", message),) if patch else ())


def _by_label(manifest: Manifest) -> str:
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels.get(names.JOB_LABEL, "")


def _by_name(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name


def _by_owner_job(manifest: Manifest) -> str:
    # As ScalePlan.job, but for manifests that may not validate.
    labels = manifest["metadata"].get("labels") or {}
    owner = (manifest.get("spec") or {}).get("ownerJob") or ""
    return owner or labels.get(names.JOB_LABEL, "") or labels.get(names.LEGACY_JOB_LABEL, "")


def _owned(
    resource: ApiResource, *verbs: str, keep: Callable[[Manifest], dict[str, Any]] = kept.head
) -> Source:
    return Source(resource, _by_label, names.JOB_LABEL, (("", (*_MADE, *verbs)),), keep)


def _by_tf_job_label(manifest: Manifest) -> str:
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels.get(tf_job_pods.JOB_LABEL, "")


def _tf_job_owned(resource: ApiResource, keep: Callable[[Manifest], dict[str, Any]]) -> Source:
    selector = f"{tf_job_pods.OPERATOR_LABEL}={tf_job_pods.OPERATOR}"
    return Source(resource, _by_tf_job_label, selector, (("", (*_MADE, "delete")),), keep)


ELASTIC_JOBS = Source(
    api.ELASTIC_JOBS,
    _by_name,
    # finalizers: children block their owner's deletion, which OwnerReferencesPermissionEnforcement lets only those say
    # who may finalize it.
    rights=(("", _WATCHED), ("status", ("patch",)), ("finalizers", ("update",))),
)
SCALE_PLANS = Source(
    api.SCALE_PLANS,
    _by_owner_job,
    rights=(("", (*_MADE, "patch", "delete")), ("status", ("patch",))),
)
PODS = _owned(api.PODS, "delete", keep=kept.pod)
SERVICES = _owned(api.SERVICES, "delete")
SECRETS = _owned(api.SECRETS)
CONFIG_MAPS = _owned(api.CONFIG_MAPS)
SERVICE_ACCOUNTS = _owned(api.SERVICE_ACCOUNTS)
ROLES = _owned(api.ROLES)
ROLE_BINDINGS = _owned(api.ROLE_BINDINGS)
TF_JOBS = Source(
    api.TF_JOBS,
    _by_name,
    rights=(("", (*_WATCHED, "delete")), ("status", ("patch",)), ("finalizers", ("update",))),
)
POD_GROUPS = Source(
    api.POD_GROUPS,
    _by_tf_job_label,
    rights=(("", ("list", "create")),),
)

KINDS: tuple[Kind, ...] = (
    Kind(
        source=ELASTIC_JOBS,
        model=elastic_job.ElasticJob,
        reconcile=reconcile_elastic_job,
        observes=(PODS, SERVICES, SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, SCALE_PLANS),
        crd=ELASTIC_JOB_CRD,
        view=view_elastic_job,
    ),
    Kind(
        source=SCALE_PLANS,
        model=scale_plan.ScalePlan,
        reconcile=reconcile_scale_plan,
        observes=(ELASTIC_JOBS, PODS, SCALE_PLANS),
        crd=SCALE_PLAN_CRD,
    ),
    Kind(
        source=TF_JOBS,
        model=tf_job.TFJob,
        reconcile=reconcile_tf_job,
        observes=(_tf_job_owned(api.PODS, kept.pod), _tf_job_owned(api.SERVICES, kept.head)),
        crd=TF_JOB_CRD,
        view=view_tf_job,
        makes=(POD_GROUPS,),
        labels=(tf_job_pods.JOB_LABEL, tf_job_pods.TYPE_LABEL, tf_job_pods.INDEX_LABEL),
        suspend=("runPolicy", "suspend"),
        scale=scale_tf_job,
    ),
)


def sources() -> tuple[Source, ...]:
    """Every resource type that a controller watches, each once."""
    return tuple(dict.fromkeys(s for kind in KINDS for s in (kind.source, *kind.observes)))


def touched() -> tuple[Source, ...]:
    """Every resource type that a controller needs rights on."""
    return (*sources(), *(made for kind in KINDS for made in kind.makes))


def kind_of(name: str) -> Kind:
    """The row of a ``kind``.

    Raises:
        InvalidError: this package has no such kind.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise InvalidError(f"{name!r} is no kind of this package; known are {', '.join(k.name for k in KINDS)}")
