"""The kill matrix: whatever befalls a task, no job is cancelled that somebody waits for, none is made twice,
none is orphaned."""

from collections.abc import Iterator

import pytest

from tests.e2e.kill_matrix import PIPELINES, Matrix, Row, has_lineage, played, rows_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.airflow, pytest.mark.timeout(2400)]

ROWS = {row.name: row for mode in ("deferred", "sync") for row in rows_of(mode)}


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """The rows of the tests that run now, played once for all of them."""
    chosen: list[Row] = [
        ROWS[str(item.callspec.params["name"])]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    with played(tmp_path_factory.mktemp("matrix"), chosen) as done:
        yield done


# CI plays one row of each sort; `make test-all` all.
IN_CI = frozenset({
    "deferred-cleared", "deferred-marked-failed", "deferred-run-failed-and-deleted", "deferred-killed",
    "deferred-killed-and-marked-failed", "deferred-pipeline-run-failed",
    "deferred-pipeline-run-out-of-time", "sync-cleared",
    "sync-run-failed-and-deleted",
    "sync-killed", "sync-killed-and-run-deleted", "sync-leaking-run-failed",
})  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.long]) for name in ROWS]
)
def test_row(name: str, matrix: Matrix) -> None:
    """A job that a task waits for continues, and its task succeeds with it. Any other job is gone, at the
    latest after the reaper has run."""
    row, found = ROWS[name], matrix.found[name]

    assert not found.trouble
    assert found.alive == [row.gone in ("", "by the reaper"), row.gone == ""]
    assert len(found.begun) == 1, "one container, ever: no job was made twice"
    assert (found.state, found.attempt) == (("success", row.attempt) if row.attempt else ("", 0))
    assert found.run == ("failed" if row.shape in PIPELINES else ""), (
        "a run that was marked failed has failed"
    )
    kept = "kept" if not row.attempt else ""
    assert found.reported == {"": kept, "by itself": "", "by the reaper": "orphaned"}[row.gone]
    if has_lineage():
        check_lineage(row, matrix)


def check_lineage(row: Row, matrix: Matrix) -> None:
    """Check the OpenLineage events of a row's job."""
    found = matrix.found[row.name]
    told = matrix.lineage(row)
    assert {event["run"]["runId"] for event in told} == {found.uid}, "the run of the job stays the same"
    parents = {
        event["run"]["facets"]["parent"]["run"]["runId"]
        for event in told
        if "parent" in event["run"]["facets"]
    }
    assert len(parents) == max(row.attempt, 1), "each attempt is a run of its own"
    begun = ["START", "RUNNING"] if row.attempt == 2 else ["START"]
    end = ["COMPLETE"] if row.attempt else ["ABORT"] if row.gone else []
    # A worker that is killed has five seconds to cancel its job and to tell of it.
    told_to_end = row.shape == "leaks" or (row.shape == "waits") is not bool(row.seconds)
    hasty = row.mode == "sync" and row.gone == "by itself" and told_to_end
    types = matrix.lineage_types(row)
    assert types == [*begun, *end] or (hasty and types == begun)
