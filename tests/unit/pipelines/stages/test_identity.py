"""Names that follow from who runs a stage."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.kubernetes.objects import DNS_LABEL
from edl_workflows.pipelines.waiting.identity import StageIdentity

_TEXT = st.text(alphabet=string.printable, max_size=120)


@given(owner=_TEXT, hint=_TEXT, limit=st.integers(min_value=20, max_value=63))
def test_names_are_dns_labels_within_the_limit(owner: str, hint: str, limit: int) -> None:
    """The name is a valid DNS label within the limit, whatever the DAG, the run and the task are called."""
    name = StageIdentity(owner).name(hint, limit)

    assert DNS_LABEL.match(name)
    assert len(name) <= limit


def test_a_name_is_the_same_for_all_attempts_and_for_no_other_task() -> None:
    """The name depends on the owner only, so it is the same for all attempts and differs between tasks,
    whatever the run id is."""
    run = "asset_triggered__2026-11-20T10:56:55.506077+00:00-lrvWwbkA"
    first, retry = StageIdentity(f"airflow/d/{run}/t/-1"), StageIdentity(f"airflow/d/{run}/t/-1", attempt="2")
    mapped = StageIdentity(f"airflow/d/{run}/t/0")

    assert first.name("My DAG.train") == retry.name("My DAG.train")
    assert first.name("My DAG.train").startswith("my-dag-train-")
    assert mapped.name("My DAG.train") != first.name("My DAG.train")


@pytest.mark.parametrize(
    ("owner", "requester"),
    [
        ("airflow/retrain/manual__2026/train.scale/-1", "task train.scale of DAG retrain, run manual__2026"),
        ("airflow@prod/retrain/a/b/scale/3", "task scale[3] of DAG retrain, run a/b"),
        ("argo/ml/retrain-x7/uid-1/main/scale", "step main/scale of workflow ml/retrain-x7"),
        ("airflow-tab/retrain/uid-1/3f", "tab of DAG retrain"),
        ("cli/ada@laptop/6f1c", "ada@laptop, with cli"),
        ("somebody", "somebody"),
    ],
)
def test_requester_names_dag_and_task(owner: str, requester: str) -> None:
    """A plan's reason tells people who asks for it."""
    assert StageIdentity(owner).requester == requester
