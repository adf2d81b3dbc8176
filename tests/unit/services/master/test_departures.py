"""A master that is told to end together with its job: for whom it serves on, and what ends that."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.services.master import server
from edl_workflows.services.master.autoscaler import JobAutoscaler
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.server import INTERRUPTED, ListenAddress, MasterParts, serve_master
from edl_workflows.services.master.state.nodes import leaving_steps
from edl_workflows.services.master.stores.file import FileStore
from tests.unit.services.master.fake_backend import FakeBackend
from tests.unit.services.master.simulated_job import SimulatedJob
from tests.unit.services.master.state.test_leaving import CHIEF, leave, training


class DeletedJobBackend(FakeBackend):
    """The API server knows that the job is deleted."""

    def is_job_deleted(self) -> bool:
        return True


class FencingStore(FileStore):
    """Another master may take it over."""

    taken = False

    def save(self, document: bytes) -> None:
        if self.taken:
            raise ConflictError("another master")
        super().save(document)


class RecordingMaster(Master):
    """Notes whether the simulated job had saved when the master stopped to serve."""

    job: SimulatedJob
    saved_before = False

    def close(self) -> None:
        self.saved_before = bool(self.job.saved)
        super().close()


def _serve(
    folder: Path, job: SimulatedJob, drive: Callable[[RecordingMaster, FencingStore], Awaitable[None]]
) -> tuple[int, RecordingMaster]:
    """Serve the job and tell the master to end; returns its exit code. `drive` is what happens meanwhile."""

    async def main() -> tuple[int, RecordingMaster]:
        store = FencingStore(folder / "state")
        master = RecordingMaster(job.state, store, lambda: job.now)
        master.job = job
        parts = MasterParts(
            master, FastAPI(), DeletedJobBackend(), contextlib.nullcontext, JobAutoscaler(master)
        )
        serving = asyncio.create_task(serve_master(parts, ListenAddress("127.0.0.1", 0)))
        await master.wait_until(lambda: master.commits > 0, 60)
        os.kill(os.getpid(), signal.SIGTERM)
        await master.wait_until(lambda: job.state.volatile.departure.deleted, 60)
        await drive(master, store)
        async with asyncio.timeout(60):
            return await serving, master

    return asyncio.run(main())


def test_master_serves_until_the_chief_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pods of a large job are told to end one after another, and the master may be the first: it has
    paused the job, so it serves until the last checkpoint is made."""
    monkeypatch.setattr(server, "GATHER_SECONDS", 0.0)
    job = training()

    async def drive(master: RecordingMaster, _: FencingStore) -> None:
        while not (job.saved or master.closing):
            await asyncio.sleep(0.3)
            job.calm(1)
            master.changed()

    code, master = _serve(tmp_path, job, drive)
    assert code == INTERRUPTED
    assert master.saved_before


def test_fenced_master_ends_although_nodes_leave(tmp_path: Path) -> None:
    """Another master serves the nodes then."""
    job = training()

    async def drive(master: RecordingMaster, store: FencingStore) -> None:
        leave(job, CHIEF)
        assert leaving_steps.somebody_leaves(job.state)
        store.taken = True
        master.changed()

    with pytest.raises(ConflictError, match="another master"):
        _serve(tmp_path, job, drive)
