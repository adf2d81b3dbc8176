"""Which refusals of a create are final."""

import pytest

from edl_workflows.core.exceptions import EdlError, ForbiddenError, InvalidError, ManifestError, Problem
from edl_workflows.services.controller.apply import is_invalid


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ManifestError("cannot create Pod a/b", [Problem("spec.containers[0].name", "Required value")]),
            True,
        ),
        (
            InvalidError("cannot create Pod a/b: json: cannot unmarshal number (400); correct the request"),
            True,
        ),
        (InvalidError('cannot create Pod a/b: admission webhook "x.y" denied the request: no (400)'), False),
        (
            ManifestError(
                "cannot create Pod a/b",
                [Problem("", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")],
            ),
            False,
        ),
        (ForbiddenError("cannot create Pod a/b: exceeded quota (403)"), False),
    ],
)
def test_only_what_can_never_succeed_is_invalid(error: EdlError, expected: bool) -> None:
    """A pod that can't be decoded or validated stays so; policies and quotas can change, whatever their
    code."""
    assert is_invalid(error) is expected
