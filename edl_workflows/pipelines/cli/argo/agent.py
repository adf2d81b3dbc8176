"""``edl argo agent``: serves plugin steps, either for all workflows in one process or as a sidecar in Argo's
agent pods."""

from dataclasses import dataclass
from typing import Annotated

import typer

from edl_workflows.pipelines.cli.options import (
    ClusterFlags,
    LeaderFlags,
    LogFlags,
    MetricsHost,
    MetricsPort,
    NamespacesFlags,
    expand_options,
)
from edl_workflows.pipelines.cli.output import print_document

app = typer.Typer()


@dataclass(frozen=True)
class AgentMetricsFlags:
    """`MetricsFlags` with another default port than that of the controller."""

    metrics_host: MetricsHost = "127.0.0.1"
    metrics_port: MetricsPort = 8082


DRAIN_SECONDS = 20.0
"""Seconds to notice the end of the workflow and to cancel unfinished steps. Argo's agent pod has 30 s after
that end."""


@app.command()
@expand_options
def agent(
    *,
    target: ClusterFlags,
    namespaces: NamespacesFlags,
    instance_id: Annotated[
        str,
        typer.Option(
            help="Instance id of the Argo controller to serve; by default the one without an instance id."
        ),
    ] = "",
    cross_namespace: Annotated[
        bool,
        typer.Option(
            "--cross-namespace",
            help="Allow steps to use other namespaces than that of their workflow. The agent uses its own "
            "permissions, so users who may create workflows then have these permissions in every namespace.",
        ),
    ] = False,
    calls: Annotated[int, typer.Option(min=1, max=256, help="Number of concurrent API calls.")] = 16,
    leader: LeaderFlags,
    metrics: AgentMetricsFlags,
    logs: LogFlags,
) -> None:
    """Serve plugin steps until SIGTERM. Requires `disableAgentPodCreation: "true"` in the ConfigMap of Argo's
    controller.

    If the agent stops, jobs continue, and the next agent resumes their steps. Exits with code 1 when it loses
    its leadership, so that it is restarted as a candidate.
    """
    from edl_workflows.pipelines.argo.agent.run import LEASE, ArgoAgent, ArgoAgentOptions
    from edl_workflows.runtime.process.signals import stop_on_signals

    logs.configure()
    cluster = target.connect(log_retries=True)
    options = ArgoAgentOptions(
        namespaces=namespaces.selection(cluster),
        instance=instance_id,
        cross_namespace=cross_namespace,
        calls=calls,
        election=leader.election(cluster, LEASE),
        metrics_host=metrics.metrics_host,
        metrics_port=metrics.metrics_port or None,
    )
    ArgoAgent(cluster, options).run(stop_on_signals())


@app.command("executor-plugin")
def executor_plugin(
    image: Annotated[str, typer.Option(help="Image that contains edl.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the workflows.")],
) -> None:
    """Print the manifests with which Argo's own agent pods serve these steps: `edl argo executor-plugin … |
    kubectl apply -f -`.

    For clusters in which Argo's controller creates agent pods (`--executor-plugins` is set,
    `disableAgentPodCreation` is not).
    """
    import yaml

    from edl_workflows.pipelines.argo.executor_plugin import PluginOptions, plugin_manifests

    print_document(yaml.safe_dump_all(plugin_manifests(PluginOptions(image, namespace)), sort_keys=False))


@app.command("plugin-server")
@expand_options
def plugin_server(
    workflow: Annotated[
        str, typer.Option(envvar="EDL_ARGO_WORKFLOW", help="The workflow of the pod.", show_default=False)
    ],
    *,
    target: ClusterFlags,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on which Argo's agent calls the plugin.")
    ] = 4370,
    logs: LogFlags,
) -> None:
    """Serve the steps of one workflow until SIGTERM, in the sidecar that `edl argo executor-plugin`
    defines."""
    from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
    from edl_workflows.pipelines.argo.agent.run import ArgoAgent, ArgoAgentOptions
    from edl_workflows.pipelines.argo.executor_plugin import create_app, read_token, serve_plugin
    from edl_workflows.runtime.process.signals import stop_on_signals

    logs.configure()
    cluster = target.connect(log_retries=True)
    stop = stop_on_signals()
    options = ArgoAgentOptions(
        namespaces=NamespaceSelection((cluster.namespace,)), workflow=workflow, drain_seconds=DRAIN_SECONDS
    )
    with serve_plugin(create_app(read_token), port):
        ArgoAgent(cluster, options).run(stop)
