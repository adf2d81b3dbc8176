"""The agent as a process: its leadership, its endpoints, its event loop."""

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field

import structlog

from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.loop import AgentLoop
from edl_workflows.pipelines.argo.agent.metrics import ArgoAgentMetrics
from edl_workflows.pipelines.argo.agent.tasks import OPEN_INDEX, index_open
from edl_workflows.pipelines.argo.agent.threads import DaemonThreads
from edl_workflows.pipelines.argo.api import INSTANCE_LABEL, WORKFLOW_TASK_SETS
from edl_workflows.pipelines.install.rbac import ARGO_AGENT
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer, ServedNamespaces
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, Scope
from edl_workflows.runtime.process.leader_process import LeaderProcess, ProcessOptions

log = structlog.get_logger(__name__)

LEASE = ARGO_AGENT
"""The name of the only lease that the agent's role allows."""


@dataclass(frozen=True)
class ArgoAgentOptions(ProcessOptions):
    """How to run an agent.

    Attributes:
        namespaces: the namespaces whose workflows to serve.
        workflow: the one workflow to serve; "" for all.
        instance: serve the workflows of the Argo controller with this instance id; "": of the controller
            without one. Has no effect if `workflow` is set.
        cross_namespace: whether a step may name another namespace than its workflow's.
        calls: number of concurrent API calls.
        drain_seconds: how long to continue after the signal to stop while steps are being served. For an
            agent pod that ends with its workflow and must still cancel the objects of the workflow's steps.
    """

    namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)
    workflow: str = ""
    instance: str = ""
    cross_namespace: bool = False
    calls: int = 16
    drain_seconds: float = 0.0

    @property
    def scope(self) -> Scope:
        """The task sets to watch, in any namespace.

        They include completed ones, because a workflow that is retried manually keeps its task set.
        """
        if self.workflow:
            return Scope(WORKFLOW_TASK_SETS, field_selector=f"metadata.name={self.workflow}")
        selector = f"{INSTANCE_LABEL}={self.instance}" if self.instance else f"!{INSTANCE_LABEL}"
        return Scope(WORKFLOW_TASK_SETS, label_selector=selector)


class ArgoAgent:
    """One agent. `run` serves until it is told to stop.

    Args:
        cluster: the API server.
        options: see `ArgoAgentOptions`.
    """

    def __init__(self, cluster: Cluster, options: ArgoAgentOptions) -> None:
        self.metrics = ArgoAgentMetrics()
        self._options = options
        self._cluster = cluster.observed_by(self.metrics.requested)
        self._process = LeaderProcess(cluster, options, self.metrics)
        source, indices = ClusterSource.of(self._cluster), {OPEN_INDEX: index_open}
        self._served = ServedNamespaces(source, options.namespaces)
        self._task_sets = NamespacedInformer(source, options.scope, options.namespaces.scopes, indices)
        self._watches = InformerGroup((*self._served.informers, *self._task_sets.informers), _log_failure)

    def run(self, stop: threading.Event) -> None:
        """Lead and serve until `stop` is set. Objects that it still waits for are left as they are, for the
        next agent.

        Raises:
            LeadershipLostError: another process leads now; this one must end.
            UnavailableError: the endpoints' port is taken.
        """
        self._process.run(stop, self._work, alive=list, ready=self._watches.waits_for)

    def _work(self, stop: threading.Event) -> None:
        log.info("agent started", namespaces=str(self._options.namespaces))
        try:
            asyncio.run(self._serve(stop))
        finally:
            log.info("agent stopped")

    async def _serve(self, stop: threading.Event) -> None:
        options = self._options
        context = AgentContext(
            cluster=self._cluster,
            watches=self._watches,
            served=self._served,
            task_sets=self._task_sets,
            threads=DaemonThreads(options.calls),
            metrics=self.metrics,
            guard=self._process.guard,
            everywhere=ALL_NAMESPACES in options.namespaces.scopes,
            cross_namespace=options.cross_namespace,
        )
        loop = AgentLoop(context, options.workflow)
        self.metrics.observe_serving(lambda: loop.serving)
        serving = asyncio.create_task(loop.run())
        # A thread of its own, so that stopping does not queue behind calls that hang.
        ending = asyncio.create_task(DaemonThreads(1).call(lambda: self._process.keep(stop)))
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.drain_seconds):
                await loop.idle()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if ending.done():
            ending.result()
        else:
            serving.result()


def _log_failure(scope: Scope, error: EdlError) -> None:
    if isinstance(error, NotFoundError) and scope.resource == WORKFLOW_TASK_SETS:
        log.error("the API server has no WorkflowTaskSets: install Argo Workflows; trying again")
    else:
        log.warning("watch failed; trying again", watch=str(scope), error=str(error))
