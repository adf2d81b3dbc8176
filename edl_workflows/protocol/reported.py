"""What pods may report: types of the fields whose text reaches statuses, pipelines, terminals and pages."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.reported_text import inert_text

_URI = r"[A-Za-z0-9/._][A-Za-z0-9/._~:@%+,=-]*"
_URI_RULE = (
    "letters, digits and / . _ ~ : @ % + , = - are allowed, the first a letter, digit, / . or _; "
    "use a folder or a prefix with another name"
)
MAX_URI = 4096

CheckpointUri = Annotated[str, Field(max_length=MAX_URI, pattern=f"^{_URI}$", description=_URI_RULE)]
"""A folder or a URI. Characters that mean something to a shell, a template or a terminal are refused, also where RFC 3986
has them: a checkpoint needs none, and its URI is put into commands."""
OptionalCheckpointUri = Annotated[
    str, Field(max_length=MAX_URI, pattern=f"^({_URI})?$", description=_URI_RULE)
]
PodName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9.-]*$")]
Identifier = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9._:/-]*$")]
# Each is cut to its bound after the escapes, which are longer: a message that was read can be sent and read again.
ShortText = Annotated[str, Field(max_length=1024), AfterValidator(lambda text: inert_text(text)[:1024])]
"""Words about what went wrong. They are never refused for a character, which would lose the report."""
ErrorText = Annotated[str, Field(max_length=4096), AfterValidator(lambda text: inert_text(text)[:4096])]
OutputText = Annotated[str, Field(max_length=8192), AfterValidator(lambda text: inert_text(text)[-8192:])]
"""The end of a program's output."""


def check_checkpoint_place(place: str) -> None:
    """See that the job's master takes checkpoints of this place.

    Raises:
        InvalidError: it has characters that no checkpoint's URI may have.
    """
    if len(place) > MAX_URI or not re.fullmatch(_URI, place):
        raise InvalidError(f"checkpoints at {place!r}: the job's master would refuse them: {_URI_RULE}")
