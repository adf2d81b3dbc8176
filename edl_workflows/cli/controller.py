"""``edl controller``: the manager as a process."""

from typing import Annotated

import typer

from edl_workflows.cli.options import (
    Context,
    Kubeconfig,
    LogFormat,
    Logs,
    Namespace,
    Verbose,
    configure_logs,
    connect,
)

app = typer.Typer(help="The controller of all job kinds.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `run` a command of its own while it is the only one."""


@app.command()
def run(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Reconcile the jobs of all namespaces.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs reconciled at a time.")] = 4,
    leader_elect: Annotated[
        bool, typer.Option(help="Wait for the Lease 'edl-controller', so that replicas take turns.")
    ] = True,
    leader_elect_namespace: Annotated[
        str | None, typer.Option(help="Namespace of the Lease; default the context's.", show_default=False)
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address of /healthz, /readyz and /metrics; in a pod 0.0.0.0, for its probes.")
    ] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Their port; 0 for none.")] = 8080,
    master_image: Annotated[
        str | None,
        typer.Option(help="Image of the job master where a job's template names none.", show_default=False),
    ] = None,
    log_format: Logs = LogFormat.AUTO,
    verbose: Verbose = False,
) -> None:
    """Reconcile ElasticJobs and ScalePlans until SIGTERM.

    Ends with code 1 when it loses its leadership: whoever restarts it gets a fresh candidate.
    """
    from edl_workflows.controller import run as controller
    from edl_workflows.controller.leader import Election
    from edl_workflows.controller.manager import ManagerOptions
    from edl_workflows.jobs.actions import Settings
    from edl_workflows.kube.resources import ALL_NAMESPACES

    configure_logs(log_format, verbose=verbose)
    cluster = connect(kubeconfig, context, namespace, log_retries=True)
    settings = Settings(master_image=master_image) if master_image else Settings()
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    options = controller.RunOptions(
        manager=ManagerOptions(namespace=where, workers=workers, settings=settings),
        election=Election(leader_elect_namespace or cluster.namespace) if leader_elect else None,
        metrics_host=metrics_host,
        metrics_port=metrics_port or None,
    )
    controller.Controller(cluster, options).run(controller.stop_on_signals())
