"""The options of an installation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from edl_workflows.core.exceptions import InvalidError, ManifestError
from edl_workflows.core.jobs import validation
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection, check_namespace, is_namespace
from edl_workflows.core.partitions import check_partitions
from edl_workflows.core.write_budget import WRITES_PER_SECOND

_SECRET = re.compile(r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?\Z")

MAX_REPLICAS = 9
"""Most replicas without partitions. More than two or three only wait."""
NAMESPACE = "edl-system"
"""Default namespace of the controller."""


class PullPolicy(StrEnum):
    """When a node pulls an image. If no policy is given, Kubernetes decides by the tag."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class InstallPart(StrEnum):
    """A component that can be installed in addition to the controller."""

    ARGO_AGENT = "argo-agent"
    DI_SERVER = "di-server"
    BRAIN = "brain"


class CrdMode(StrEnum):
    """Whether the manifests contain what all installations of a cluster share: definitions, the roles of
    people and pipelines, and priority levels."""

    WITH = "with"
    WITHOUT = "without"
    ONLY = "only"


@dataclass(frozen=True)
class InstallOptions:
    """One installation.

    Attributes:
        image: image of the controller, of Argo's agent, and of masters whose job does not name one; "" if
            `crds` is ONLY.
        namespace: namespace of the controller. It is created, and admits only pods that meet the Pod Security
            Standard "restricted".
        jobs_namespaces: whose jobs are reconciled. Those that are named must exist.
        kinds: names of the kinds that are reconciled, see `choose_kinds`. They determine the definitions and
            the permissions of the controller.
        replicas: replicas of the controller and of Argo's agent. Only one works at a time; another one takes
            over if it fails.
        pull_policy: pull policy of the image; None for the default of Kubernetes.
        pull_secrets: names of Secrets with credentials for the registry. They must exist in the namespace of
            the controller and in each namespace with jobs.
        parts: components to install in addition to the controller.
        autoscaler: whether the controller may change the replicas of elastic jobs.
        brain_database_secret: name of a Secret in the controller's namespace whose key ``url`` contains the
            URL of the Brain's PostgreSQL database; "" for an SQLite database on a volume.
        network_policies: whether the controller creates a NetworkPolicy for each job.
        monitoring: whether to install rules, dashboards and monitors
            (`edl_workflows.pipelines.install.monitoring`). The cluster must have the definitions of
            Prometheus' operator.
        prometheus_namespace, prometheus_labels: see `InstallationSettings`.
        admission_policies: whether to install admission policies
            (`edl_workflows.pipelines.install.admission`).
        flow_schemas: whether to install FlowSchemas (`edl_workflows.pipelines.install.flow_control`).
        master_accounts: names of ServiceAccounts that pod templates of masters set, in place of an account
            for each job.
        master_cpu_limit, force_delete_lost_pods: see `InstallationSettings`.
        pod_template: a partial PodTemplateSpec over the pods of the controller and of the other components:
            resources, placement, priority, labels.
        progress_writes_per_second: see `InstallationSettings`; None for its default.
        master_template, training_template, ttl_seconds_after_finished: see `InstallationSettings`. The
            template of masters has the settings of the image and a restricted security context besides.
        crds: see `CrdMode`.
        other_operators: ServiceAccounts (``namespace:name``) of other operators of these kinds. The admission
            policies let them go on with the jobs that they run.
        controller_partitions: replicas of the controller that share the jobs; besides them, `replicas` - 1
            wait.

    Raises:
        InvalidError: a value is invalid.
    """

    image: str
    namespace: str = NAMESPACE
    jobs_namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)
    kinds: tuple[str, ...] = ()
    replicas: int = 2
    pull_policy: PullPolicy | None = None
    pull_secrets: tuple[str, ...] = ()
    parts: frozenset[InstallPart] = frozenset()
    autoscaler: bool = False
    brain_database_secret: str = ""
    network_policies: bool = True
    monitoring: bool = False
    prometheus_namespace: str = ""
    prometheus_labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    admission_policies: bool = True
    flow_schemas: bool = True
    master_accounts: tuple[str, ...] = ()
    master_cpu_limit: str = ""
    progress_writes_per_second: float | None = None
    force_delete_lost_pods: bool = False
    pod_template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    master_template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    training_template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ttl_seconds_after_finished: int | None = None
    crds: CrdMode = CrdMode.WITH
    other_operators: tuple[str, ...] = ()
    controller_partitions: int = 1

    def __post_init__(self) -> None:
        self._check_names()
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise InvalidError(f"{self.replicas} replicas: choose 1 to {MAX_REPLICAS}")
        check_partitions(self.controller_partitions)
        self._check_settings()
        if self.autoscaler and self.jobs_namespaces.names:
            raise InvalidError(
                "the autoscaler needs the nodes and pods of the whole cluster: install for all namespaces or "
                "for those with a label, or without the autoscaler"
            )
        self._check_parts()

    def _check_settings(self) -> None:
        writes = self.progress_writes_per_second
        InstallationSettings(
            master_cpu_limit=self.master_cpu_limit,
            progress_writes_per_second=WRITES_PER_SECOND if writes is None else writes,
            ttl_seconds_after_finished=self.ttl_seconds_after_finished,
            prometheus_namespace=self.prometheus_namespace,
            prometheus_labels=self.prometheus_labels,
        )
        templates = {
            "pod template": self.pod_template,
            "pod template of masters": self.master_template,
            "pod template of training pods": self.training_template,
        }
        for title, template in templates.items():
            if problems := list(validation.template_problems(template, partial=True)) if template else []:
                raise ManifestError(title, problems)

    def _check_parts(self) -> None:
        job_kinds = {kind.name for kind in self.job_kinds}
        for part, name, kind in (
            (InstallPart.DI_SERVER, "the DI server", "DIJob"),
            (InstallPart.BRAIN, "Brain", "ElasticJob"),
        ):
            if part in self.parts and kind not in job_kinds:
                raise InvalidError(f"{name} is for {kind}s: add {kind} to the kinds, or leave {name} out")
        if self.brain_database_secret and InstallPart.BRAIN not in self.parts:
            raise InvalidError("a database for the Brain, but no Brain: add `--with brain`")

    def _check_names(self) -> None:
        image_missing = not self.image and self.crds is not CrdMode.ONLY
        if image_missing or any(character.isspace() for character in self.image):
            raise InvalidError(f"image {self.image!r}: name an image that was built from Containerfile")
        check_namespace("namespace", self.namespace)
        if self.namespace in self.jobs_namespaces.names:
            raise InvalidError(
                f"jobs can't run in the controller's own namespace {self.namespace!r}, which admits "
                "restricted pods only: choose another namespace for them"
            )
        self._check_accounts()

    def _check_accounts(self) -> None:
        for account in self.master_accounts:
            if not _SECRET.match(account):
                raise InvalidError(f"master account {account!r} is not a valid name of a ServiceAccount")
        for account in self.other_operators:
            where, _, name = account.partition(":")
            if not (is_namespace(where) and _SECRET.match(name)):
                raise InvalidError(f"other operator {account!r}: name its ServiceAccount as namespace:name")
        secrets = [("pull secret", secret) for secret in self.pull_secrets]
        if self.brain_database_secret:
            secrets.append(("brain database secret", self.brain_database_secret))
        for option, secret in secrets:
            if not _SECRET.match(secret):
                raise InvalidError(f"{option} {secret!r} is not a valid name of a Secret")

    def name_in_cluster(self, name: str) -> str:
        """The name of an object without a namespace, such that no two installations clash. A namespace's name
        has no dot."""
        selection = self.jobs_namespaces
        if selection.is_everything:
            return name
        return f"{name}-{selection.names[0]}" if len(selection.names) == 1 else f"{name}.{self.namespace}"

    @property
    def job_kinds(self) -> tuple[Kind, ...]:
        """The kinds that are reconciled."""
        return choose_kinds(self.kinds)
