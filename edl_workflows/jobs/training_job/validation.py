"""What is wrong with a TrainingJob beyond its single fields. Pure functions that return problems; the models
raise them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import validation
from edl_workflows.jobs.objects import Metadata
from edl_workflows.jobs.training_job.types import PORT, Launcher

if TYPE_CHECKING:
    from edl_workflows.jobs.training_job.model import PserverSpec, TrainerSpec, TrainingJobSpec

MAX_NAME = 63 - len("-trainer-9999")
"""A pod's service is named after the job, its role and its index, and holds 63 characters."""

_ENTRYPOINT = "launcher sh needs it: what the shell runs in this role's container"
_SCRIPT = "is used with launcher sh only; paddle_k8s knows its own command"
_LAST_PORT = (
    f"(self.port == 0 ? {PORT} : self.port) + (self.ports_num == 0 ? 1 : self.ports_num) + "
    "(self.ports_num_for_sparse == 0 ? 1 : self.ports_num_for_sparse) - 1"
)
_SPELLINGS = (
    ("VolumeMounts", "volumeMounts"),
    ("NodeSelector", "nodeSelector"),
    ("host_network", "hostNetwork"),
)


def _has(*fields: str) -> str:
    return " && ".join(f"has(self.{field}) && self.{field}.size() > 0" for field in fields)


def _entrypoint(role: str) -> str:
    return f"has(self.{role}.entrypoint) && self.{role}.entrypoint != ''"


RULES: tuple[tuple[str, str], ...] = (
    (f"self.launcher != 'sh' || {_entrypoint('trainer')}", f"trainer.entrypoint: {_ENTRYPOINT}"),
    (
        f"self.launcher != 'sh' || !has(self.pserver) || {_entrypoint('pserver')}",
        f"pserver.entrypoint: {_ENTRYPOINT}",
    ),
    (
        f"self.launcher != 'sh' || !(has(self.master) || self.fault_tolerant) || has(self.master) && {_entrypoint('master')}",
        f"master.entrypoint: {_ENTRYPOINT}",
    ),
    *(
        (
            f"self.launcher == 'sh' || !has(self.{role}) || !({_entrypoint(role)})",
            f"{role}.entrypoint: {_SCRIPT}",
        )
        for role in ("master", "pserver")
    ),
    (f"{_LAST_PORT} <= 65535", "port: the ports end above 65535; choose a lower one, or fewer"),
    (
        "!(has(self.passes) && has(self.trainer.passes))",
        "passes: stands in trainer.passes, too; keep one",
    ),
    *((f"!({_has(*pair)})", f"{pair[1]}: stands in {pair[0]}, too; keep one") for pair in _SPELLINGS[:2]),
    ("!(self.host_network && self.hostNetwork)", "hostNetwork: stands in host_network, too; keep one"),
    (
        "!has(self.mountPath) || self.mountPath == '' || self.mountPath.startsWith('/')",
        "mountPath: must be an absolute path",
    ),
)
"""The same in CEL, for the API server."""


def name(metadata: Metadata) -> list[Problem]:
    """The job's name becomes part of its services' names and a label's value."""
    return validation.job_name(metadata, MAX_NAME)


def parallelism(trainer: "TrainerSpec") -> list[Problem]:
    """The number of trainers that a new job wants is within its bounds."""
    low, high = trainer.bounds
    if trainer.parallelism is None or low <= trainer.parallelism <= high:
        return []
    message = f"is {trainer.parallelism}; must be from {low} (min-instance) to {high} (max-instance)"
    return [Problem("spec.trainer.parallelism", message)]


def spec(job: "TrainingJobSpec") -> list[Problem]:
    """Fields that go together."""
    return [
        *_bounds("trainer", job.trainer),
        *(_bounds("pserver", job.pserver) if job.pserver is not None else ()),
        *_entrypoints(job),
        *_ports(job),
        *_doubled(job),
        *_volumes(job),
        *_secrets(job),
        *(
            (
                Problem(f"template.{p.path}", p.message)
                for p in validation.template(job.template, partial=True)
            )
            if job.template
            else ()
        ),
    ]


def _bounds(role: str, spec: "TrainerSpec | PserverSpec") -> Iterator[Problem]:
    if spec.max_instance is not None and spec.max_instance < spec.min_instance:
        message = f"is {spec.max_instance}, less than min-instance ({spec.min_instance})"
        yield Problem(f"{role}.max-instance", message)


def _entrypoints(job: "TrainingJobSpec") -> Iterator[Problem]:
    given = {
        "master": job.master.entrypoint if job.master else "",
        "pserver": job.pserver.entrypoint if job.pserver else "",
        "trainer": job.trainer.entrypoint,
    }
    for role in job.counts:
        if job.launcher is Launcher.SH and not given[role]:
            yield Problem(f"{role}.entrypoint", _ENTRYPOINT)
        if job.launcher is Launcher.PADDLE_K8S and role.serves and given[role]:
            yield Problem(f"{role}.entrypoint", _SCRIPT)


def _ports(job: "TrainingJobSpec") -> Iterator[Problem]:
    if job.ports[-1] > 65535:
        yield Problem(
            "port", f"the ports end with {job.ports[-1]}, above 65535; choose a lower one, or fewer"
        )


def _doubled(job: "TrainingJobSpec") -> Iterator[Problem]:
    if job.passes is not None and job.trainer.passes is not None:
        yield Problem("passes", "stands in trainer.passes, too; keep one")
    given = (
        (job.volume_mounts, job.volume_mounts_lower),
        (job.node_selector, job.node_selector_lower),
        (job.host_network, job.host_network_lower),
    )
    for (first, second), both in zip(_SPELLINGS, given, strict=True):
        if all(both):
            yield Problem(second, f"stands in {first}, too; keep one")


def _volumes(job: "TrainingJobSpec") -> Iterator[Problem]:
    if job.mount_path and not job.mount_path.startswith("/"):
        yield Problem("mountPath", f"{job.mount_path!r} must be an absolute path")
    yield from _named("volumes", job.volumes)
    known = {volume.get("name") for volume in job.volumes}
    for key, mounts in (("VolumeMounts", job.volume_mounts), ("volumeMounts", job.volume_mounts_lower)):
        for index, mount in enumerate(mounts):
            if not isinstance(mount.get("mountPath"), str) or not mount["mountPath"]:
                yield Problem(f"{key}.{index}.mountPath", "required field is missing")
            if mount.get("name") not in known:
                yield Problem(f"{key}.{index}.name", f"{mount.get('name')!r} is none of the job's volumes")


def _secrets(job: "TrainingJobSpec") -> Iterator[Problem]:
    yield from _named("imagePullSecrets", job.image_pull_secrets)


def _named(path: str, items: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = item.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(f"{path}.{index}.name", "required field is missing")
        elif name in seen:
            yield Problem(f"{path}.{index}.name", f"{name!r} stands here twice")
        else:
            seen.add(name)
