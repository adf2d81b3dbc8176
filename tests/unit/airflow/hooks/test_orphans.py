"""Who is an orphan: the decision, as a table; and the owner's mark that it goes by."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.airflow.hooks.orphans import OwnerJudgement, OwnerVerdict, judge_object, noted_time
from edl_workflows.airflow.hooks.task_owner import TaskOwner, engine_of
from edl_workflows.airflow.hooks.task_state import DELETED, ENDED_STATES
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.ownership import OwnedObject

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

NAMED, UNNAMED = engine_of("prod"), engine_of("")
LIVE = (None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "awaiting_input")
_ID = st.text(alphabet="abcZ09_.-", min_size=1, max_size=20)


def owned(**changes: Any) -> OwnedObject:
    """A job that its task waited for and that shall be deleted without it."""
    handle = Handle(kind="ElasticJob", namespace="ns", name="job", goal=ExistsGoal(), uid="u", attempt="1")
    given: dict[str, Any] = {"on_cancel": "delete", "lifetime": "task", "gone": "", "suspended": False}
    return OwnedObject(handle=handle, **(given | changes))


def verdict(
    state: str | None, run: str = "", engine: str = NAMED, *, noted: bool = False, **changes: Any
) -> OwnerVerdict:
    """Of a job with these marks."""
    owner = TaskOwner(engine, "dag", "run", "task", -1)
    return judge_object(owned(**changes), owner, state, run, created_here=noted).verdict


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("lifetime", ["task", "run", ""])
def test_what_a_live_task_may_go_on_with_is_awaited(state: str | None, lifetime: str) -> None:
    """An object that a live task may continue with is no orphan, in whatever state its run is."""
    assert {verdict(state, run, lifetime=lifetime) for run in ("running", "failed", DELETED)} == {
        OwnerVerdict.AWAITED
    }


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_what_a_task_waited_for_that_has_ended_is_an_orphan(state: str) -> None:
    """A job that a task waited for is an orphan once the task has ended. A task that succeeds leaves no such
    job running."""
    assert verdict(state) is OwnerVerdict.ORPHANED


ROWS: dict[str, tuple[OwnerVerdict, dict[str, Any]]] = {
    "begun, and its run goes on": (
        OwnerVerdict.AWAITED,
        {"state": "success", "run": "running", "lifetime": "run"},
    ),
    "begun, and its run is queued": (
        OwnerVerdict.AWAITED,
        {"state": "success", "run": "queued", "lifetime": "run"},
    ),
    "begun by a task whose record is gone, in a live run": (
        OwnerVerdict.AWAITED,
        {"state": DELETED, "run": "running", "lifetime": "run"},
    ),
    "begun, and its run succeeded": (
        OwnerVerdict.KEPT,
        {"state": "success", "run": "success", "lifetime": "run"},
    ),
    "begun, and its run failed": (
        OwnerVerdict.ORPHANED,
        {"state": "success", "run": "failed", "lifetime": "run"},
    ),
    "begun, and its run was deleted": (
        OwnerVerdict.ORPHANED,
        {"state": DELETED, "run": DELETED, "lifetime": "run"},
    ),
    "to be kept": (OwnerVerdict.KEPT, {"state": "failed", "on_cancel": "keep"}),
    "to be kept, of a deleted run": (OwnerVerdict.KEPT, {"state": DELETED, "on_cancel": "keep"}),
    "of an older version": (OwnerVerdict.UNCLEAR, {"state": "failed", "on_cancel": ""}),
    "of an unknown action": (OwnerVerdict.UNCLEAR, {"state": "failed", "on_cancel": "explode"}),
    "to be suspended": (OwnerVerdict.ORPHANED, {"state": "failed", "on_cancel": "suspend"}),
    "suspended": (OwnerVerdict.KEPT, {"state": "failed", "on_cancel": "suspend", "suspended": True}),
    "suspended, and to be deleted": (OwnerVerdict.ORPHANED, {"state": "failed", "suspended": True}),
    "failed, of an Airflow without a name": (OwnerVerdict.UNCLEAR, {"state": "failed", "engine": UNNAMED}),
    "succeeded, of an Airflow without a name": (
        OwnerVerdict.UNCLEAR,
        {"state": "success", "engine": UNNAMED},
    ),
    "begun, and its run failed, of an Airflow without a name": (
        OwnerVerdict.UNCLEAR,
        {"state": "success", "run": "failed", "lifetime": "run", "engine": UNNAMED},
    ),
    "failed, of an Airflow without a name that has noted it": (
        OwnerVerdict.ORPHANED,
        {"state": "failed", "engine": UNNAMED, "noted": True},
    ),
    "begun by such an Airflow, and its run goes on": (
        OwnerVerdict.AWAITED,
        {"state": "success", "run": "running", "lifetime": "run", "engine": UNNAMED, "noted": True},
    ),
    "not there, for an Airflow without a name": (OwnerVerdict.UNCLEAR, {"state": DELETED, "engine": UNNAMED}),
    "to be kept, of an Airflow without a name": (
        OwnerVerdict.KEPT,
        {"state": "failed", "on_cancel": "keep", "engine": UNNAMED},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_case(name: str) -> None:
    """Each row gives the verdict for the object's policy and what Airflow says of its task and run."""
    expected, case = ROWS[name]

    assert verdict(**case) is expected


@pytest.mark.parametrize(
    ("gone", "due"),
    [
        pytest.param("", False, id="never seen before"),
        pytest.param("nonsense", False, id="no time"),
        pytest.param("2026-01-01T00:00:00", False, id="a time without a zone"),
        pytest.param(noted_time(datetime(2026, 1, 1, 0, 1, tzinfo=UTC)), False, id="too young"),
        pytest.param(noted_time(datetime(2026, 1, 1, tzinfo=UTC)), True, id="old enough"),
    ],
)
def test_an_orphan_is_due_after_the_grace_time(gone: str, due: bool) -> None:
    """The grace time counts from the time noted on the object. A note that is not a time counts as none."""
    now, grace = datetime(2026, 1, 1, 0, 10, tzinfo=UTC), timedelta(minutes=10)

    assert OwnerJudgement(owned(gone=gone), OwnerVerdict.ORPHANED, "").due(now, grace) is due
    assert not OwnerJudgement(owned(gone=gone), OwnerVerdict.AWAITED, "").due(now, grace)


@given(
    installation=st.text(alphabet="abc-", max_size=8),
    dag_id=_ID,
    run_id=st.text(alphabet="abc0:+_.-/", min_size=1, max_size=30),
    task_id=_ID,
    map_index=st.integers(min_value=-1, max_value=9999),
)
def test_a_mark_names_its_task_instance(
    installation: str, dag_id: str, run_id: str, task_id: str, map_index: int
) -> None:
    """The mark is parsed to the same task instance, whatever its ids are, even with slashes."""
    owner = TaskOwner(engine_of(installation), dag_id, run_id, task_id, map_index)

    assert TaskOwner.parse(str(owner)) == owner
    assert str(owner).startswith(owner.run)


@given(mark=st.text(alphabet="ab/-1@", max_size=12))
def test_what_is_no_mark_names_nobody(mark: str) -> None:
    """A mark names a task instance only if it equals the one that the instance would write."""
    owner = TaskOwner.parse(mark)

    assert owner is None or TaskOwner.parse(str(owner)) == owner
