"""A manifest's text means here what it means to kubectl."""

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.stages import manifest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("12:30", "12:30"),
        ("1e3", 1000.0),
        ("0o17", 15),
        ("0x10", 16),
        ("y", True),
        ("'y'", "y"),
        ("2", 2),
        ("500m", "500m"),
        ("null", None),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    """Dates and times of day are texts, and numbers in Kubernetes' notations are numbers."""
    assert manifest.parse_object(f"a: {text}\n", "job.yaml") == {"a": value}


def test_a_text_nested_without_end_is_refused() -> None:
    """A deeply nested text is rejected before a parser overflows its stack."""
    with pytest.raises(InvalidError, match=r"job\.yaml: line 1 is nested deeper than 100 levels"):
        manifest.parse_object("[" * 200_000, "job.yaml")
