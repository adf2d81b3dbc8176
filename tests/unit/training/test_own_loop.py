"""The pair of programs that shows what makes a training loop elastic."""

import difflib
from pathlib import Path

TRAINING = Path(__file__).parents[3] / "dags" / "training"
MOST = 25
"""Lines that the elastic program may add."""


def test_how_many_lines_make_a_loop_elastic() -> None:
    """The elastic program has at most 25 lines that the unmodified one has not, indentation included, and the
    unmodified one knows nothing of this package."""
    own, elastic = (
        (TRAINING / name).read_text().splitlines() for name in ("own_loop.py", "own_loop_elastic.py")
    )
    changes = [line for line in difflib.ndiff(own, elastic) if line[:1] in "+-"]
    assert sum(line.startswith("+") for line in changes) <= MOST
    assert sum(line.startswith("-") for line in changes) <= MOST
    assert "edl_workflows" not in "\n".join(own)
