"""Who runs a stage, and the object names derived from it: stable for the same task of the same run."""

import getpass
import hashlib
import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.trace_context import checked_traceparent

OWNER_ANNOTATION = names.OWNER_ANNOTATION
ATTEMPT_ANNOTATION = f"{names.GROUP}/owner-try"
"""The attempt of the owner that holds the object now. An earlier attempt that is killed only later leaves the
object alone."""
ON_CANCEL_ANNOTATION = f"{names.GROUP}/owner-on-cancel"
"""What to do with the object if its owner disappears: delete, suspend or keep."""
LIFETIME_ANNOTATION = f"{names.GROUP}/owner-lifetime"
"""How long somebody waits for the object: until the owner ends ("task") or, if the owner does not wait for
it, until the pipeline run ends ("run")."""

Lifetime = Literal["task", "run"]

MAX_NAME = 63
"""Characters of a name that is also used as a label value."""
_HASH = 10
_FOREIGN = re.compile(r"[^a-z0-9]+")


Notify = Callable[[str], None]
"""Called with a line for people about the object of a stage."""


def notify_nobody(_line: str) -> None:
    """The `Notify` of callers that show no lines."""


@dataclass(frozen=True)
class StageIdentity:
    """The task that runs a stage.

    Attributes:
        owner: the task instance, as ``airflow/<dag>/<run>/<task>/<map index>``; the same for all its
            attempts. With several Airflow installations in one namespace, ``airflow@<installation>/…``.
        attempt: id of this attempt.
        existing_name: name of the object that an earlier attempt created, if known; it replaces the derived
            name.
        rerun: an earlier attempt delivered its result, so an object that has ended belongs to the past and is
            replaced. Otherwise it is the result of an attempt that died before delivering it, and is used.
        on_cancel: value of `ON_CANCEL_ANNOTATION`; "" for none: nobody but the owner cancels the object.
        lifetime: value of `LIFETIME_ANNOTATION`; "" for "task".
        trace: the ``traceparent`` of the trace that the objects belong to; "" for none.
        notify: called with a line about each object that is created, adopted or replaced.
    """

    owner: str
    attempt: str = "1"
    existing_name: str = ""
    rerun: bool = False
    on_cancel: str = ""
    lifetime: Lifetime | Literal[""] = ""
    trace: str = ""
    notify: Notify = field(default=notify_nobody, compare=False, repr=False)

    @classmethod
    def of_person(cls, program: str, notify: Notify = notify_nobody) -> Self:
        """A unique identity, which owns the objects that one call of a person's creates. They belong to the
        trace of the environment variable ``TRACEPARENT``.

        Args:
            program: what the person uses, such as ``cli``.
            notify: called with a line about each object that is created, adopted or replaced.
        """
        owner = f"{program}/{getpass.getuser()}@{socket.gethostname()}/{uuid.uuid4()}"
        trace = checked_traceparent(os.environ.get(names.ENV_TRACEPARENT, ""))
        return cls(owner=owner, attempt=str(os.getpid()), trace=trace, notify=notify)

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations on everything that the stage creates."""
        optional = {
            ON_CANCEL_ANNOTATION: self.on_cancel,
            LIFETIME_ANNOTATION: self.lifetime,
            names.TRACE_ANNOTATION: self.trace,
        }
        given = {key: value for key, value in optional.items() if value}
        return {OWNER_ANNOTATION: self.owner, ATTEMPT_ANNOTATION: self.attempt} | given

    @property
    def requester(self) -> str:
        """Who asks for a change, in words."""
        engine, *parts = self.owner.split("/")
        kind = engine.partition("@")[0]
        if kind == "airflow" and len(parts) >= 4:
            dag, *run, task, index = parts
            mapped = "" if index == "-1" else f"[{index}]"
            return f"task {task}{mapped} of DAG {dag}, run {'/'.join(run)}"
        if kind == "argo" and len(parts) >= 4:
            namespace, workflow, _, *path = parts
            return f"step {'/'.join(path)} of workflow {namespace}/{workflow}"
        if kind == "airflow-tab" and parts:
            return f"tab of DAG {parts[0]}"
        return f"{parts[0]}, with {engine}" if parts else self.owner

    def name(self, hint: str, limit: int = MAX_NAME) -> str:
        """Derive the name of an object: a DNS label of at most `limit` characters, from `hint` and a hash of
        the owner."""
        slug = _FOREIGN.sub("-", hint.lower()).strip("-")
        slug = slug if slug[:1].isalpha() else f"edl-{slug}"
        return f"{slug[: limit - _HASH - 1].rstrip('-')}-{self._digest}"

    def names(self, name: str) -> bool:
        """Whether a name was derived from this owner, from any hint."""
        return name.endswith(f"-{self._digest}")

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self.owner.encode()).hexdigest()[:_HASH]
