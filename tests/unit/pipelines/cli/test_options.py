"""How the values of options are read."""

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.options import parse_pairs


@pytest.mark.parametrize("text", ["a=b,c=d=e", " a = b , c = d=e ,"])
def test_pairs(text: str) -> None:
    """Blanks around names and values belong to neither."""
    assert parse_pairs("--labels", text) == {"a": "b", "c": "d=e"}


@pytest.mark.parametrize("text", ["a", "=b", "a=", " =b", "a= ,c=d"])
def test_wrong_pairs_are_refused(text: str) -> None:
    """The error shows the whole value."""
    with pytest.raises(InvalidError, match=f"--labels: '{text}' is not a list of NAME=VALUE"):
        parse_pairs("--labels", text)
