"""A collective job of PyTorch whose model is sharded within replica groups: two groups of two workers. Agents
and master are real processes, kills are SIGKILLs."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.test_torch_survivors import SECONDS, alive, finished
from tests.e2e.test_torch_trouble import newest_process, taken_out
from tests.e2e.turns import Turns, command

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

SIZE, WORKERS, EPOCHS = 2, 4, 20


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CollectiveStandalone]:
    """A job of two groups that train slowly."""
    program = command(tmp_path, EPOCHS, "--step-delay", "1", "--replicas")
    with CollectiveStandalone(tmp_path, WORKERS, program, unit=SIZE) as running:
        yield running


def kill(job: CollectiveStandalone, rank: int) -> tuple[int, list[int]]:
    """SIGKILL to the process of a rank; returns the version that it was in, and the processes of the other
    groups."""
    before, members = job.version, job.members()
    others = [node for other, node in enumerate(members) if other // SIZE != rank // SIZE]
    going_on = [newest_process(job, node) for node in others]
    os.kill(newest_process(job, members[rank]), signal.SIGKILL)
    return before, going_on


def plan_is_over(job: CollectiveStandalone, name: str) -> bool:
    """Whether a plan has ended."""
    return job.plan(name).get("phase") in ("Succeeded", "Failed")


def equal_at_the_end(job: CollectiveStandalone) -> None:
    """All groups ended with the same model: the processes of equal index have equal shards."""
    found: dict[int, list[dict[str, int]]] = {}
    for file in job.folder.glob("turns-*"):
        if '"sums"' in (text := file.read_text()):
            last = json.loads(text.splitlines()[-1])
            found.setdefault(last["index"], []).append(last["sums"])
    assert sorted(found) == list(range(SIZE))
    assert all(len(sums) == WORKERS // SIZE for sums in found.values())
    assert all(one == sums[0] for sums in found.values() for one in sums)


def test_a_group_goes_on_while_the_other_is_broken(job: CollectiveStandalone) -> None:
    """Of four ranks, one of the second group and then rank 0 in the first group is killed. Each time the
    other group continues in its processes, and the broken one joins again. Each record is trained exactly
    once an epoch, with the losses of an undisturbed training, and all groups end with the same model."""
    turns = Turns(job.folder)
    job.wait(job.trains, SECONDS, "two groups train")
    for rank in (3, 0):
        before, going_on = kill(job, rank)
        job.wait(partial(job.goes_on, before), SECONDS, "the other group goes on")
        job.wait(partial(job.trains, before), SECONDS, "both groups train again")

        alone = [turn for turn in turns.of(going_on[0]) if turn[1] > before and turn[2] == SIZE and turn[3]]
        assert len(alone) > 1, "the group made no steps while the other was broken"
        assert all(alive(process) for process in going_on)
    finished(job, EPOCHS)

    equal_at_the_end(job)
    assert [turns.of(process)[0][4] for process in turns.processes()].count(1) == WORKERS, "nobody began anew"


@pytest.mark.long
def test_plans_and_the_death_of_a_whole_group_and_of_the_master(job: CollectiveStandalone) -> None:
    """Two groups become one and two again by plans, and each plan's checkpoint has a part of every process.
    Then a whole group is killed together with the master."""
    job.wait(job.trains, SECONDS, "two groups train")
    for name, workers, savers in (("fewer", SIZE, WORKERS), ("more", WORKERS, SIZE)):
        job.scale(name, {"replicaResourceSpecs": {"worker": {"replicas": workers}}})
        job.wait(partial(plan_is_over, job, name), SECONDS, "a plan ends")
        plan = job.plan(name)
        assert plan["phase"] == "Succeeded", plan
        assert len(job.members()) == workers
        assert len(list(Path(plan["checkpoint"]["uri"]).glob("state-*.safetensors"))) == savers
    before = job.version
    for node in job.members()[:SIZE]:
        os.kill(newest_process(job, node), signal.SIGKILL)
    job.kill_master()
    job.wait(lambda: job.trains(before), SECONDS, "both groups train again")
    finished(job, EPOCHS)

    equal_at_the_end(job)


@pytest.mark.long
def test_a_rank_that_is_stopped(job: CollectiveStandalone) -> None:
    """After SIGSTOP to a rank, its group waits for it in the forward pass, and the other group for both. The
    silent rank and its group are removed, and the other group continues."""
    job.wait(job.trains, SECONDS, "two groups train")
    before, members = job.version, job.members()
    victim = newest_process(job, members[3])
    os.kill(victim, signal.SIGSTOP)
    job.wait(partial(job.goes_on, before), SECONDS, "the other group goes on")
    assert f"{members[3]}: silent for 1" in taken_out(job)
    job.wait(partial(job.trains, before), SECONDS, "both groups train again")
    finished(job, EPOCHS)

    equal_at_the_end(job)
    assert not alive(victim)


@pytest.mark.long
def test_all_pods_are_deleted(tmp_path: Path) -> None:
    """As on a suspension, each process saves its part before it ends. New pods continue after that step."""
    program = command(tmp_path, EPOCHS, "--step-delay", "1", "--replicas")
    with CollectiveStandalone(tmp_path, WORKERS, program, unit=SIZE) as job:
        job.wait(job.trains, SECONDS, "two groups train")
        turns, members, before = Turns(tmp_path), job.members(), job.version
        first = turns.processes()
        for node in members:
            job.pods.terminate(node)
        job.wait(job.checkpoint, SECONDS, "the parts are saved")
        step = int(job.checkpoint()["step"])
        job.wait(partial(job.trains, before), SECONDS, "new pods train")
        finished(job, EPOCHS)
        equal_at_the_end(job)

    made = [step for process in first for _, _, _, done, step, *_ in turns.of(process) if done]
    assert step == max(made)


@pytest.mark.long
def test_each_group_loses_a_rank(tmp_path: Path) -> None:
    """After a loss in each group no process holds the model. The agents persist the parts that were copied to
    memory, new processes restore their shards from them, and each record is trained exactly once an epoch."""
    program = command(tmp_path, EPOCHS, "--step-delay", "1", "--replicas", "--memory-seconds", "0.2")
    with CollectiveStandalone(tmp_path, WORKERS, program, unit=SIZE) as job:
        job.wait(job.trains, SECONDS, "two groups train")
        started = job.step()
        job.wait(lambda: job.step() > started + 8, SECONDS, "copies were made")
        assert not job.checkpoint()
        before, turns, members = job.version, Turns(tmp_path), job.members()
        first = turns.processes()
        for rank in (1, 2):
            os.kill(newest_process(job, members[rank]), signal.SIGKILL)
        job.wait(job.checkpoint, SECONDS, "the parts are persisted")
        step = int(job.checkpoint()["step"])
        job.wait(lambda: job.trains(before), SECONDS, "both groups train again")
        finished(job, EPOCHS)
        equal_at_the_end(job)

    restarted = [turns.of(process)[0][4] for process in turns.processes() if process not in first]
    assert min(restarted) == step + 1
