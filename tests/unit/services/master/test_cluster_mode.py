"""A master in mode cluster and a real Brain process: asked while it is there, replaced while it is away,
found again.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.protocol.nodes import Usage
from edl_workflows.services.master import master as module
from edl_workflows.services.master.autoscaler import JobAutoscaler
from edl_workflows.services.master.brain import BrainAccess, BrainClient, JobIdentity
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.optimizers import Optimizers
from edl_workflows.services.master.state.settings import AutoscalingSettings, JobSettings, RoleSettings
from edl_workflows.services.master.stores.file import FileStore
from tests.unit.services.master.simulated_job import SimulatedJob

SIZE = NodeResource(cpu="4", memory="4Gi")
SETTINGS = JobSettings(
    "job",
    "default",
    {"ps": RoleSettings(1, resource=SIZE), "worker": RoleSettings(1, resource=SIZE)},
    limits={"cpu": 40.0, "memory": 2.0**36},
    optimizing=AutoscalingSettings(OptimizeMode.CLUSTER),
)


class BrainProcess:
    """`edl brain run` on one port and one store, whenever it runs."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--database-url", f"sqlite:///{self.folder}/brain.db", "--no-require-token"]
        options += ["--port", self.address.rpartition(":")[2], "--metrics-port", "0"]
        command = [sys.executable, "-m", "edl_workflows", "brain", "run", *options]
        with (self.folder / "brain.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 240
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "brain.log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(240)

    def _answers(self) -> bool:
        try:
            httpx.get(f"http://{self.address}/", timeout=30, trust_env=False)
        except httpx.HTTPError:
            return False
        return True


def _job() -> SimulatedJob:
    """One whose clock is an hour behind ours: Brain keeps no reports of long ago, and none of the future."""
    job = SimulatedJob(SETTINGS, shards=100_000)
    job.usage = lambda pod: Usage(cpu=1.2 if pod.type == "ps" else 2.0, memory=1000.0)
    gap = time.time() - 3600 - job.now
    job.now += gap
    job.state.shift_times(gap)
    return job


@contextlib.contextmanager
def _autoscaler(job: SimulatedJob, brain: BrainProcess) -> Iterator[JobAutoscaler]:
    client = BrainClient(BrainAccess(brain.address), JobIdentity("uid-1", "default"))
    master = Master(job.state, FileStore(brain.folder / "unused"), lambda: job.now)
    with contextlib.closing(client):
        yield JobAutoscaler(master, Optimizers(client))


async def _shown(job: SimulatedJob, autoscaler: JobAutoscaler, rounds: int) -> AutoscalingStatus:
    """What the job's master says after so many samples."""
    for _ in range(rounds):
        job.calm(2)
        job.now += 13.0
        await autoscaler.once()
    assert job.state.autoscaling.shown is not None
    return job.state.autoscaling.shown


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_brain_plans_and_the_master_while_it_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brain plans from the reported samples. While it is down, the local optimizer plans and says why. When
    Brain is back with its database, it plans again, also for a new master without samples of its own."""
    monkeypatch.setattr(module, "GAP", 600.0)  # the simulated time jumps from look to look
    brain = BrainProcess(tmp_path)
    job = _job()

    async def main(autoscaler: JobAutoscaler) -> None:
        first = await _shown(job, autoscaler, 16)
        assert (first.optimizer, first.stage) == ("brain", "job_stage_worker_initial")
        assert first.replica_resource_specs["worker"].replicas
        brain.kill()
        second = await _shown(job, autoscaler, 3)
        assert second.optimizer == "local"
        assert any("Brain does not answer" in note for note in second.notes)
        brain.start()
        third = await _shown(job, autoscaler, 3)
        assert third.optimizer == "brain"
        assert third.replica_resource_specs["worker"].replicas

    async def restarted(autoscaler: JobAutoscaler) -> None:
        fourth = await _shown(job, autoscaler, 6)
        assert fourth.optimizer == "brain"
        assert fourth.replica_resource_specs["worker"].replicas

    try:
        brain.start()
        with _autoscaler(job, brain) as autoscaler:
            asyncio.run(main(autoscaler))
        job.crash()
        job.calm(2)
        with _autoscaler(job, brain) as autoscaler:
            asyncio.run(restarted(autoscaler))
    finally:
        brain.kill()
