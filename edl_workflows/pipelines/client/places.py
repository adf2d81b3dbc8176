"""Where a training runs: on the embedded cluster of this machine, which is started if it does not run, or on
a cluster that a kubeconfig names."""

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from edl_workflows.core.exceptions import EdlError
from edl_workflows.local import daemon
from edl_workflows.pipelines.waiting.identity import Notify, notify_nobody
from edl_workflows.pipelines.waiting.observed import has_ended, read_object
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, ELASTIC_JOBS, Scope

STOP_SECONDS = 60.0
On = Literal["local", "cluster"]


@dataclass(frozen=True)
class Place:
    """A cluster on which trainings run.

    Attributes:
        cluster: its API server.
        python: the interpreter of training containers.
        folder: state folder of the embedded cluster; None for another cluster.
        started: whether this process started the embedded cluster, and so stops it.
        notify: called with lines for people.
    """

    cluster: Cluster
    python: str = "python"
    folder: Path | None = None
    started: bool = False
    notify: Notify = field(default=notify_nobody, repr=False)

    def checkpoints(self, job: str) -> str:
        """The default folder of a job's checkpoints; "" if there is none, on other clusters."""
        return str(self.folder / "checkpoints" / job) if self.folder is not None else ""

    def in_namespace(self, namespace: str | None) -> Self:
        """The same place with another namespace; None or "" changes nothing."""
        return replace(self, cluster=self.cluster.in_namespace(namespace))

    def close(self) -> None:
        """Stop the embedded cluster if this process started it and no job is known to run there. Its state is
        kept."""
        if self.folder is None or daemon.find(self.folder) is None:
            return
        if not self.started:
            self.notify("the embedded cluster keeps running, as before; stop it with `edl local down`")
            return
        try:
            running = _unfinished_jobs(self.cluster)
        except EdlError:  # nobody else may know that the cluster runs, so it must not stay
            running = []
        if running:
            self.notify(
                f"the embedded cluster keeps running, because {', '.join(running)} has not ended; stop it "
                "with `edl local down`"
            )
            return
        _stop(self.folder, self.notify)


def open_place(on: On | Cluster = "local", notify: Notify = notify_nobody) -> Place:
    """A place by name.

    Args:
        on: ``local``: the embedded cluster, which is started if it does not run; ``cluster``: that of the
            current context of the kubeconfig; or a connected cluster.
        notify: called with lines for people.

    Raises:
        UnavailableError: the embedded cluster did not start.
        InvalidError: there is no kubeconfig.
    """
    if isinstance(on, Cluster):
        return Place(on, notify=notify)
    if on == "cluster":
        return Place(Cluster.connect(), notify=notify)
    folder = daemon.default_folder().absolute()
    if daemon.find(folder) is None:
        notify("starting the embedded cluster")
    running_daemon, started = daemon.up(daemon.DaemonStart(folder))
    notify(
        "the embedded cluster runs; for edl in a second terminal: export "
        f"KUBECONFIG={shlex.quote(str(running_daemon.kubeconfig))}"
    )
    try:
        cluster = Cluster.from_kubeconfig(running_daemon.kubeconfig)
    except BaseException:
        if started:
            _stop(folder, notify)
        raise
    return Place(cluster, sys.executable, folder, started, notify)


def _stop(folder: Path, notify: Notify) -> None:
    notify("stopping the embedded cluster")
    daemon.down(folder, seconds=STOP_SECONDS)
    notify(
        f"the embedded cluster is stopped; its jobs, logs and checkpoints stay in {folder}: `edl "
        "local up` starts it again, `edl local down --delete` deletes them"
    )


def _unfinished_jobs(cluster: Cluster) -> list[str]:
    jobs = client.list_objects(cluster, Scope(ELASTIC_JOBS, ALL_NAMESPACES)).items
    views = [read_object(ELASTIC_JOBS.kind, job) for job in jobs]
    names = [job["metadata"]["name"] for job in jobs]
    return [name for name, seen in zip(names, views, strict=True) if seen is not None and not has_ended(seen)]
