"""Node failures and services."""

from edl_workflows.simulator.capacity import FAILURE, CapacityChange, draw_failures, service_changes

NODES = {"a": 4, "b": 4}


def test_failures_follow_the_seed() -> None:
    """The same seed gives the same failures, and another seed other ones."""
    first, again, other = (
        draw_failures(NODES, mean_time_between=1000, repair_time=100, until=5000, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_node_that_fails_comes_back() -> None:
    """Each failure ends after the repair time, and the next one begins later."""
    changes = draw_failures(NODES, mean_time_between=500, repair_time=100, until=5000, seed=1)
    of_a = [change for change in changes if change.node == "a"]

    assert of_a
    assert [change.taken for change in of_a] == [4, 0] * (len(of_a) // 2)
    assert all(up.time == down.time + 100 for down, up in zip(of_a[::2], of_a[1::2], strict=True))
    assert all(down.time > up.time for up, down in zip(of_a[1::2], of_a[2::2], strict=False))


def test_another_node_changes_nothing_for_the_others() -> None:
    """The failures of each node are independent."""
    both, alone = (
        draw_failures(nodes, mean_time_between=500, repair_time=100, until=5000, seed=1)
        for nodes in (NODES, {"a": 4})
    )
    assert [change for change in both if change.node == "a"] == alone
    assert {change.by for change in both} == {FAILURE}


def test_a_service_is_spread() -> None:
    """A service takes GPUs evenly from the nodes, within their capacity."""
    assert service_changes("web", NODES, [(0, 3), (60, 99)]) == [
        CapacityChange(0, "a", "web", 2),
        CapacityChange(0, "b", "web", 1),
        CapacityChange(60, "a", "web", 4),
        CapacityChange(60, "b", "web", 4),
    ]
