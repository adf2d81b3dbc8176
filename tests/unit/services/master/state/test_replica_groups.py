"""Collective jobs whose members hold the model together in replica groups: what the master makes of losses,
joins and plans."""

from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.state.in_place_jobs import active, die, in_place_job, processes
from tests.unit.services.master.state.worlds import carried_out, plan_of, version_of, world_of


def grouped_job(workers: int = 4, least: int = 1) -> SimulatedCollectiveJob:
    """A job of replica groups of two workers that all train."""
    job = in_place_job(workers, min_nodes=least, max_nodes=6, node_unit=2)
    assert active(job).replica_size == 2
    return job


def test_the_other_groups_go_on_at_once() -> None:
    """A death takes the whole group out. The others keep their processes, and neither step nor data go
    back."""
    job = grouped_job()
    step = job.steps[1]
    die(job, 1)

    assert processes(job) == {2: 1, 3: 1}
    assert active(job).restore is None
    assert job.state.steps.step == step
    assert job.state.restarts.counts.get("Recovery") is None


def test_a_group_joins_when_it_is_complete() -> None:
    """The remaining member of a broken group waits for the replacement. Then both start new processes."""
    job = grouped_job()
    die(job, 1)
    job.kill(("worker", 1))
    job.calm(1)
    assert world_of(job) == (2, 3)
    job.calm(15)

    newest = version_of(job)
    assert world_of(job) == (2, 3, 0, 4)
    assert processes(job) == {2: 1, 3: 1, 0: newest, 4: newest}
    assert job.models[newest] == set(range(job.steps[newest]))
    assert job.saved == {}


def test_a_sound_member_of_a_broken_group_starts_anew_in_the_same_group() -> None:
    """If a process ends without a fault of its node, both nodes of its group start new processes and form the
    group again."""
    job = grouped_job()
    die(job, 1, CLUSTER_LOST_EXIT_CODE)
    assert processes(job) == {2: 1, 3: 1}
    job.calm(15)

    newest = version_of(job)
    assert processes(job) == {2: 1, 3: 1, 0: newest, 1: newest}


def test_each_group_loses_a_member() -> None:
    """No complete model is left in the remaining groups, so all processes start again from the checkpoint.
    When the replacements join, none of the old processes is left."""
    job = grouped_job()
    job.save_periodically()
    saved = job.steps[1]
    job.calm(2)
    die(job, 1)
    job.kill(("worker", 1))
    lost = job.steps[1]
    die(job, 2)
    job.kill(("worker", 2))
    job.calm(1)
    again = active(job)
    assert processes(job) == {3: again.version, 0: again.version}
    assert again.version > 1
    assert again.restore is not None
    assert again.restore.step == saved
    job.calm(1)
    assert saved <= job.steps[again.version] < lost
    job.calm(20)

    assert job.state.versions.settled
    assert min(processes(job).values()) == again.version
    assert len(world_of(job)) == 4
    assert job.models[version_of(job)] == set(range(job.steps[version_of(job)]))
    assert job.state.restarts.counts.get("Recovery") == 1


def test_the_only_group_loses_a_member() -> None:
    """The early report of the death changes nothing: the agents first save the state in memory, and then
    report the exit."""
    job = grouped_job(2)
    before = job.state.versions
    die(job, 1)

    assert job.state.versions == before


def test_too_few_groups_are_left() -> None:
    """With fewer groups than the minimum, complete groups keep the model and wait. A member of the broken
    group gets a new process, although its old one may still run."""
    job = grouped_job(4, least=3)
    step = job.steps[1]
    die(job, 1)
    job.kill(("worker", 1))
    assert job.published.directive.broken
    job.calm(15)

    newest = version_of(job)
    assert processes(job) == {2: 1, 3: 1, 0: newest, 4: newest}
    assert job.models[newest] >= set(range(step))


def test_plans_add_and_remove_whole_groups() -> None:
    """Plans add groups and remove groups; members that stay keep their processes."""
    job = grouped_job(2)
    assert carried_out(job, plan_of(4)) == "Succeeded"
    grown = version_of(job)
    assert processes(job) == {0: 1, 1: 1, 2: grown, 3: grown}
    job.delete_plan("plan")
    job.calm(3)
    job.submit("fewer", plan_of(2))
    job.calm(15)

    assert job.plans["fewer"].phase == "Succeeded"
    assert processes(job) == {0: 1, 1: 1}


def test_a_plan_for_a_part_of_a_group_is_refused() -> None:
    """A plan for half a group is rejected, even if ``minNodes`` is smaller: half a group can't train."""
    for workers, why in ((1, "at least 2 workers"), (3, "is not a multiple of 2")):
        job = grouped_job(2)
        assert carried_out(job, plan_of(workers)) == "Failed"
        refused = job.plans["plan"].run
        assert refused is not None
        assert why in refused.message
        assert processes(job) == {0: 1, 1: 1}


def test_a_migrated_member_takes_its_group_along() -> None:
    """The group of a migrated member starts new processes: the other member on its old node, the migrated one
    on its new node. The other group continues."""
    job = grouped_job()
    assert carried_out(job, plan_of(migrate=(1,))) == "Succeeded"

    newest = version_of(job)
    assert processes(job) == {2: 1, 3: 1, 0: newest, 4: newest}
    assert job.models[newest] == set(range(job.steps[newest]))


def test_a_new_master_knows_the_groups() -> None:
    """The master dies after a loss. Its successor handles the next loss like the first."""
    job = grouped_job(6)
    die(job, 1)
    job.crash()
    job.commit()
    assert processes(job) == {2: 1, 3: 1, 4: 1, 5: 1}
    die(job, 4)
    assert processes(job) == {2: 1, 3: 1}
