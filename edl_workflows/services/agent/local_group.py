"""Runs an unmodified ``torchrun`` script: ``edl agent run --nproc-per-node 4 -- train.py``.

The agent starts this program as the training process of each cluster version. It runs the script once per
local rank, with the variables that ``torchrun`` sets (PyTorch, "torchrun (Elastic Launch)", section
Environment Variables), and follows the master's directives in the script's place. So workers join and leave
while the script trains: the script is ended and started again in the new group, as ``torchrun`` does. What
continues is what the script has saved itself.

The scripts form their group over the store of global rank 0. Each cluster version has its own ports, and its
rank 0 is one of its own processes, so no store outlives its group, and none depends on the job's master.
"""

import argparse
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import OWN_CHECKPOINT, CheckpointRef
from edl_workflows.services.agent.group_connections import GroupConnections, read_text
from edl_workflows.services.agent.processes import TrainingProcess
from edl_workflows.training import addresses
from edl_workflows.training.cluster_member import TERMINATED
from edl_workflows.training.connecting import connect
from edl_workflows.training.job import Job
from edl_workflows.training.program import INVALID

STOP_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL for the scripts when the group changes; as in torchrun."""
_KILLED = 137
_MANY_RESTARTS = str(2**31 - 1)
_COUNTS = re.compile(r"auto|cpu|gpu|[1-9][0-9]{0,3}")

log = logging.getLogger(__name__)


def group_command(processes: str, command: Sequence[str]) -> list[str]:
    """The command of a training process that runs `command` once per local rank.

    Args:
        processes: a number; ``gpu``: one per GPU; ``cpu``: one per core; ``auto``: one per GPU if there are
            any, else one per core.
        command: a program with its arguments. A file ``*.py`` is run by ``$PYTHON_EXEC``, or the agent's own
            Python.

    Raises:
        InvalidError: `processes` is not one of these.
    """
    if not _COUNTS.fullmatch(processes):
        raise InvalidError(f"--nproc-per-node {processes}: give a number from 1 to 9999, auto, gpu or cpu")
    python = [os.environ.get("PYTHON_EXEC", sys.executable), "-u"] if command[0].endswith(".py") else []
    return [sys.executable, "-P", "-m", __name__, processes, *python, *command]


def is_group_command(command: Sequence[str]) -> bool:
    """Whether `group_command` made the command."""
    return list(command[1:4]) == ["-P", "-m", __name__]


def count_processes(
    nproc_per_node: str, environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")
) -> int:
    """The number of processes that an argument of `group_command` means on this machine.

    Raises:
        InvalidError: one process per GPU is wanted, but there is no GPU.
    """
    if nproc_per_node.isdigit():
        return int(nproc_per_node)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = len([device for device in devices.glob("nvidia[0-9]*") if device.name[6:].isdigit()])
    else:
        gpus = len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    if nproc_per_node == "gpu" and not gpus:
        raise InvalidError("--nproc-per-node gpu: this pod has no GPU; write auto, cpu or a number")
    return gpus if gpus and nproc_per_node != "cpu" else len(os.sched_getaffinity(0))


def rank_environments(base: Mapping[str, str], processes: int) -> list[dict[str, str]]:
    """The environment of each local rank.

    Args:
        base: environment of the training process, in which the agent has set rank and number of the *nodes*.
        processes: number of processes per node, the same on all nodes.

    Raises:
        InvalidError: the job is not collective, so the variables are missing.
    """
    if names.ENV_RANK not in base:
        raise InvalidError(
            "--nproc-per-node is for workers of a collective job: set distributionStrategy: AllreduceStrategy"
        )
    node, nodes = int(base[names.ENV_RANK]), int(base[names.ENV_WORLD_SIZE])
    size = str(nodes * processes)
    same = {
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "LOCAL_WORLD_SIZE": str(processes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": size,
        names.ENV_WORLD_SIZE: size,
        "TORCHELASTIC_RESTART_COUNT": str(int(base[names.ENV_CLUSTER_VERSION]) - 1),
        "TORCHELASTIC_MAX_RESTARTS": _MANY_RESTARTS,  # the master decides, and its budgets are per node
        "TORCHELASTIC_RUN_ID": base.get(names.ENV_JOB_UID, "") or base.get(names.ENV_JOB_NAME, ""),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if processes > 1:
        same["OMP_NUM_THREADS"] = base.get("OMP_NUM_THREADS", "1")
    ranks = [(local, str(node * processes + local)) for local in range(processes)]
    return [
        {**base, **same, names.ENV_LOCAL_RANK: str(local), names.ENV_RANK: rank, "ROLE_RANK": rank}
        for local, rank in ranks
    ]


class LocalGroup:
    """The scripts of one node in one cluster version.

    Args:
        job: this process's view of the job.
        command: command that starts a script.
        environments: environment of each script, by local rank.
        group: whether the scripts meet those of other nodes; None if there is only one script.
    """

    def __init__(
        self,
        job: Job,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        group: GroupConnections | None = None,
    ) -> None:
        self._job = job
        self._group = group
        self._separate = False
        self._reporting = threading.Lock()
        self._command = command
        self._environments = environments
        self._scripts: list[TrainingProcess] = []

    def run(self) -> int:
        """Run the scripts until all have exited with code 0. If the master asks them to stop and then
        continues with the same version, start them again.

        Returns:
            The exit code of this process.

        Raises:
            SystemExit: this process was asked to exit, or a script failed.
        """
        job = self._job
        job.save_with(self._own_checkpoint)
        job.wait_until_active()
        if self._group is not None:
            self._group.start(self.report_copies)
        while True:
            self._start()
            job.report_step(self._step)
            self._train()
            if self._over and not self._failures and not job.terminated:
                self.report_copies(0)
                return 0
            failed = self._failures  # before the others are ended
            self._stop()
            if job.terminated:
                return TERMINATED
            if failed:
                return self._give_up(failed)
            job.between_steps()

    def report_copies(self, code: int | None = None) -> None:
        """Report whether each script trains a model of its own, if that is known. The thread that watches the
        scripts calls it, too.

        Args:
            code: exit code of the scripts, if they have ended.
        """
        if self._group is None:
            return
        with self._reporting:
            separate = self._group.trains_own_copy(code)
            if separate is None or separate is self._separate:
                return
            self._separate = separate
            if separate:
                log.warning("%s", NO_GROUP)
                self._job.declare_separate_copies()
            else:
                self._job.declare_one_model()

    def _train(self) -> None:
        """Wait until the scripts must stop, one has failed, or all have ended. Requests for a checkpoint,
        with which a plan begins, are answered in the meantime."""
        job = self._job

        def stops() -> bool:
            return job.terminated or job.drain_requested or self._over

        while not stops():
            if job.should_checkpoint():
                job.checkpoint()
            job.wait_until(lambda: stops() or job.should_checkpoint())

    @property
    def _step(self) -> int:
        """The step to report to the master. It must grow from group to group, so groups are counted."""
        restored = self._job.cluster.restore
        return 1 + (restored.step if restored is not None else 0)

    @property
    def _failures(self) -> list[tuple[int, int]]:
        """Local rank and exit code of each script that failed."""
        ended = [(rank, script.code) for rank, script in enumerate(self._scripts)]
        return [(rank, code) for rank, code in ended if code]

    @property
    def _over(self) -> bool:
        """Whether a script failed, or all have ended."""
        return bool(self._failures) or all(script.code == 0 for script in self._scripts)

    def _own_checkpoint(self) -> CheckpointRef:
        return CheckpointRef(uri=OWN_CHECKPOINT, step=self._step)

    def _start(self) -> None:
        log.info("starting %d processes in cluster version %d", len(self._environments), self._job.version)
        self._scripts = [
            TrainingProcess(self._job.version, self._command, environment, self._job.wake)
            for environment in self._environments
        ]

    def _stop(self) -> None:
        """Send SIGTERM to the scripts, after `STOP_SECONDS` SIGKILL, and wait until they have ended."""
        deadline = time.monotonic() + STOP_SECONDS
        for script in self._scripts:
            script.terminate()
        for script in self._scripts:
            if not script.wait(max(0.0, deadline - time.monotonic())):
                script.kill()
                script.wait(STOP_SECONDS)

    def _give_up(self, failed: Sequence[tuple[int, int]]) -> int:
        """The exit code of the first failed script. Unless the script was killed, it may have failed because
        another node was lost; then this first waits until the master may have reported that loss."""
        rank, code = failed[0]
        reason = f"the process of local rank {rank} exited with code {code}"
        if code != _KILLED:
            self._job.cluster_lost(reason, code)
        log.error("%s", reason)
        return code


def _watch_group(
    job: Job, command: Sequence[str], environments: Sequence[Mapping[str, str]]
) -> GroupConnections | None:
    if environments[0][names.ENV_WORLD_SIZE] == "1":
        return None
    own = job.environment.listen_address(job.version)
    others = addresses.resolve_all(
        member.address for member in job.cluster.workers if member.id != job.node.id
    )
    return GroupConnections(os.getpid(), own, others, read_text(command, os.environ))


def main(argv: Sequence[str]) -> int:
    """Run the command line: ``PROCESSES PROGRAM ARGUMENT …``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processes")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s edl-agent %(levelname)s %(message)s")
    try:
        environments = rank_environments(os.environ, count_processes(options.processes))
        job = connect()
        try:
            group = _watch_group(job, options.command, environments)
            return LocalGroup(job, options.command, environments, group).run()
        finally:
            job.close()
    except EdlError as error:
        log.error("%s", error)  # noqa: TRY400 - a user's mistake needs no traceback
        return INVALID


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
