"""The options of an installation."""

import re
from dataclasses import dataclass
from enum import StrEnum

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.kinds import choose_kinds

_NAMESPACE = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SECRET = re.compile(r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?\Z")

NAMESPACE = "edl-system"
"""Where the controller lives unless told otherwise."""


class PullPolicy(StrEnum):
    """When a node asks the registry for an image; Kubernetes decides by the tag where none is given."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class InstallPart(StrEnum):
    """A component that may be installed beside the controller."""

    ARGO_AGENT = "argo-agent"
    DI_SERVER = "di-server"
    BRAIN = "brain"


@dataclass(frozen=True)
class InstallOptions:
    """One installation.

    Attributes:
        image: of the controller, of the agent, and of masters whose job names none.
        namespace: where the controller lives. It is made, and admits restricted pods only.
        jobs_namespace: the one namespace whose jobs are reconciled; it must exist. "" for all namespaces.
        kinds: names of the kinds that are reconciled; none for all. Definitions and the controller's rights
            follow them.
        replicas: of the controller and of the agent; one works at a time, the others take over.
        pull_policy: of the image; None leaves it to Kubernetes.
        pull_secrets: names of Secrets with the registry's credentials. They must exist in the controller's
            namespace, and in each namespace with jobs.
        parts: what to install beside the controller.
        autoscaler: whether the controller changes the replicas of elastic jobs.
        brain_database_secret: name of a Secret in the controller's namespace whose key ``url`` has the URL of
            Brain's PostgreSQL database; "" for an SQLite database on a volume.
        network_policies: whether the controller makes a NetworkPolicy for each job.
        admission_policies: whether the API server refuses what RBAC can't
            (`edl_workflows.install.admission`).
        master_accounts: names of the ServiceAccounts that masters have by their template, in place of one of
            each job's own.

    Raises:
        InvalidError: a value can't be right.
    """

    image: str
    namespace: str = NAMESPACE
    jobs_namespace: str = ""
    kinds: tuple[str, ...] = ()
    replicas: int = 2
    pull_policy: PullPolicy | None = None
    pull_secrets: tuple[str, ...] = ()
    parts: frozenset[InstallPart] = frozenset()
    autoscaler: bool = False
    brain_database_secret: str = ""
    network_policies: bool = True
    admission_policies: bool = True
    master_accounts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_names()
        if self.replicas < 1:
            raise InvalidError(f"{self.replicas} replicas: at least one is needed")
        choose_kinds(self.kinds)
        if self.autoscaler and self.jobs_namespace:
            raise InvalidError(
                "the autoscaler plans with the nodes and pods of the whole cluster: "
                "install for all namespaces, or without it"
            )
        for part, name, kind in (
            (InstallPart.DI_SERVER, "the DI server", "DIJob"),
            (InstallPart.BRAIN, "Brain", "ElasticJob"),
        ):
            if part in self.parts and self.kinds and kind not in self.kinds:
                raise InvalidError(f"{name} serves {kind}s: add {kind} to the kinds, or leave {name} out")
        if self.brain_database_secret and InstallPart.BRAIN not in self.parts:
            raise InvalidError("a database for Brain without Brain: install it with `--with brain`")

    def _check_names(self) -> None:
        if not self.image or any(character.isspace() for character in self.image):
            raise InvalidError(f"image {self.image!r}: name the image that Containerfile makes")
        for option, value in (("namespace", self.namespace), ("jobs namespace", self.jobs_namespace)):
            if not _NAMESPACE.match(value) and (value or option == "namespace"):
                raise InvalidError(
                    f"{option} {value!r} is no name of a namespace: lower-case letters, digits and '-'"
                )
        if self.jobs_namespace == self.namespace:
            raise InvalidError(
                f"jobs can't live in the controller's own namespace {self.namespace!r}, which admits "
                "restricted pods only: choose another one for them"
            )
        for account in self.master_accounts:
            if not _SECRET.match(account):
                raise InvalidError(f"master account {account!r} is no name of a ServiceAccount")
        secrets = [("pull secret", secret) for secret in self.pull_secrets]
        if self.brain_database_secret:
            secrets.append(("brain database secret", self.brain_database_secret))
        for option, secret in secrets:
            if not _SECRET.match(secret):
                raise InvalidError(f"{option} {secret!r} is no name of a Secret")

    @property
    def rows(self) -> tuple[Kind, ...]:
        """The kinds that are reconciled."""
        return choose_kinds(self.kinds)
