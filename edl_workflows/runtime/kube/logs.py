"""Logs of a pod's containers."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from edl_workflows.runtime.kube import errors, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS
from edl_workflows.runtime.kube.transport import ApiRequest

FOLLOW_SECONDS = 24 * 3600.0
"""Read time-out of a followed log. A training container may print nothing for hours; TCP keepalives detect a
dead connection earlier."""


@dataclass(frozen=True)
class LogOptions:
    """Which lines to read.

    Attributes:
        container: needed only if the pod has several containers.
        tail_lines: number of last lines to read.
        since_seconds: not older than this.
        since_time: not older than this; at most one of `since_seconds` and `since_time`.
        previous: read the log of the container's previous run.
        timestamps: begin each line with its time.
    """

    container: str | None = None
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: datetime | None = None
    previous: bool = False
    timestamps: bool = False

    def to_query(self) -> list[tuple[str, str]]:
        """As query parameters of the log subresource."""
        pairs = (
            ("container", self.container),
            ("tailLines", self.tail_lines),
            ("sinceSeconds", self.since_seconds),
            ("sinceTime", self.since_time.isoformat() if self.since_time else None),
            ("previous", "true" if self.previous else None),
            ("timestamps", "true" if self.timestamps else None),
        )
        return [(name, str(value)) for name, value in pairs if value is not None]


def read(cluster: Cluster, pod: str, namespace: str | None = None, options: LogOptions | None = None) -> str:
    """The log so far.

    Raises:
        NotFoundError: no such pod.
        InvalidError: the container has not started, or the pod has several and none was named.
    """
    return transport.send_for_text(
        cluster, request_of(pod, namespace or cluster.namespace, options, follow=False)
    )


def read_end(cluster: Cluster, pod: str, namespace: str, options: LogOptions, most: int) -> str:
    """The end of the log so far, however long its lines are.

    Args:
        cluster: the API server.
        pod: name of the pod.
        namespace: of the pod.
        options: which lines.
        most: number of bytes to keep from the end; the first line may be incomplete.

    Raises:
        NotFoundError: no such pod.
        InvalidError: the container has not started, or the pod has several and none was named.
        UnavailableError: the connection broke.
    """
    request = request_of(pod, namespace, options, follow=False)
    response = transport.open_stream(cluster, request)
    kept = bytearray()
    try:
        with errors.mapping_errors(request.action, cluster.route):
            for chunk in response.stream(65536, decode_content=True):
                kept += chunk
                del kept[:-most]
    finally:
        response.close()
    return kept.decode("utf-8", "replace")


def follow(
    cluster: Cluster, pod: str, namespace: str | None = None, options: LogOptions | None = None
) -> Iterator[str]:
    """Each line as it comes, without its line feed, until the container ends.

    Raises:
        NotFoundError: no such pod.
        UnavailableError: the connection broke. There is no retry. Another call with ``since_seconds``
            continues, but may repeat lines.
    """
    request = request_of(pod, namespace or cluster.namespace, options, follow=True)
    for line in transport.LineStream(cluster, request):
        yield line.decode("utf-8", "replace")


def request_of(pod: str, namespace: str, options: LogOptions | None, *, follow: bool) -> ApiRequest:
    """The request for a log.

    Args:
        pod: name of the pod.
        namespace: of the pod.
        options: which lines.
        follow: continue until the container ends.
    """
    query = (options or LogOptions()).to_query() + ([("follow", "true")] if follow else [])
    return ApiRequest(
        "get",
        "pods/log",
        PODS.path(namespace, pod, "log"),
        f"read the log of Pod {namespace}/{pod}",
        tuple(query),
        read_seconds=FOLLOW_SECONDS if follow else None,
    )
