"""Programs that travel with their jobs: the text of a function, and the ConfigMap of a program."""

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from edl_workflows.core.exceptions import AlreadyExistsError, ConflictError, InvalidError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.manifests import describe_conflict, is_terminating
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, Object

GONE_SECONDS = 60.0
"""How long to wait for the deletion of a ConfigMap. Only finalizers can delay it."""
POLL_SECONDS = 0.2


def ensure_program(cluster: Cluster, program: TrainingProgram, job: Object) -> None:
    """Create the ConfigMap of a job's program, unless it exists. May be repeated at any time.

    The job is created first, so that its deletion also deletes the ConfigMap, whenever this process dies. The
    job's pods wait for the ConfigMap.

    Args:
        cluster: the API server.
        program: the program.
        job: the ElasticJob, as the API server returned it.

    Raises:
        ConflictError: a ConfigMap of that name belongs to something else than a job of that name.
        UnavailableError: the ConfigMap of a former job of that name was not deleted.
    """
    owner, _ = ElasticJob.read_stored(job)
    config_map = program.to_config_map(owner)
    name, namespace = config_map["metadata"]["name"], config_map["metadata"]["namespace"]
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        existing = client.find(cluster, CONFIG_MAPS, name, namespace)
        if existing is None:
            try:
                client.create(cluster, config_map, namespace)
            except AlreadyExistsError:
                continue
            return
        if not is_terminating(existing):
            if _is_owned(existing, uid=owner.metadata.uid):
                return
            if not _is_owned(existing, kind=owner.kind, name=owner.metadata.name):
                raise ConflictError(describe_conflict(existing, owner))
        time.sleep(POLL_SECONDS)  # the garbage collector deletes it
    raise UnavailableError(
        f"ConfigMap {namespace}/{name} of a former job of this name was not deleted within "
        f"{GONE_SECONDS:.0f} s; delete it, then try again"
    )


def _is_owned(config_map: Object, **fields: str | None) -> bool:
    """Whether one of the object's owners has these values."""
    owners = config_map["metadata"].get("ownerReferences") or []
    return any(all(owner.get(key) == value for key, value in fields.items()) for owner in owners)


def function_program(function: Callable[..., Any], arguments: Mapping[Any, Any]) -> TrainingProgram:
    """The program that calls a function.

    Raises:
        InvalidError: its source is not available, or it can't be called with these arguments.
    """
    name = getattr(function, "__name__", str(function))
    if nameless := [key for key in arguments if not isinstance(key, str)]:
        raise InvalidError(f"{name}: arguments are given by name, and {nameless[0]!r:.80} is no name")
    try:
        inspect.signature(function).bind(**arguments)
        source = inspect.getsource(function)
    except TypeError as error:
        raise InvalidError(f"{name}: {error}") from error
    except OSError as error:
        raise InvalidError(
            f"the source of {name} is not available: define it in a file or a notebook's cell"
        ) from error
    return TrainingProgram.of_function(source, arguments)
