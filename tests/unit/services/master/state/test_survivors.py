"""Collective jobs whose processes can change their group while they run: what the master makes of losses and
joins."""

import pytest

from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.nodes.registry import NodeStatus
from edl_workflows.services.master.state.versions import version_steps
from tests.unit.services.master.state.in_place_jobs import active, death, die, in_place_job, processes
from tests.unit.services.master.state.worlds import carried_out, plan_of, version_of, world_of


def test_survivors_go_on_at_once() -> None:
    """After one report of a death, the next directive names the survivors with their processes, and neither
    step nor data go back."""
    job = in_place_job()
    step, models = job.steps[1], set(job.models[1])
    die(job, 0)

    assert processes(job) == {1: 1, 2: 1}
    assert active(job).in_place
    assert active(job).restore is None
    assert not job.published.directive.lost
    assert job.state.steps.step == step
    assert job.state.goes_back is False
    job.act(("worker", 1))
    assert job.models[version_of(job)] >= models
    assert job.state.restarts.counts.get("Recovery") is None


def test_a_replacement_joins_while_the_others_keep_their_processes() -> None:
    """Only the new member starts a process. The others stop between two steps, and no checkpoint is saved for
    the join."""
    job = in_place_job()
    die(job, 1)
    job.kill(("worker", 1))
    job.calm(15)

    assert world_of(job) == (0, 2, 3)
    newest = version_of(job)
    assert processes(job) == {0: 1, 2: 1, 3: newest}
    assert job.models[newest] == set(range(job.steps[newest]))
    assert job.saved == {}


def test_losses_one_after_the_other() -> None:
    """If a second member is lost before the version after the first loss has made a step, the members that
    hold the model continue."""
    job = in_place_job()
    die(job, 2)
    die(job, 0)

    assert processes(job) == {1: 1}
    job.calm(20)
    assert job.state.versions.settled
    assert len(world_of(job)) == 3
    assert world_of(job)[0] == 1
    assert job.models[version_of(job)] == set(range(job.steps[version_of(job)]))


def test_nobody_is_left_who_holds_the_model() -> None:
    """If all pods die, the next version starts new processes from the newest checkpoint."""
    job = in_place_job()
    job.save_periodically()
    saved = job.steps[1]
    job.calm(2)
    for node in range(3):
        job.kill(("worker", node))
    job.calm(20)

    assert not active(job).in_place
    assert active(job).restore is not None
    assert job.state.versions.settled
    assert job.state.steps.step >= saved
    assert job.models[version_of(job)] == set(range(job.steps[version_of(job)]))


def test_the_only_member_dies() -> None:
    """The early report of its death changes nothing: the agent first saves the state in memory, and then
    reports the exit."""
    job = in_place_job(1)
    before = job.state.versions
    messages.record_death_report(job.state, death(0))

    assert job.state.versions == before
    assert job.state.nodes.find("worker", 0) is not None


def test_too_few_are_left() -> None:
    """With fewer members than the minimum, the survivors keep the model and wait. When the replacement comes,
    they continue in place."""
    job = in_place_job(3, min_nodes=3)
    step = job.steps[1]
    die(job, 1)
    job.kill(("worker", 1))

    directive = job.published.directive
    assert directive.broken
    assert not directive.lost
    assert active(job).version == 1
    job.calm(15)
    newest = version_of(job)
    assert processes(job) == {0: 1, 2: 1, 3: newest}
    assert job.models[newest] >= set(range(step))
    assert job.saved == {}


def test_the_survivors_that_wait_die_too() -> None:
    """If the waiting survivors die, too, no process holds the model, and the job goes back to its
    checkpoint."""
    job = in_place_job(3, min_nodes=3)
    job.save_periodically()
    die(job, 1)
    job.kill(("worker", 1))
    job.kill(("worker", 0))
    job.kill(("worker", 2))
    job.observe()
    job.commit()

    assert job.published.directive.lost
    assert not job.published.directive.broken
    job.calm(20)
    assert job.state.versions.settled
    assert not active(job).in_place
    assert active(job).restore is not None


@pytest.mark.parametrize(
    ("code", "charged"),
    [(1, True), (137, True), (CLUSTER_LOST_EXIT_CODE, False)],
    ids=["bug", "killed", "sound"],
)
def test_who_is_to_blame(code: int, charged: bool) -> None:
    """If a process of an in-place group ends, its node has failed. If the process only found no group, the
    node has not failed and joins again with a new process."""
    job = in_place_job()
    die(job, 2, code)

    node = job.state.nodes.find("worker", 2)
    assert node is not None
    assert (node.status is NodeStatus.FAILED) == charged
    assert processes(job) == {0: 1, 1: 1}
    verdict = messages.decide_exit(job.state, death(2, code), job.now)
    assert verdict is not None
    assert verdict.wait != charged


def test_a_process_that_went_on_is_known_by_its_first_version() -> None:
    """A process is identified by the version for which it was started, whatever version it is in now."""
    job = in_place_job()
    die(job, 2)
    job.kill(("worker", 2))
    job.calm(15)
    die(job, 1, process=1)

    assert set(processes(job)) == {0, 3}


def test_a_plan_keeps_the_processes_of_those_who_stay() -> None:
    """When a plan adds or removes workers, members that stay keep their processes, and removed ones end."""
    job = in_place_job(2)
    assert carried_out(job, plan_of(3)) == "Succeeded"
    grown = version_of(job)
    assert processes(job) == {0: 1, 1: 1, 2: grown}
    job.delete_plan("plan")
    job.calm(3)
    job.submit("fewer", plan_of(1))
    job.calm(15)

    assert job.plans["fewer"].phase == "Succeeded"
    assert processes(job) == {0: 1}
    assert job.models[version_of(job)] == set(range(job.steps[version_of(job)]))


def test_a_hang_restarts_the_processes() -> None:
    """The model of a process that hangs is not trusted: all processes start again from the checkpoint."""
    job = in_place_job()
    version_steps.restart_processes(job.state, job.now)
    job.settle()
    job.commit()

    assert job.published.directive.lost
    assert job.published.directive.next is not None
    assert not job.published.directive.next.in_place


def test_a_new_master_knows_who_holds_the_model() -> None:
    """After a loss, the master dies. Its successor knows the same processes from the stored state, and
    handles the next loss like the first."""
    job = in_place_job()
    die(job, 2)
    before = processes(job)
    job.crash()
    job.commit()
    assert processes(job) == before
    die(job, 1)
    assert processes(job) == {0: 1}
