"""Typed models of the fields of core/v1 Pods and Services that the scheduler, the network and the runner use.

The API server has validated the objects and set their defaults. Fields that the runner does not support are
modelled only as far as needed to reject them (`edl_workflows.local.runner.support`).
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from edl_workflows.core.kubernetes.objects import parse_quantity

_NUMBER = re.compile(r"[0-9]{1,5}\Z")


class PodPart(BaseModel):
    """Base class: immutable, with aliases in camelCase. Unknown fields are ignored.

    Quantities may be written as numbers, which are converted to strings.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        coerce_numbers_to_str=True,
    )


class PodOwner(PodPart):
    uid: str = ""
    controller: bool = False


class ObjectMetadata(PodPart):
    name: str
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[PodOwner] = Field(default_factory=list)

    @property
    def controller_uid(self) -> str:
        """UID of the controlling owner; empty if there is none."""
        return next((owner.uid for owner in self.owner_references if owner.controller), "")


class ContainerResources(PodPart):
    requests: dict[str, str] = Field(default_factory=dict)
    limits: dict[str, str] = Field(default_factory=dict)

    def request(self, resource: str) -> float:
        """The request, or if it is missing the limit, as in Kubernetes."""
        return parse_quantity(self.requests.get(resource) or self.limits.get(resource) or "0")

    def limit(self, resource: str) -> float | None:
        text = self.limits.get(resource)
        return None if text is None else parse_quantity(text)


class KeyRef(PodPart):
    name: str = ""
    key: str
    optional: bool = False


class FieldRef(PodPart):
    """A field of the pod, such as ``metadata.name`` or ``metadata.labels['app']``."""

    field_path: str


class ResourceFieldRef(PodPart):
    """A container's request or limit, such as ``limits.cpu``, divided and rounded up."""

    resource: str
    container_name: str = ""
    divisor: str = "1"


class ValueFrom(PodPart):
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class ContainerVariable(PodPart):
    name: str
    value: str = ""
    value_from: ValueFrom | None = None


class ConfigObjectRef(PodPart):
    name: str = ""
    optional: bool = False


class EnvFrom(PodPart):
    """Every key of a ConfigMap or Secret as a variable."""

    prefix: str = ""
    config_map_ref: ConfigObjectRef | None = None
    secret_ref: ConfigObjectRef | None = None


class ContainerPort(PodPart):
    container_port: int
    name: str = ""
    protocol: str = "TCP"


class ExecAction(PodPart):
    """A command, run in the container's environment."""

    command: list[str] = Field(default_factory=list)


class HttpHeader(PodPart):
    name: str
    value: str


class HttpGetAction(PodPart):
    """An HTTP request that succeeds with a status of 200 to 399."""

    port: int | str
    path: str = "/"
    scheme: str = "HTTP"
    http_headers: list[HttpHeader] = Field(default_factory=list)


class TcpSocketAction(PodPart):
    """A check that succeeds if a TCP connection is accepted."""

    port: int | str


class SleepAction(PodPart):
    seconds: int


class Handler(PodPart):
    """The action of a probe or hook; exactly one is set."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    sleep: SleepAction | None = None
    grpc: dict[str, Any] | None = None


class Probe(Handler):
    """A handler that is repeated. Times are in seconds."""

    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3


class Lifecycle(PodPart):
    post_start: Handler | None = None
    pre_stop: Handler | None = None


class VolumeMount(PodPart):
    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class SecurityContext(PodPart):
    """The supported fields; others are refused (`runner.support`)."""

    allow_privilege_escalation: bool | None = None


class Container(PodPart):
    """A container. It runs programs that are installed on the machine."""

    name: str
    image: str = ""
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    working_dir: str = ""
    env: list[ContainerVariable] = Field(default_factory=list)
    env_from: list[EnvFrom] = Field(default_factory=list)
    ports: list[ContainerPort] = Field(default_factory=list)
    resources: ContainerResources = Field(default_factory=ContainerResources)
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle = Field(default_factory=Lifecycle)
    volume_mounts: list[VolumeMount] = Field(default_factory=list)
    security_context: SecurityContext = Field(default_factory=SecurityContext)
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"


class ReadinessGate(PodPart):
    """A condition that other components set and that the pod's Ready condition requires."""

    condition_type: str


class PodSpec(PodPart):
    containers: list[Container]
    init_containers: list[Container] = Field(default_factory=list)
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    node_name: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Any] = Field(default_factory=dict)
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str = ""
    service_account_name: str = "default"
    automount_service_account_token: bool = True
    hostname: str = ""
    subdomain: str = ""
    enable_service_links: bool = True
    volumes: list[dict[str, Any]] = Field(default_factory=list)
    readiness_gates: list[ReadinessGate] = Field(default_factory=list)
    scheduling_gates: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def all_containers(self) -> list[Container]:
        """Init containers, then containers."""
        return [*self.init_containers, *self.containers]


class Pod(PodPart):
    """A pod as read from the API. Its status is not parsed."""

    metadata: ObjectMetadata
    spec: PodSpec
    status: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "Pending")

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        conditions = self.status.get("conditions") or ()
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def config_references(pod: Pod) -> frozenset[str]:
    """The names of the ConfigMaps and Secrets in a pod's variables and volumes."""
    names: list[str] = []
    for container in pod.spec.all_containers:
        for source in container.env_from:
            names += [reference.name for reference in (source.config_map_ref, source.secret_ref) if reference]
        values = [variable.value_from for variable in container.env if variable.value_from]
        names += [
            reference.name
            for value in values
            for reference in (value.config_map_key_ref, value.secret_key_ref)
            if reference
        ]
    for volume in pod.spec.volumes:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            config, secret = source.get("configMap") or {}, source.get("secret") or {}
            names += [config.get("name", ""), secret.get("secretName") or secret.get("name", "")]
    return frozenset(filter(None, names))


class ServicePort(PodPart):
    port: int
    target_port: int | str | None = None
    name: str = ""
    protocol: str = "TCP"


class ServiceSpec(PodPart):
    ports: list[ServicePort] = Field(default_factory=list)
    selector: dict[str, str] = Field(default_factory=dict)
    type: str = "ClusterIP"
    cluster_ip: str = Field(default="", alias="clusterIP")
    publish_not_ready_addresses: bool = False


class Service(PodPart):
    metadata: ObjectMetadata
    spec: ServiceSpec = Field(default_factory=ServiceSpec)

    def selects(self, pod: Pod) -> bool:
        selector = self.spec.selector
        return (
            bool(selector)
            and self.metadata.namespace == pod.metadata.namespace
            and selector.items() <= pod.metadata.labels.items()
        )


def target_port(pod: Pod, port: ServicePort) -> int | None:
    """The container port of this pod that a Service's port targets; None if the pod has no port of that
    name."""
    target = port.port if port.target_port is None else port.target_port
    return named_port(pod.spec.containers, target)


def named_port(containers: list[Container], port: int | str) -> int | None:
    """The number of a port that is given by number or by the name that a container declares."""
    if isinstance(port, int) or _NUMBER.match(port):
        return int(port)
    named: Mapping[str, int] = {
        declared_port.name: declared_port.container_port
        for c in containers
        for declared_port in c.ports
        if declared_port.name
    }
    return named.get(port)
