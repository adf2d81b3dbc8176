"""Who runs a stage, and the names that follow from it: the same for the same task of the same run, at any time."""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from edl_workflows.jobs import names

OWNER_ANNOTATION = f"{names.GROUP}/owner"
"""Which task of which run made the object. Only its owner adopts, replaces or cancels an object."""
ATTEMPT_ANNOTATION = f"{names.GROUP}/owner-try"
"""Which attempt of the owner holds the object now; an earlier attempt that is killed late leaves it alone."""
ON_CANCEL_ANNOTATION = f"{names.GROUP}/owner-on-cancel"
"""What becomes of the object when its owner is gone without having said so: delete, suspend or keep."""
LIFETIME_ANNOTATION = f"{names.GROUP}/owner-lifetime"
"""How long somebody waits for the object: until the owner ends ("task"), or, where the owner began it and did not wait, until
the run of the pipeline ends ("run")."""
GONE_ANNOTATION = f"{names.GROUP}/owner-gone"
"""Since when, as far as is known, nobody waits for the object any more (RFC 3339). Whoever adopts the object removes it."""
SUSPENDED_ANNOTATION = f"{names.GROUP}/owner-suspended"
"""Which attempt suspended the object in place of deleting it; the attempt that takes it over resumes it."""

Lifetime = Literal["task", "run"]

MAX_NAME = 63
"""Of names that become a label's value."""
_HASH = 10
_FOREIGN = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class StageIdentity:
    """The task that runs a stage.

    Attributes:
        owner: the task instance, as ``airflow/<dag>/<run>/<task>/<map index>``; equal for all its attempts. Where several
            Airflow installations share a namespace, ``airflow@<installation>/…``.
        attempt: which attempt this is.
        known: name of the object that an earlier attempt made, if that is known; it wins over a name made anew.
        rerun: an earlier attempt came to its end and delivered its result, so that a finished object is history, to be
            replaced; else it is the result of an attempt that died before it could say so, to be used.
        on_cancel: value of `ON_CANCEL_ANNOTATION`; "" for who does not say: nobody cancels the object behind the owner's back.
        lifetime: value of `LIFETIME_ANNOTATION`; "" for "task".
    """

    owner: str
    attempt: str = "1"
    known: str = ""
    rerun: bool = False
    on_cancel: str = ""
    lifetime: Lifetime | Literal[""] = ""

    @property
    def annotations(self) -> dict[str, str]:
        """The marks on everything that the stage makes."""
        optional = {ON_CANCEL_ANNOTATION: self.on_cancel, LIFETIME_ANNOTATION: self.lifetime}
        given = {key: value for key, value in optional.items() if value}
        return {OWNER_ANNOTATION: self.owner, ATTEMPT_ANNOTATION: self.attempt} | given

    def name(self, hint: str, limit: int = MAX_NAME) -> str:
        """A name for an object: readable by `hint`, unique by the owner, a DNS label of at most `limit` characters."""
        digest = hashlib.sha256(self.owner.encode()).hexdigest()[:_HASH]
        slug = _FOREIGN.sub("-", hint.lower()).strip("-")
        slug = slug if slug[:1].isalpha() else f"edl-{slug}"
        return f"{slug[: limit - _HASH - 1].rstrip('-')}-{digest}"
