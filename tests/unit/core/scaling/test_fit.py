"""First-fit by example."""

from edl_workflows.core.scaling.first_fit import FirstFitPolicy
from edl_workflows.core.scaling.policy import JobInfo, NodeInfo

POLICY = FirstFitPolicy()
CPU = {"cpu": 1.0}


def job(key: str, low: int = 1, high: int = 1, *, priority: int = 0, age: float = 0.0) -> JobInfo:
    """A job of one core a replica."""
    return JobInfo(key, CPU, min_replicas=low, max_replicas=high, priority=priority, age=age)


def nodes(**cores: float) -> dict[str, NodeInfo]:
    """Nodes with so many free cores."""
    return {key: NodeInfo(key, {"cpu": amount}) for key, amount in cores.items()}


def optimized(
    *jobs: JobInfo, on: dict[str, NodeInfo], held: dict[str, list[str]] | None = None
) -> dict[str, list[str]]:
    """The answer."""
    return POLICY.optimize({one.key: one for one in jobs}, on, held or {})


def test_a_new_job_fills_the_first_nodes() -> None:
    """Replicas go to the first node with room, up to the maximum."""
    assert POLICY.allocate(job("a", 1, 4), nodes(n2=8, n1=3)) == ["n1", "n1", "n1", "n2"]


def test_a_new_job_takes_what_there_is() -> None:
    """A new job starts with as many replicas as fit, between its minimum and its maximum."""
    assert POLICY.allocate(job("a", 2, 9), nodes(n1=3)) == ["n1", "n1", "n1"]


def test_a_new_job_waits_for_its_minimum() -> None:
    """A job gets nothing if less than its minimum is free."""
    assert POLICY.allocate(job("a", 4, 9), nodes(n1=3)) == []


def test_replicas_of_other_roles_come_first() -> None:
    """A learner that needs a device has rank 0 and is placed on a node with one; collectors follow."""
    learner = {"cpu": 2.0, "nvidia.com/gpu": 1.0}
    wanted = JobInfo("a", CPU, fixed=(learner,), min_replicas=2, max_replicas=3)
    free = nodes(n1=4) | {"n2": NodeInfo("n2", {"cpu": 4.0, "nvidia.com/gpu": 1.0})}

    assert POLICY.allocate(wanted, free) == ["n2", "n1", "n1"]


def test_what_a_job_holds_stays_where_it_is() -> None:
    """A job is not moved to an earlier node that has become free."""
    held = {"a": ["n2", "n2"]}
    assert optimized(job("a", 1, 2), on=nodes(n1=8, n2=2), held=held) == held


def test_jobs_grow_in_turn() -> None:
    """Free capacity is given to jobs in turn, one replica at a time."""
    found = optimized(job("a", 1, 9), job("b", 1, 9), on=nodes(n1=6))
    assert {key: len(places) for key, places in found.items()} == {"a": 3, "b": 3}


def test_a_waiting_job_takes_what_is_beyond_a_minimum() -> None:
    """A job that has more than its minimum makes room for one that has nothing, no more than needed."""
    held = {"a": ["n1", "n1", "n1", "n1"]}
    found = optimized(job("a", 1, 4, age=9), job("b", 2, 2), on=nodes(n1=4), held=held)
    assert found == {"a": ["n1", "n1"], "b": ["n1", "n1"]}


def test_a_minimum_is_safe_from_equals() -> None:
    """A job does not take the minimum of one with the same priority, however old it is."""
    held = {"a": ["n1", "n1"]}
    assert optimized(job("a", 2, 2), job("b", 1, 1, age=99), on=nodes(n1=2), held=held) == held | {"b": []}


def test_high_priority_takes_a_minimum() -> None:
    """A job of high priority takes its minimum from one of normal priority if there is no other room."""
    held = {"a": ["n1", "n1"]}
    found = optimized(job("a", 2, 2, age=9), job("b", 1, 1, priority=1), on=nodes(n1=2), held=held)
    assert found == {"a": [], "b": ["n1"]}


def test_a_freed_rest_serves_the_next() -> None:
    """Capacity that an evicted job can't use goes to a waiting job that can."""
    held = {"a": ["n1", "n1"]}
    waiting = job("c", 1, 1, age=99)
    found = optimized(job("a", 2, 2), job("b", 1, 1, priority=1), waiting, on=nodes(n1=2), held=held)
    assert found == {"a": [], "b": ["n1"], "c": ["n1"]}


def test_replicas_leave_a_node_that_is_gone() -> None:
    """Only the replicas of the lost node are placed anew; those that stay get the lower ranks."""
    assert optimized(job("a", 3, 3), on=nodes(n1=1, n3=2), held={"a": ["n2", "n1", "n2"]}) == {
        "a": ["n1", "n3", "n3"]
    }


def test_a_lower_maximum_lets_the_last_go() -> None:
    """If the maximum decreases, the replicas with the highest ranks are removed."""
    assert optimized(job("a", 1, 2), on=nodes(n1=1, n2=4), held={"a": ["n2", "n1", "n2"]}) == {
        "a": ["n2", "n1"]
    }


def test_a_closed_node_keeps_what_it_has() -> None:
    """A cordoned node keeps its replicas and gets no new ones."""
    closed = {"n1": NodeInfo("n1", {"cpu": 9.0}, schedulable=False)}
    assert optimized(job("a", 1, 9), job("b"), on=closed, held={"a": ["n1"]}) == {"a": ["n1"], "b": []}


def test_a_job_that_is_not_preemptible_is_left_alone() -> None:
    """The job keeps its nodes, whichever jobs wait and whatever is free."""
    fixed = JobInfo("a", CPU, min_replicas=1, max_replicas=9, preemptible=False)
    found = optimized(fixed, job("b", priority=1), on=nodes(n1=2), held={"a": ["n1", "n1"]})
    assert found == {"a": ["n1", "n1"], "b": []}


def test_a_job_without_replicas_may_be_moved_until_the_answer() -> None:
    """A job that is not preemptible keeps what it held before, but not what an earlier round of this decision
    gave it, so that no node is given to two jobs."""
    one, two = {"cpu": 1.0, "gpu": 1.0}, {"cpu": 2.0, "gpu": 2.0}
    new = JobInfo("new", one, (two, one), min_replicas=2, max_replicas=2, preemptible=False)
    large = {"cpu": 3.0, "gpu": 2.0}
    old = JobInfo("old", large, (one, two), min_replicas=3, max_replicas=4, priority=2)
    gpus = {"b": NodeInfo("b", one), "c": NodeInfo("c", {"cpu": 8.0, "gpu": 4.0})}

    found = optimized(new, old, on=gpus, held={"old": ["c", "c"]})

    assert found == {"new": [], "old": ["b", "c", "c"]}
    assert optimized(new, old, on=gpus, held=found) == found
