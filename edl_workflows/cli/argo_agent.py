"""``edl argo agent``: serves our plugin steps, for all workflows from one process, or as a plugin in Argo's
agent pods."""

from dataclasses import dataclass
from typing import Annotated

import typer

from edl_workflows.cli.options import (
    ClusterFlags,
    LeaderFlags,
    LogFlags,
    MetricsHost,
    MetricsPort,
    expand_options,
)
from edl_workflows.cli.output import print_document

app = typer.Typer()


@dataclass(frozen=True)
class AgentMetricsFlags:
    """As `MetricsFlags`, on another port than the controller's."""

    metrics_host: MetricsHost = "127.0.0.1"
    metrics_port: MetricsPort = 8082


DRAIN_SECONDS = 20.0
"""Of the 30 s that Argo's agent pod has after its workflow's end: to see that end, and to cancel what is
left."""


@app.command()
@expand_options
def agent(
    *,
    target: ClusterFlags,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Serve the workflows of all namespaces.")
    ] = False,
    instance_id: Annotated[
        str,
        typer.Option(help="Serve the Argo controller of this instance id; default the one that has none."),
    ] = "",
    cross_namespace: Annotated[
        bool,
        typer.Option(
            "--cross-namespace",
            help="Let steps name another namespace than their workflow's. The agent acts with its own "
            "rights: whoever may write workflows may then use them in every namespace.",
        ),
    ] = False,
    calls: Annotated[int, typer.Option(min=1, max=256, help="API calls at a time that may block.")] = 16,
    leader: LeaderFlags,
    metrics: AgentMetricsFlags,
    logs: LogFlags,
) -> None:
    """Serve plugin steps until SIGTERM. Argo's controller needs `disableAgentPodCreation: "true"` in its
    ConfigMap.

    What the steps wait for goes on without the agent; the next one finds it. Ends with code 1 when it loses
    its leadership: whoever restarts it gets a fresh candidate.
    """
    from edl_workflows.argo.agent.run import LEASE, ArgoAgent, ArgoAgentOptions
    from edl_workflows.kube.resources import ALL_NAMESPACES
    from edl_workflows.process.signals import stop_on_signals

    logs.configure()
    cluster = target.connect(log_retries=True)
    options = ArgoAgentOptions(
        namespace=ALL_NAMESPACES if all_namespaces else cluster.namespace,
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
    image: Annotated[str, typer.Option(help="Image with edl in it.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="The workflows' namespace.")],
) -> None:
    """Print what Argo's own agent pods need to serve our steps: `edl argo executor-plugin … | kubectl apply
    -f -`.

    For clusters whose Argo controller makes agent pods (`--executor-plugins` is set,
    `disableAgentPodCreation` is not).
    """
    import yaml

    from edl_workflows.argo.executor_plugin import PluginOptions, plugin_manifests

    print_document(yaml.safe_dump_all(plugin_manifests(PluginOptions(image, namespace)), sort_keys=False))


@app.command("plugin-server")
@expand_options
def plugin_server(
    workflow: Annotated[
        str, typer.Option(envvar="EDL_ARGO_WORKFLOW", help="The pod's workflow.", show_default=False)
    ],
    *,
    target: ClusterFlags,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where Argo's agent asks.")] = 4370,
    logs: LogFlags,
) -> None:
    """The sidecar that `edl argo executor-plugin` describes: serves the steps of one workflow until
    SIGTERM."""
    from edl_workflows.argo.agent.run import ArgoAgent, ArgoAgentOptions
    from edl_workflows.argo.executor_plugin import create_app, read_token, serve_plugin
    from edl_workflows.process.signals import stop_on_signals

    logs.configure()
    cluster = target.connect(log_retries=True)
    stop = stop_on_signals()
    options = ArgoAgentOptions(namespace=cluster.namespace, workflow=workflow, drain_seconds=DRAIN_SECONDS)
    with serve_plugin(create_app(read_token), port):
        ArgoAgent(cluster, options).run(stop)
