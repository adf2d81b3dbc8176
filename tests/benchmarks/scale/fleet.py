"""The masters of many jobs in a few processes, without pods of their own.

Each job has a master of the product: its state, its loop, its effects with their pace, its ConfigMap, its own
three watches over HTTP, and its autoscaler. Only two things differ from pods: the messages of agents and
programs come from `SyntheticTraining`, and `SHARING` masters share their connections, the clients of which
are the product's. A master begins when the pod of its job's master runs, which KWOK says::

    python -m tests.benchmarks.scale.fleet KUBECONFIG EVENTS [--part 0/2] [--young]

Of many thousand jobs only what their masters write is measured (`--alone`): they have neither pods nor
watches, begin when the status of their job says Running, and are at a random point of the period that it
publishes. They look at their state four times less often, and as much less often do messages come.

It appends a line to the file EVENTS when a job trains, with its first step, and when a step was reported that
somebody waits for.
"""

import argparse
import asyncio
import json
import os
import random
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Scope
from edl_workflows.services.master import effects as effects_module
from edl_workflows.services.master import kubernetes
from edl_workflows.services.master import master as master_module
from edl_workflows.services.master.autoscaler import JobAutoscaler
from edl_workflows.services.master.effects import Effects
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, Timeouts, settings_of
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from edl_workflows.services.master.watch_connection import sharing_connection
from tests.benchmarks.scale.training import MOVED_SECONDS, SyntheticTraining, trained_state
from tests.benchmarks.scale.waste import WASTES, WastefulBackend

SHARING = 25
"""Masters that share connections. They have 75 watches, and an API server takes a hundred a connection."""
CONNECTIONS = 8
"""Of these masters for requests, beside the one for watches."""
THREADS = 128
"""For calls that block; a master in its pod has its own."""
STARTING = 32
"""Masters that start at the same time, so that on a slow machine each of them starts within its time-outs."""
RARER = 4.0
"""How many times less often a master that is alone looks at its state. With pauses of 10 s it would believe
that the clock was set."""


@dataclass(frozen=True)
class Habits:
    """How the masters and their jobs differ from others.

    Attributes:
        young: whether the jobs have not trained before.
        waste: the mistake that each master makes, one of `WASTES`.
        alone: whether there are only the masters.
    """

    young: bool = False
    waste: str = ""
    alone: bool = False


class Fleet:
    """The masters.

    Args:
        kubeconfig: of the API server.
        events: where lines are written.
        part: index of this process among so many; the number at the end of a job's name decides which one has
            its master.
        habits: of the masters.
    """

    def __init__(self, kubeconfig: Path, events: TextIO, part: tuple[int, int], habits: Habits) -> None:
        self._kubeconfig = kubeconfig
        self._events = events
        self._part = part
        self._habits = habits
        self._begun: set[str] = set()
        self._stack = ExitStack()
        self._shared: Cluster | None = None
        self._starting = asyncio.Semaphore(STARTING)

    async def run(self) -> None:
        """Run a master for each job, until one fails."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS))
        started: asyncio.Queue[str] = asyncio.Queue()

        def changed(change: ObjectChange) -> None:
            if (change.object.get("status") or {}).get("phase") == "Running":
                metadata = change.object["metadata"]
                job = metadata["name"] if self._habits.alone else metadata["labels"][names.JOB_LABEL]
                loop.call_soon_threadsafe(started.put_nowait, job)

        selector = f"{names.REPLICA_TYPE_LABEL}={names.MASTER_TYPE}"
        source = ClusterSource.of(Cluster.from_kubeconfig(self._kubeconfig))
        pods = Scope(PODS, label_selector=selector)
        informer = Informer(source, Scope(ELASTIC_JOBS) if self._habits.alone else pods)
        informer.on_change(changed)
        informer.start()
        async with asyncio.TaskGroup() as masters:
            while True:
                job = await started.get()
                if job not in self._begun and self._has(job):
                    self._begun.add(job)
                    masters.create_task(self._serve(job, await self._cluster()))

    def _has(self, job: str) -> bool:
        index, processes = self._part
        return int(job.rpartition("-")[2]) % processes == index

    async def _cluster(self) -> Cluster:
        """A handle that `SHARING` masters share."""
        if self._shared is None or len(self._begun) % SHARING == 1:
            self._shared = await asyncio.to_thread(self._connect)
        return self._shared

    def _connect(self) -> Cluster:
        cluster = self._stack.enter_context(sharing_connection(Cluster.from_kubeconfig(self._kubeconfig)))
        cluster.api_client.rest_client.pool_manager.connection_pool_kw["maxsize"] = CONNECTIONS
        return cluster

    async def _serve(self, name: str, cluster: Cluster) -> None:
        while True:
            async with AsyncExitStack() as stack:
                try:
                    async with self._starting:
                        training = await self._start(name, cluster, stack)
                except UnavailableError as error:  # its pod would be replaced
                    print(f"{name}: {error}; starting its master again", flush=True)
                    continue
                self._tell(event="trains", job=name, step=training.step, time=time.time())
                await training.run()

    async def _start(self, name: str, cluster: Cluster, stack: AsyncExitStack) -> SyntheticTraining:
        """Start a master as `edl_workflows.services.master.server` does in a cluster, but without the server,
        and bring its job to the first step.

        Args:
            name: of the job.
            cluster: handle of the master.
            stack: ends the master.
        """
        timeouts = Timeouts()
        job = await asyncio.to_thread(kubernetes.read_job, cluster, name)
        settings = settings_of(job, job.metadata.namespace or cluster.namespace, timeouts)
        store = ConfigMapStore(cluster, name)
        await asyncio.to_thread(store.load)
        stored = None if self._habits.young else trained_state(settings, time.time())
        master = Master(JobState(settings, stored, watches_pods=not self._habits.alone), store)
        backend = kubernetes.KubernetesBackend(cluster, job)
        if self._habits.waste:
            backend = WastefulBackend(cluster, job, master, self._habits.waste)
        effects = Effects(master, backend)
        autoscaler = JobAutoscaler(master)
        await autoscaler.begin()
        if not self._habits.alone:
            watch = kubernetes.ClusterWatch(cluster, job, master, timeouts)
            await stack.enter_async_context(watch.running())
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for loop in (master.run(), effects.run(), autoscaler.run()):
            tasks.create_task(loop)
        training = SyntheticTraining(
            master,
            lambda step, at: self._tell(event="step", job=name, step=step, time=at),
            rarer=RARER if self._habits.alone else 1.0,
        )
        await training.start()
        if self._habits.alone:
            asyncio.get_running_loop().call_later(MOVED_SECONDS, _move_in_period, effects, settings)
        return training

    def _tell(self, **event: object) -> None:
        print(json.dumps(event), file=self._events, flush=True)


def _move_in_period(effects: Effects, settings: JobSettings) -> None:
    """To a random point, as if the job had begun at another time."""
    effects._pace._at -= random.uniform(0, settings.progress_period)


def main() -> None:
    """Serve until killed, or until a master fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("--part", default="0/1", metavar="INDEX/PROCESSES", help="which masters run here")
    parser.add_argument("--young", action="store_true", help="the jobs have not trained before")
    parser.add_argument("--waste", choices=WASTES, default="", help="the mistake that each master makes")
    parser.add_argument("--alone", action="store_true", help="masters without pods, watches and a controller")
    options = parser.parse_args()
    if options.alone:
        effects_module.LOOK_SECONDS *= RARER
        master_module.TICK *= RARER
    index, _, processes = options.part.partition("/")
    with options.events.open("a") as events:
        part = int(index), int(processes)
        habits = Habits(options.young, options.waste, options.alone)
        fleet = Fleet(options.kubeconfig, events, part, habits)
        try:
            asyncio.run(fleet.run())
        except Exception:  # noqa: BLE001 - of any master
            traceback.print_exc()
            os._exit(1)  # threads of watches would keep the process


if __name__ == "__main__":
    main()
