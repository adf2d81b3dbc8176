"""Types of text fields that pods report, and that are shown in statuses, pipelines, terminals and pages."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.reported_text import inert_text

_URI = r"[A-Za-z0-9/._][A-Za-z0-9/._~:@%+,=-]*"
_URI_RULE = (
    "letters, digits and / . _ ~ : @ % + , = - are allowed, the first a letter, digit, / . or _; "
    "use a folder or a prefix with another name"
)
MAX_URI = 4096

CheckpointUri = Annotated[str, Field(max_length=MAX_URI, pattern=f"^{_URI}$", description=_URI_RULE)]
"""A folder or a URI. Characters that have a meaning in a shell, a template or a terminal are rejected, even
if RFC 3986 allows them: a checkpoint does not need them, and its URI is put into commands.
"""
OptionalCheckpointUri = Annotated[
    str, Field(max_length=MAX_URI, pattern=f"^({_URI})?$", description=_URI_RULE)
]
PodName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9.-]*$")]
Identifier = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9._:/-]*$")]
# Texts are cut after escaping, which lengthens them, so that a parsed message can be sent and parsed again.
ShortText = Annotated[str, Field(max_length=1024), AfterValidator(lambda text: inert_text(text)[:1024])]
"""A description of an error. No character in it causes a rejection, because that would lose the report."""
ErrorText = Annotated[str, Field(max_length=4096), AfterValidator(lambda text: inert_text(text)[:4096])]
OutputText = Annotated[str, Field(max_length=8192), AfterValidator(lambda text: inert_text(text)[-8192:])]
"""The end of a program's output."""


def check_checkpoint_place(place: str) -> None:
    """Check that the job's master accepts checkpoints at this place.

    Raises:
        InvalidError: it is too long, or has characters that are not allowed in a checkpoint's URI.
    """
    if len(place) > MAX_URI or not re.fullmatch(_URI, place):
        raise InvalidError(f"checkpoints at {place!r}: the job's master would refuse them: {_URI_RULE}")
