"""The logs of a job's workers as they are written, in one stream.

In a collective job the ranks are assigned when the workers meet, so any of them may be rank 0 and print what
a person wants to see.
"""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.jobs.manifests import get_label, index_of, name_of
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.log_stream import LogPosition, LogStream
from edl_workflows.runtime.kube.resources import PODS, Object, Scope
from edl_workflows.runtime.kube.watch import EventType

MOST_FOLLOWED = 8
"""Workers by rank whose logs are followed: each costs a connection, and people read no more."""
_TYPES = (names.CHIEF_TYPE, names.WORKER_TYPE)
_BEGUN = ("Running", "Succeeded", "Failed")
RETRY_SECONDS = 1.0


class WorkerLogs:
    """Follows the logs of a job's first workers and of those that replace them, each in a thread.

    Args:
        cluster: the API server; its namespace is the job's.
        job: name of the ElasticJob.
        prefixed: whether each line begins with the node, as ``worker-0 | step 50``, also while there is only
            one.
    """

    def __init__(self, cluster: Cluster, job: str, *, prefixed: bool) -> None:
        self._cluster = cluster
        self._prefixed = prefixed
        self._nodes: set[str] = set()
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._seen: set[str] = set()
        self._streams: dict[str, LogStream] = {}
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._scope = Scope(PODS, cluster.namespace, label_selector=f"{names.JOB_LABEL}={job}")
        self._informer = Informer(ClusterSource.of(cluster), self._scope)
        self._informer.on_change(self._handle_change)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the logs while the context lasts."""
        self._informer.start()
        try:
            yield
        finally:
            self._informer.stop()
            self._stop()

    def lines(self) -> Iterator[str]:
        """Each line as it comes, without its line feed, until `end` has returned."""
        while (line := self._lines.get()) is not None:
            yield line

    def end(self, timeout: float) -> None:
        """Expect no further workers, because the job has ended, and wait for the last lines.

        Args:
            timeout: longest time to wait for them, in seconds.
        """
        self._informer.stop()
        with suppress(EdlError):  # what the watch did not tell yet
            for pod in client.list_objects(self._cluster, self._scope).items:
                self._begin(pod)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop()
        self._lines.put(None)

    def _stop(self) -> None:
        """End the streams that are still open."""
        self._stopped.set()
        for stream in list(self._streams.values()):
            stream.close()

    def _handle_change(self, change: ObjectChange) -> None:
        if change.type is not EventType.DELETED:
            self._begin(change.object)

    def _begin(self, pod: Object) -> None:
        """Follow a worker's pod when its container has started."""
        uid = pod["metadata"]["uid"]
        if uid in self._seen or not _is_followed(pod) or pod_state.pod_phase(pod) not in _BEGUN:
            return
        self._seen.add(uid)
        self._nodes.add(_node_of(pod))
        name = name_of(pod)
        thread = threading.Thread(target=self._follow, args=(pod,), name=f"log of {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow(self, pod: Object) -> None:
        """Put a pod's lines; after a broken connection, continue behind the newest line."""
        uid, name, namespace = pod["metadata"]["uid"], name_of(pod), self._cluster.namespace
        container = pod_state.own_container(pod)
        position = LogPosition()
        while not self._stopped.is_set():
            self._streams[uid] = stream = LogStream(self._cluster, name, namespace, container, position)
            try:
                for line in stream:
                    self._put(pod, line.text)
                    position = line.position
            except UnavailableError:
                self._stopped.wait(RETRY_SECONDS)
                continue
            except EdlError as error:
                self._put(pod, f"edl: the log can't be read: {error}")
            return

    def _put(self, pod: Object, text: str) -> None:
        named = self._prefixed or len(self._nodes) > 1
        self._lines.put(f"{_node_of(pod)} | {text}" if named else text)


def _node_of(pod: Object) -> str:
    return f"{get_label(pod, names.REPLICA_TYPE_LABEL)}-{index_of(pod)}"


def _is_followed(pod: Mapping[str, Any]) -> bool:
    rank = get_label(pod, names.RANK_INDEX_LABEL)
    followed = rank.isdigit() and int(rank) < MOST_FOLLOWED
    return followed and get_label(pod, names.REPLICA_TYPE_LABEL) in _TYPES
