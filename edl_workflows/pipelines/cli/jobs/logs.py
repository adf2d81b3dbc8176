"""``edl logs``: the output of a job's training nodes, of one node, or of its master."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import EdlError, InvalidError, NotFoundError
from edl_workflows.pipelines.cli.jobs.completion import complete_node
from edl_workflows.pipelines.cli.jobs.job import JOB, Kind, Name, raise_all
from edl_workflows.pipelines.cli.options import ClusterFlags, expand_options
from edl_workflows.pipelines.cli.output import print_log, say

if TYPE_CHECKING:
    from edl_workflows.core.jobs.kind import Kind as JobKind
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(no_args_is_help=True)

MOST_NODES = 16
"""Nodes whose logs are shown together: each that is followed costs a connection."""
Pod = dict[str, Any]


@app.command()
@expand_options
def logs(
    name: Name,
    node: Annotated[
        str,
        typer.Argument(
            help="Node, such as worker-0 or ps-1; by default all that train.", autocompletion=complete_node
        ),
    ] = "",
    kind: Kind = JOB,
    master: Annotated[
        bool, typer.Option("--master", help="Print the log of an ElasticJob's master.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the containers end.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(help="Print only this many of the last lines of a node.", min=0, show_default=False),
    ] = None,
    container: Annotated[
        str,
        typer.Option(
            "--container",
            "-c",
            help="Container or init container of the pod; by default the one with the job's program, or, "
            "before that has started, the init container that runs or has failed.",
        ),
    ] = "",
    *,
    target: ClusterFlags,
) -> None:
    """Print the logs of the nodes that train, of one node, or of the master.

    The nodes that train are the chief and the workers (trainers, the learner) that run now, or, if none does,
    all that have run. Of several nodes each line begins with its node, as `worker-0 | step 50`. Before one
    has started, the log is the master's.

    On a terminal, control characters except line feeds, carriage returns and tabs are escaped, so that a log
    can't manipulate the terminal. This also removes colours. Lines of JSON by the agent or the master are
    shown as text; those of the training program are not changed. In a pipe or file the log of one node is
    unchanged: `edl logs NAME worker-0 | less -R`.
    """
    from edl_workflows.core.jobs.kinds import kind_of

    if node and master:
        raise InvalidError(f"give the node {node} or --master, not both")
    cluster = target.connect()
    pods = _pods_by_node(cluster, kind, name)
    chosen = choose_nodes(kind_of(kind), pods, node, master=master)
    shown = _limit_nodes(chosen, pods, f"{kind} {cluster.namespace}/{name}")
    logs_of_nodes = [
        _NodeLog(cluster, pods[one], f"{one} | " if len(shown) > 1 else "", tail, container) for one in shown
    ]
    if follow:
        _follow(logs_of_nodes)
    else:
        _print_all(logs_of_nodes)


def _limit_nodes(nodes: Sequence[str], pods: Mapping[str, Pod], job: str) -> Sequence[str]:
    missing = next((node for node in nodes if node not in pods), None)
    if missing is not None:
        raise NotFoundError(f"{job} has no node {missing!r}; it has {', '.join(sorted(pods))}")
    if len(nodes) > MOST_NODES:
        say(f"these are {MOST_NODES} of {len(nodes)} nodes; name another to see its log")
    return nodes[:MOST_NODES]


def choose_nodes(kind: "JobKind", pods: Mapping[str, Pod], node: str, *, master: bool) -> list[str]:
    """The nodes whose logs to show; a name may be none of the job's nodes.

    Args:
        kind: kind of the job.
        pods: the job's pods by node.
        node: the node that the user named.
        master: whether the user asked for the master.
    """
    from edl_workflows.core.kubernetes import names, pod_state
    from edl_workflows.pipelines.waiting.training_logs import TRAINING_ROLES, choose_pods

    masters = sorted(
        (one for one in pods if one.startswith(f"{names.MASTER_TYPE}-")),
        key=lambda one: int(one.rsplit("-", 1)[1]),
    )
    if node or master:
        return [node or next(reversed(masters), names.MASTER_TYPE)]
    nodes = [one for one in pods if one not in masters]
    training = [one for one in nodes if one.rpartition("-")[0].lower() in TRAINING_ROLES] or nodes
    started = choose_pods(kind, [pods[one] for one in training], "all")
    living = [pod for pod in started if not pod_state.has_ended(pod)]
    chosen = [kind.node_of(pod) for pod in living or started]
    if not chosen and masters:
        say("no node that trains has started: this is the master's log")
    return chosen or masters[-1:] or [min(training)]


class _NodeLog:
    """The log of a node.

    Args:
        cluster: where the pod is.
        pod: its pod.
        prefix: what each shown line begins with.
        tail: how many of the last lines; None for all.
        container: the container; "" for the one that says most.
    """

    def __init__(self, cluster: "Cluster", pod: Pod, prefix: str, tail: int | None, container: str) -> None:
        from edl_workflows.core.jobs.manifests import get_label, init_container_at_work
        from edl_workflows.core.kubernetes import names, pod_state
        from edl_workflows.runtime.kube.logs import LogOptions

        init = "" if container else init_container_at_work(pod)
        if init:
            say(f"{prefix}this is the log of init container {init}: the job's program has not started")
        chosen = container or init or pod_state.own_container(pod)
        self._options = LogOptions(chosen, tail_lines=tail)
        self._cluster, self._pod, self._prefix = cluster, pod["metadata"]["name"], prefix
        self._is_master = get_label(pod, names.REPLICA_TYPE_LABEL) == names.MASTER_TYPE

    def read(self) -> str:
        """The log so far."""
        from edl_workflows.runtime.kube import logs as pod_logs

        return pod_logs.read(self._cluster, self._pod, options=self._options)

    def follow(self, take: Callable[[str], None]) -> None:
        """Pass on each line, without its line feed, until the container ends."""
        from edl_workflows.runtime.kube import logs as pod_logs

        for line in pod_logs.follow(self._cluster, self._pod, options=self._options):
            take(line)

    def show(self, text: str) -> None:
        """Print whole lines of the log."""
        if self._prefix:
            text = "".join(f"{self._prefix}{line}\n" for line in text.removesuffix("\n").split("\n") if text)
        print_log(text, self._render)

    def _render(self, line: str) -> str:
        from edl_workflows.core.protocol.log_lines import render_own_line

        own = line.removeprefix(self._prefix)
        shown = render_own_line(own, pod=self._pod, master=self._is_master)
        return f"{line[: len(line) - len(own)]}{shown}"


def _print_all(logs_of_nodes: Sequence[_NodeLog]) -> None:
    """Print the logs one after another; one that can't be read does not hide the others."""
    failures: list[EdlError] = []
    for log in logs_of_nodes:
        try:
            log.show(log.read())
        except EdlError as error:
            failures.append(error)
    raise_all(failures)


def _follow(logs_of_nodes: Sequence[_NodeLog]) -> None:
    if len(logs_of_nodes) > 1:
        _follow_together(logs_of_nodes)
    else:
        logs_of_nodes[0].follow(lambda line: logs_of_nodes[0].show(f"{line}\n"))


def _follow_together(logs_of_nodes: Sequence[_NodeLog]) -> None:
    """Print lines of several nodes as they come, until all their containers have ended."""
    lines: queue.Queue[tuple[_NodeLog, str | EdlError | None]] = queue.Queue(maxsize=1000)

    def follow(log: _NodeLog) -> None:
        try:
            log.follow(lambda line: lines.put((log, line)))
        except EdlError as error:
            lines.put((log, error))
        finally:
            lines.put((log, None))

    for log in logs_of_nodes:
        threading.Thread(target=follow, args=(log,), name="log", daemon=True).start()
    failures, open_logs = [], len(logs_of_nodes)
    while open_logs:
        log, line = lines.get()
        if line is None:
            open_logs -= 1
        elif isinstance(line, str):
            log.show(f"{line}\n")
        else:
            failures.append(line)
    raise_all(failures)


def _pods_by_node(cluster: "Cluster", kind: str, job: str) -> dict[str, Pod]:
    """The pods of a job.

    Raises:
        NotFoundError: there is no such job, or it has no pods.
    """
    from edl_workflows.core.jobs.kinds import kind_of
    from edl_workflows.pipelines.cli.jobs.listing import read_job

    job_kind = kind_of(kind)
    pods = dict(_list_nodes(cluster, job_kind, job))
    if not pods:
        read_job(cluster, job_kind, job)
        raise NotFoundError(
            f"{kind} {cluster.namespace}/{job} has no pods; `edl describe {job}` may show why"
        )
    return pods


def _list_nodes(cluster: "Cluster", kind: "JobKind", job: str) -> Iterator[tuple[str, Pod]]:
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import PODS, Scope

    scope = Scope(PODS, cluster.namespace, label_selector=kind.pods_of(job))
    for pod in client.list_objects(cluster, scope).items:
        yield kind.node_of(pod), pod
