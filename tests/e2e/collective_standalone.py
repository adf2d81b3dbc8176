"""A collective job of a standalone master: `tests.e2e.standalone` with workers that are the members.

python -m tests.e2e.collective_standalone FOLDER PORT WORKERS MOST UNIT TOLERANCE   # the master
"""

import os
import subprocess
import sys
from pathlib import Path

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master import server
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, RoleSettings, Timeouts
from tests.e2e.pods import IDS, JOB, NAMESPACE
from tests.e2e.standalone import TOKEN, Standalone

MOST = 4
"""Members, and mini-batches of a global batch, unless a test says another number."""


class CollectiveStandalone(Standalone):
    """One collective job: its master, and its workers as the master wants them.

    Args:
        folder: for state and logs.
        workers: how many.
        command: the training program.
        ids: the most workers during the job's life.
        tolerance: its ``spec.faultTolerance``.
        unit: workers of a replica group.
        most: members, and mini-batches of a global batch.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        command: list[str],
        ids: int = IDS,
        tolerance: FaultTolerance | None = None,
        unit: int = 1,
        most: int = MOST,
    ) -> None:
        self._workers = workers
        self._most = most
        self._unit = unit
        self._tolerance = tolerance or FaultTolerance()
        super().__init__(folder, str(workers), command, ids)

    def members(self) -> list[str]:
        """The workers of the active version, by rank."""
        active = (self.status().get("directive") or {}).get("active") or {}
        return [f"worker-{member['id']}" for member in active.get("workers", [])]

    @property
    def version(self) -> int:
        """The active version; 0 before the first."""
        return int(((self.status().get("directive") or {}).get("active") or {}).get("version", 0))

    def trains(self, after: int = 0) -> bool:
        """Whether a version later than this one has all workers, and has made a step."""
        active = (self.status().get("directive") or {}).get("active") or {}
        return len(active.get("workers", ())) >= self._workers and self.goes_on(after)

    def goes_on(self, after: int) -> bool:
        """Whether a version later than this one has made a step."""
        directive = self.status().get("directive") or {}
        active = directive.get("active") or {}
        return bool(active and directive["trained"] == active["version"] > after)

    def _start_master(self) -> subprocess.Popen[bytes]:
        tolerance = self._tolerance.model_dump_json(by_alias=True)
        numbers = [str(self._most), str(self._unit)]
        words = [str(self.folder / "state"), str(self._port), self._nodes, *numbers, tolerance]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.collective_standalone", *words],
            env={**self.pods.env, names.ENV_JOB_TOKEN: TOKEN},
            stdout=self._log,
            stderr=self._log,
        )


def main() -> int:
    """Serve the job."""
    folder, port, workers, most, unit, tolerance = sys.argv[1:]
    worker = RoleSettings(replicas=int(workers), restart_always=True, restart_count=5)
    settings = JobSettings(
        JOB,
        NAMESPACE,
        {**parse_nodes(f"worker={workers}"), names.WORKER_TYPE: worker},
        timeouts=Timeouts(heartbeat=60.0),
        collective=True,
        rendezvous=RendezvousLimits(int(unit), int(most), int(unit), waiting_timeout=max(1.0, int(most) / 4)),
        fault_tolerance=FaultTolerance.model_validate_json(tolerance),
    )
    address = server.ListenAddress("127.0.0.1", int(port))
    return server.run_standalone(settings, Path(folder), os.environ[names.ENV_JOB_TOKEN], address)


if __name__ == "__main__":
    sys.exit(main())
