"""Members of a PyTorch job that neither train nor end: each trouble ends in a clear reason, the others step
on, and no record is lost. Agents and master are real processes."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from tests.e2e import networks
from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.test_torch_survivors import SECONDS, WORKERS, alive, finished
from tests.e2e.turns import Turns, command, undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

EPOCHS = 40
CUT_OFF = "worker-2"
GROUP = 42_424
"""Under whose id the processes of `CUT_OFF` run."""
SMALL, LARGE = 256, 65_536
"""Kilobytes: a checkpoint has 2,000."""

Trouble = Callable[[CollectiveStandalone], None]


def newest_process(job: CollectiveStandalone, node: str) -> int:
    """The training process of a node."""
    turns = Turns(job.folder)
    return max(turns.processes(node), key=turns.began)


def taken_out(job: CollectiveStandalone, cause: str = "AbsentFromStep") -> str:
    """What the status says of a node that ended for this cause; "" before."""
    recent = (job.status().get("restarts") or {}).get("recent") or []
    found = [f"{one['subject']}: {one['message']}" for one in recent if one["cause"] == cause]
    return found[0] if found else ""


def warns(job: CollectiveStandalone, text: str) -> bool:
    """Whether the status warns of something."""
    return any(text in warning for warning in job.status().get("warnings") or [])


def stopped(job: CollectiveStandalone) -> None:
    """SIGSTOP: the others wait, then go on without it; a replacement joins, and the stopped process ends."""
    version = job.version
    victim = newest_process(job, "worker-1")
    os.kill(victim, signal.SIGSTOP)
    job.wait(lambda: job.goes_on(version), SECONDS, "the others step on")
    assert "worker-1: silent for 1" in taken_out(job)
    job.wait(lambda: job.trains(version), SECONDS, "a replacement joins")
    job.wait(lambda: not alive(victim), SECONDS, "the stopped process ends")


def cut_off(job: CollectiveStandalone) -> None:
    """Nothing that it sends arrives: as if stopped. When it is back it learns that it is not needed."""
    version = job.version
    with networks.cut_off(GROUP):
        job.wait(lambda: job.goes_on(version), SECONDS, "the others step on")
        assert f"{CUT_OFF}: silent for 1" in taken_out(job)
        assert job.pods.code(CUT_OFF) is None
    job.wait(lambda: job.trains(version), SECONDS, "a replacement joins")
    job.wait(lambda: job.pods.code(CUT_OFF) is not None, SECONDS, "its agent ends")


def slow(job: CollectiveStandalone) -> None:
    """It lives, so the others wait, and the status says for whom."""
    version = job.version
    (job.folder / "slow-forward").touch()
    job.wait(lambda: warns(job, "the other members have waited for worker-"), SECONDS, "a warning")
    step = job.step()
    job.wait(lambda: job.step() > step, SECONDS, "they step on together")
    job.wait(lambda: not warns(job, "have waited"), SECONDS, "the warning is gone")
    assert job.version == version
    assert taken_out(job) == ""


def rubbish(job: CollectiveStandalone) -> None:
    """The newcomer ends at once and says why; the next one gets the state whole."""
    version = job.version
    (job.folder / "damage-state").touch()
    (job.folder / "die-forward").touch()
    job.wait(lambda: taken_out(job, "UnknownError"), SECONDS, "the newcomer refuses the state")
    assert "arrived damaged: its checksum differs" in taken_out(job, "UnknownError")
    job.wait(lambda: job.trains(version + 1), SECONDS, "another newcomer joins")


def dies_while_it_sends(job: CollectiveStandalone) -> None:
    """The sender of the state is killed with a part of it sent: the newcomer gets it from another member."""
    version = job.version
    (job.folder / "die-state").touch()
    (job.folder / "die-forward").touch()
    job.wait(lambda: list(job.folder.glob("died-state-*")), SECONDS, "a death in the transfer")
    job.wait(lambda: job.trains(version + 1), SECONDS, "two newcomers join")
    assert "KilledBySignal" in job.status()["restarts"]["counts"]


def full_disk(job: CollectiveStandalone) -> None:
    """Checkpoints fail with the system's own words, and training goes on; with space again they succeed."""
    job.wait(lambda: warns(job, "No space left on device"), SECONDS, "a warning")
    step = job.step()
    job.wait(lambda: job.step() > step + 2, SECONDS, "training goes on")
    networks.grow_disk(job.folder / "checkpoints", LARGE)
    job.wait(job.checkpoint, SECONDS, "a checkpoint")
    job.wait(lambda: not warns(job, "No space left"), SECONDS, "the warning is gone")


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss of each step of an undisturbed training."""
    return undisturbed(tmp_path_factory.mktemp("alone"), EPOCHS)


@pytest.mark.parametrize(
    ("trouble", "needs"),
    [
        pytest.param(stopped, (), id="stopped"),
        pytest.param(cut_off, ("ip", "iptables"), id="cut off", marks=pytest.mark.long),
        pytest.param(slow, (), id="slow", marks=pytest.mark.long),
        pytest.param(rubbish, (), id="rubbish as a state", marks=pytest.mark.long),
        pytest.param(dies_while_it_sends, (), id="dies while it sends", marks=pytest.mark.long),
        pytest.param(full_disk, ("mount",), id="full disk", marks=pytest.mark.long),
    ],
)
def test_trouble_has_a_reason(
    tmp_path: Path, losses: dict[int, float], trouble: Trouble, needs: tuple[str, ...]
) -> None:
    """Each trouble is handled as its function above says. At the end each record was trained exactly once an
    epoch, with the losses of an undisturbed training."""
    if needs and (why := networks.missing(*needs)):
        pytest.skip(why)
    options = ["--step-delay", "0.5"]
    with ExitStack() as surroundings:
        if trouble is cut_off:
            surroundings.enter_context(networks.private_network())
        if trouble is full_disk:
            surroundings.enter_context(networks.small_disk(tmp_path / "checkpoints", SMALL))
            options += ["--save-seconds", "1"]
        tolerance = FaultTolerance()
        if trouble is rubbish:  # a process with PyTorch is silent while it ends: 1 s on a machine at rest
            tolerance = FaultTolerance(silent_member_seconds=0)
        program = command(tmp_path, EPOCHS, *options)
        job = CollectiveStandalone(tmp_path, WORKERS, program, tolerance=tolerance)
        job.pods.groups[CUT_OFF] = GROUP if trouble is cut_off else os.getegid()
        surroundings.enter_context(job)
        job.wait(job.trains, SECONDS, "three members train")
        trouble(job)
        finished(job, EPOCHS, losses)
