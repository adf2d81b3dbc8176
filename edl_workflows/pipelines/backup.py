"""Backups of jobs: their manifests as they can be created again, in this cluster or in another one.

A backup has what people and pipelines wrote: the jobs, and the programs that travel with them. Checkpoints
stay in their folders; a restored job continues from the newest one of its folder.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.exceptions import AlreadyExistsError, ConflictError, InvalidError, NotFoundError
from edl_workflows.core.jobs.elastic_job.program import PROGRAM_KEY, TrainingProgram
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.manifests import is_terminating
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.manifests import travelling
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, Object, Scope, key_of, of_manifest

_LEFT_OUT = (
    names.GONE_ANNOTATION,
    names.TAKE_OVER_ANNOTATION,
    names.TRACE_ANNOTATION,
    "kubectl.kubernetes.io/last-applied-configuration",
)
"""Annotations about one object and no other. Its owner stays, and that the owner has suspended it, so that a
pipeline that runs again continues with the restored job."""
_JOB_KINDS: Mapping[str, str] = MappingProxyType(
    {kind.name: kind.source.api.group for kind in KINDS if kind.view is not None}
)
"""API group of each kind of jobs."""


@dataclass(frozen=True)
class SavedJob:
    """A job in a backup.

    Attributes:
        manifest: the job, as it can be created.
        programs: the ConfigMaps of its programs, likewise; a job has one at most.
        checkpoint: the newest checkpoint when the job was saved, for people; "" for none.
    """

    manifest: Object
    programs: tuple[Object, ...] = ()
    checkpoint: str = ""

    @property
    def name(self) -> str:
        """Kind, namespace and name."""
        return f"{self.manifest['kind']} {key_of(self.manifest)}"

    def to_list(self) -> Object:
        """The job and its programs as one document."""
        return {"apiVersion": "v1", "kind": "List", "items": [self.manifest, *self.programs]}


def save_jobs(cluster: Cluster, kinds: Sequence[Kind], namespace: str) -> list[SavedJob]:
    """Save the jobs of some kinds that have not ended, with their programs, in order of their names. Kinds
    that are not installed have no jobs.

    Args:
        cluster: where the jobs are.
        kinds: the kinds.
        namespace: one namespace, or all of them.

    Raises:
        ForbiddenError: the user may not list a kind, or read a program: the backup would not be whole.
    """
    jobs: list[Object] = []
    for kind in kinds:
        with contextlib.suppress(NotFoundError):
            listed = client.list_objects(cluster, Scope(kind.source.api, namespace)).items
            jobs += [job for job in listed if not kind.view_stored(job).phase.final]
    return [save_job(cluster, job) for job in sorted(jobs, key=lambda job: (key_of(job), job["kind"]))]


def save_job(cluster: Cluster, job: Object) -> SavedJob:
    """Save a job and its program.

    Args:
        cluster: where the job is.
        job: as the API server returned it.

    Raises:
        EdlError: the program can't be read.
    """
    namespace = job["metadata"]["namespace"]
    programs = (client.find(cluster, CONFIG_MAPS, name, namespace) for name in _program_names(job))
    saved = tuple(_without_server_fields(program) for program in programs if program and _is_program(program))
    newest = (job.get("status") or {}).get("checkpoint") or {}
    checkpoint = f"step {newest.get('step')}, {newest.get('uri')}" if newest else ""
    return SavedJob(_without_server_fields(job), saved, checkpoint)


def read_backup(documents: Iterable[Object]) -> list[SavedJob]:
    """The jobs of a backup, and of other manifests of jobs.

    Args:
        documents: jobs and the ConfigMaps of their programs, in any order.

    Raises:
        InvalidError: a document is neither; nothing names the namespace of one.
    """
    jobs: list[Object] = []
    programs: dict[tuple[str, str], Object] = {}
    for document in documents:
        place = _place_of(document)
        if _is_job(document):
            jobs.append(document)
        elif _is_program(document):
            programs[place] = document
        else:
            raise InvalidError(
                f"{document.get('kind')} {'/'.join(place)}: a backup has jobs and their programs only"
            )
    return [SavedJob(job, tuple(_programs_of(job, programs))) for job in jobs]


def _programs_of(job: Object, programs: Mapping[tuple[str, str], Object]) -> Iterator[Object]:
    namespace = job["metadata"]["namespace"]
    for name in _program_names(job):
        if (namespace, name) in programs:
            yield programs[namespace, name]


def _place_of(document: Object) -> tuple[str, str]:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (isinstance(namespace, str) and isinstance(name, str) and namespace and name):
        raise InvalidError(f"a {document.get('kind')} of the backup lacks metadata.name or .namespace")
    return namespace, name


def restore_job(cluster: Cluster, saved: SavedJob) -> bool:
    """Create a job of a backup, and its program. May be repeated.

    Returns:
        Whether the job was created; False if it existed already, as the backup has it.

    Raises:
        ManifestError: this version does not accept the job.
        ConflictError: another job has its name.
        InvalidError: its program is damaged.
    """
    manifest = saved.manifest
    of_kind = next(kind for kind in KINDS if kind.name == manifest["kind"])
    of_kind.model.parse(manifest)
    programs = [_parse_program(program) for program in saved.programs]
    resource, (namespace, name) = of_manifest(manifest), key_of(manifest)
    try:
        job, is_new = client.create(cluster, manifest, namespace), True
    except AlreadyExistsError:
        job, is_new = client.get(cluster, resource, name, namespace), False
        if is_terminating(job):
            raise ConflictError(f"{saved.name} is being deleted: try again when it is gone") from None
        if not _contains(job["spec"], manifest["spec"]):
            raise ConflictError(
                f"{saved.name} exists, and its spec is another one than in the backup: delete it first"
            ) from None
    for program in programs:
        travelling.ensure_program(cluster, program, job)
    return is_new


def _is_job(document: Mapping[str, Any]) -> bool:
    group = _JOB_KINDS.get(str(document.get("kind")))
    return group is not None and str(document.get("apiVersion")).startswith(f"{group}/")


def _is_program(obj: Mapping[str, Any]) -> bool:
    return obj.get("kind") == CONFIG_MAPS.kind and PROGRAM_KEY in (obj.get("data") or {})


def _contains(stored: Any, saved: Any) -> bool:
    """Whether a stored value has everything of a saved one. The server may have added defaults."""
    if isinstance(stored, dict) and isinstance(saved, dict):
        return all(key in stored and _contains(stored[key], value) for key, value in saved.items())
    if isinstance(stored, list) and isinstance(saved, list):
        return len(stored) == len(saved) and all(map(_contains, stored, saved))
    return bool(stored == saved)


def _without_server_fields(obj: Object) -> Object:
    metadata = obj["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in _LEFT_OUT and not key.startswith(names.AWAITED_STEP_PREFIX)
    }
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    if annotations:
        kept["annotations"] = annotations
    head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": kept}
    content = {key: obj[key] for key in ("spec", "data", "immutable") if key in obj}
    return head | content


def _program_names(value: Any) -> Iterator[str]:
    """The ConfigMaps of the programs that the containers of a job run, each once."""
    yield from dict.fromkeys(_find_programs(value.get("spec") if isinstance(value, Mapping) else None))


def _find_programs(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if value.get("name") == names.ENV_PROGRAM:
            source = value.get("valueFrom")
            reference = source.get("configMapKeyRef") if isinstance(source, Mapping) else None
            if isinstance(reference, Mapping) and isinstance(reference.get("name"), str):
                yield reference["name"]
            return
        for child in value.values():
            yield from _find_programs(child)
    elif isinstance(value, list):
        for child in value:
            yield from _find_programs(child)


def _parse_program(config_map: Object) -> TrainingProgram:
    try:
        return TrainingProgram.model_validate(json.loads(config_map["data"][PROGRAM_KEY]))
    except (TypeError, ValueError, ValidationError) as error:
        raise InvalidError(f"ConfigMap {key_of(config_map)} has no program: {error}") from error
