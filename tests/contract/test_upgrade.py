"""What a checkout before 0.1.0 has stored and this version can't run is named where people read before they
upgrade."""

from importlib.util import find_spec
from pathlib import Path

import pytest

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("edl_workflows.triggers.elastic_job", id="trigger in Airflow's database"),
        pytest.param("edl_workflows.agent", id="agent in a pod"),
        pytest.param("edl_workflows.cli", id="master in a pod"),
    ],
)
def test_a_path_that_is_gone_is_named_before_the_upgrade(module: str) -> None:
    """Stored module paths that no longer lead anywhere stand under *Before you upgrade*, with what to do."""
    text = CHANGELOG.read_text()
    advice = text.partition("### Before you upgrade")[2].partition("\n###")[0]

    assert find_spec(module.partition(".")[0]) is not None
    with pytest.raises(ModuleNotFoundError):
        __import__(module)
    assert f"`{module}`" in advice or f"-m {module}`" in advice
