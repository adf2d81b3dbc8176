"""Jobs of every kind at once on one API server: each runs with all its pods and succeeds; what each kind
costs beside ElasticJob.

Each kind has a namespace and a controller of its own (``edl controller run --kinds``), whose requests are
counted. Every job has four pods. The bench ends a job's pods as soon as all of them run, and stands in for
the masters of ElasticJobs. At the end it deletes all jobs: no object of theirs may be left, and a
controller's memory must be that of before::

    python -m tests.benchmarks.bench_mixed [--jobs 1000] [--embedded]

Without ``--embedded`` it starts a control plane of its own with KWOK's nodes (root and Go are needed); with
it the embedded API server, where the bench plays the kubelet, too.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources as package_files
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    LEASES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SCALE_PLANS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Scope,
)
from edl_workflows.testing import api_server, free_port
from tests.benchmarks.bench_controller import READY, Scrape, answers, scrape, wait_for
from tests.benchmarks.cluster import masters
from tests.cases.kinds import KIND_CASES

PODS_A_JOB = 4
GOAL = 0.2
"""How many more requests a job of another kind may cost, as a share of ElasticJob's."""
GROWTH = 1.1
"""A controller's memory after all jobs were deleted, over that of before."""
DELETERS = 4
"""Requests that delete jobs at the same time."""
SETTLE_SECONDS = 5.0
OWNED = (PODS, SERVICES, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, SCALE_PLANS, LEASES)
"""What a job may leave behind."""


@dataclass
class Result:
    """What the jobs of a kind cost; seconds from the first job's creation on.

    Attributes:
        requests: of the kind's controller a job; what its start costs is left out.
        beside: these in proportion to ElasticJob's.
        memory: MiB of the controller: before, with all jobs ended, and after these were deleted.
        left: objects in the namespace that were not there before the jobs.
    """

    kind: str
    jobs: int
    all_ran: float
    all_ended: float
    requests: float
    failed_decisions: int
    memory: list[float]
    left: int = 0
    beside: float = 1.0


class Crowd:
    """The jobs of one kind: submitted, watched, and brought to their end.

    Args:
        cluster: in the kind's namespace.
        kind: of the jobs.
        jobs: how many.
        plays_kubelet: whether nobody else makes pods run.
    """

    def __init__(self, cluster: Cluster, kind: Kind, jobs: int, plays_kubelet: bool) -> None:
        self.kind, self.jobs = kind, jobs
        self._cluster, self._plays_kubelet = cluster, plays_kubelet
        self._pool = ThreadPoolExecutor(2)
        self._lock = threading.Lock()
        self._pods: dict[str, set[str]] = {}
        self._phases: dict[str, JobPhase] = {}
        self._planned: set[str] = set()
        self._ended_pods: set[str] = set()
        self.ran_at = self.ended_at = 0.0
        self._informers = [self._watch(kind.source.api, self._job), self._watch(PODS, self._pod)]

    def submit(self) -> None:
        """Create all jobs."""
        head = {"apiVersion": self.kind.source.api.api_version, "kind": self.kind.name}
        spec = KIND_CASES[self.kind.name].four_pods
        for index in range(self.jobs):
            client.create(self._cluster, {**head, "metadata": {"name": f"job-{index}"}, "spec": spec})

    def look(self) -> None:
        """End the pods of jobs that run completely; note when all have come so far, and to their end."""
        with self._lock:
            ripe = [name for name in self._phases if self._ripe(name)]
            self._ended_pods.update(ripe)
            ended = sum(phase is JobPhase.SUCCEEDED for phase in self._phases.values())
        for name in ripe:
            for pod in sorted(self._pods[name]):
                self._pool.submit(_end_pod, self._cluster, pod)
        if len(self._ended_pods) == self.jobs:
            self.ran_at = self.ran_at or time.perf_counter()
        if ended == self.jobs:
            self.ended_at = self.ended_at or time.perf_counter()

    def delete(self) -> None:
        """Delete all jobs, and wait until they and their pods are gone."""
        resource = self.kind.source.api
        with ThreadPoolExecutor(DELETERS) as users:
            jobs = [f"job-{index}" for index in range(self.jobs)]
            list(users.map(lambda name: client.delete(self._cluster, resource, name), jobs))
        wait_for(lambda: not any(map(len, (informer.cache for informer in self._informers))))

    def count_objects(self) -> int:
        """How many objects of `OWNED` kinds the namespace has."""
        scopes = [Scope(resource, self._cluster.namespace) for resource in OWNED]
        return sum(len(client.list_objects(self._cluster, scope).items) for scope in scopes)

    def close(self) -> None:
        """End its watches and threads."""
        for informer in self._informers:
            informer.stop()
        self._pool.shutdown()

    def __str__(self) -> str:
        """How far it is."""
        failed = [name for name, phase in self._phases.items() if phase is JobPhase.FAILED]
        ran = len(self._ended_pods)
        return f"{self.kind.name}: {ran} of {self.jobs} ran; failed: {failed[:5]}"

    def _ripe(self, name: str) -> bool:
        runs = self._phases[name] is JobPhase.RUNNING and len(self._pods.get(name, ())) == PODS_A_JOB
        return runs and name not in self._ended_pods

    def _watch(self, resource: Any, listener: Callable[[ObjectChange], None]) -> Informer:
        informer = Informer(ClusterSource.of(self._cluster), Scope(resource, self._cluster.namespace))
        informer.on_change(listener)
        informer.start()
        informer.wait_synced(60)
        return informer

    def _job(self, change: ObjectChange) -> None:
        assert self.kind.view is not None
        view = self.kind.view(self.kind.model.parse(change.object))
        with self._lock:
            self._phases[view.name] = view.phase

    def _pod(self, change: ObjectChange) -> None:
        pod = change.object
        labels, phase = pod["metadata"].get("labels") or {}, (pod.get("status") or {}).get("phase")
        job, name = labels.get(self.kind.labels[0], ""), pod["metadata"]["name"]
        if phase == "Running":
            with self._lock:
                self._pods.setdefault(job, set()).add(name)
            if labels.get(names.REPLICA_TYPE_LABEL) == names.MASTER_TYPE and job not in self._planned:
                self._planned.add(job)
                self._pool.submit(client.create, self._cluster, masters.plan(job))
        elif change.type == "ADDED" and self._plays_kubelet:
            self._pool.submit(client.patch_status, self._cluster, PODS, name, READY)


def _end_pod(cluster: Cluster, name: str) -> None:
    """As if its containers had ended with 0."""
    try:
        pod = client.get(cluster, PODS, name)
        ended = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
            }
            for container in pod["spec"]["containers"]
        ]
        client.patch_status(cluster, PODS, name, {"phase": "Succeeded", "containerStatuses": ended})
    except NotFoundError:
        pass  # its job has ended and took it along


@contextmanager
def controller(folder: Path, kubeconfig: Path, kind: Kind) -> Iterator[int]:
    """A controller of one kind in a process of its own; its metrics port."""
    port = free_port()
    with_plans = f"{kind.name},ScalePlan" if kind.name == "ElasticJob" else kind.name
    command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--no-leader-elect"]
    command += ["--kubeconfig", str(kubeconfig), "--namespace", namespace_of(kind), "--kinds", with_plans]
    command += ["--metrics-port", str(port)]
    with (folder / f"{kind.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port), 120)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def namespace_of(kind: Kind) -> str:
    """Where a kind's jobs are."""
    return f"mixed-{kind.source.api.plural}"


def measure(cluster: Cluster, folder: Path, kubeconfig: Path, jobs: int, embedded: bool) -> list[Result]:
    """All jobs of all kinds from nothing to their end."""
    kinds = [kind for kind in KINDS if kind.view is not None]
    _prepare(cluster, kinds, embedded)
    with ExitStack() as stack:
        ports = {kind.name: stack.enter_context(controller(folder, kubeconfig, kind)) for kind in kinds}
        share = -(-jobs // len(kinds))
        crowds = [Crowd(cluster.in_namespace(namespace_of(kind)), kind, share, embedded) for kind in kinds]
        for crowd in crowds:
            stack.callback(crowd.close)
        before, objects = _scrape(ports), [crowd.count_objects() for crowd in crowds]
        began = time.perf_counter()
        _run(crowds)
        time.sleep(SETTLE_SECONDS)  # what a controller still does behind the last job counts, too
        ended = _scrape(ports)
        for crowd in crowds:
            crowd.delete()
        time.sleep(SETTLE_SECONDS)
        results = [_result(crowd, before, ended, began) for crowd in crowds]
        after = _scrape(ports)
        for crowd, result, count in zip(crowds, results, objects, strict=True):
            result.memory.append(round(after[result.kind].memory_mib, 1))
            result.left = crowd.count_objects() - count
    least = next(result.requests for result in results if result.kind == "ElasticJob")
    for result in results:
        result.beside = round(result.requests / least, 2)
    return results


def _scrape(ports: dict[str, int]) -> dict[str, Scrape]:
    return {name: scrape(port) for name, port in ports.items()}


def _run(crowds: list[Crowd]) -> None:
    with ThreadPoolExecutor(len(crowds)) as users:
        submitted = [users.submit(crowd.submit) for crowd in crowds]

        def over() -> bool:
            for crowd in crowds:
                crowd.look()
            return all(crowd.ended_at for crowd in crowds)

        try:
            wait_for(over)
        except TimeoutError as error:
            raise TimeoutError("; ".join(map(str, crowds))) from error
        for one in submitted:
            one.result()


def _result(crowd: Crowd, before: dict[str, Scrape], ended: dict[str, Scrape], began: float) -> Result:
    name = crowd.kind.name
    begun, scraped = before[name], ended[name]
    requests = round((scraped.requests.total() - begun.requests.total()) / crowd.jobs, 2)
    ran, over = round(crowd.ran_at - began, 1), round(crowd.ended_at - began, 1)
    memory = [round(begun.memory_mib, 1), round(scraped.memory_mib, 1)]
    return Result(name, crowd.jobs, ran, over, requests, int(scraped.failures), memory)


def _prepare(cluster: Cluster, kinds: list[Kind], embedded: bool) -> None:
    for file in (package_files.files("edl_workflows.core.jobs") / "crds").iterdir():
        name = client.create(cluster, yaml.safe_load(file.read_text()))["metadata"]["name"]
        wait_for(partial(_established, cluster, name), 60)
    for kind in kinds:
        name = namespace_of(kind)
        client.create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if not embedded:
            wait_for(partial(_has_account, cluster, name), 60)


def _has_account(cluster: Cluster, namespace: str) -> bool:
    return client.find(cluster, SERVICE_ACCOUNTS, "default", namespace) is not None


def _established(cluster: Cluster, name: str) -> bool:
    conditions = (client.get(cluster, CRDS, name).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def main() -> int:
    """Measure, print a line a kind and JSON; 1 if a kind needs too many requests, a decision failed, a
    controller's memory grew, or an object is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="of all kinds together")
    parser.add_argument("--embedded", action="store_true", help="on the embedded API server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if options.embedded:
            server = stack.enter_context(api_server(folder))
            cluster, kubeconfig = server.cluster(), server.kubeconfig
        else:
            cluster, kubeconfig = stack.enter_context(_plane(folder))
        results = measure(cluster, folder, kubeconfig, options.jobs, options.embedded)
    for result in results:
        begun, ended, deleted = result.memory
        print(
            f"{result.kind:12} {result.jobs} jobs: all ran after {result.all_ran} s, ended after "
            f"{result.all_ended} s; a job {result.requests} requests, {result.beside:.0%} of ElasticJob's; "
            f"{result.failed_decisions} decisions failed; the controller's memory {begun} MiB, {ended} with "
            f"all jobs ended, {deleted} after their deletion; {result.left} objects left"
        )
    print(
        f"goals: no kind needs more than {1 + GOAL:.0%} of ElasticJob's requests; at most {GROWTH:g} times "
        "the memory of before the jobs; no object"
    )
    print(json.dumps([asdict(result) for result in results]))
    return int(any(map(_misses, results)))


def _misses(result: Result) -> bool:
    begun, _, deleted = result.memory
    grew = deleted > GROWTH * begun
    return result.beside > 1 + GOAL or bool(result.failed_decisions or result.left or grew)


@contextmanager
def _plane(folder: Path) -> Iterator[tuple[Cluster, Path]]:
    from tests.benchmarks.cluster import programs
    from tests.benchmarks.cluster.plane import CONTROLLER, Binaries, running_plane
    from tests.cluster.bed import build

    build.build()
    stages = sorted(build.KWOK_STAGES.glob("*.yaml"))
    binaries = Binaries(build.BIN / "kubelab", build.BIN / "kwok", stages, programs.PEER, ())
    with running_plane(binaries, folder) as plane:
        yield plane.cluster(), plane.kubeconfig(CONTROLLER)


if __name__ == "__main__":
    sys.exit(main())
