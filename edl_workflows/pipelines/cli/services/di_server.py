"""``edl di-server``: runs the HTTP API for programs of DIJobs."""

from typing import Annotated

import typer

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.options import (
    ClusterFlags,
    LogFlags,
    MetricsFlags,
    NamespacesFlags,
    expand_options,
)

app = typer.Typer(help="The HTTP API for programs of DIJobs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make typer treat `run` as a subcommand although it is the only one."""


@app.command()
@expand_options
def run(
    *,
    target: ClusterFlags,
    namespaces: NamespacesFlags,
    host: Annotated[
        str, typer.Option(help="Address of the API. In a pod, 0.0.0.0 admits the pods of jobs.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the API; 0 for any free port.")
    ] = names.DI_SERVER_PORT,
    token: Annotated[
        str,
        typer.Option(
            envvar=names.ENV_DI_SERVER_TOKEN,
            help="Token of the administrator, which admits to every job. By default there is no "
            "administrator.",
            show_default=False,
        ),
    ] = "",
    require_token: Annotated[
        bool,
        typer.Option(
            help="Require the token of the job ($DI_TOKEN in its pods). Without it, every client that can "
            "reach the port may change every job."
        ),
    ] = True,
    metrics: MetricsFlags,
    logs: LogFlags,
) -> None:
    """Serve until SIGTERM. Several servers may run at the same time: they are stateless."""
    from edl_workflows.runtime.process.signals import stop_on_signals
    from edl_workflows.services.di_server.guard import Admission
    from edl_workflows.services.di_server.server import DiServer, ServerOptions

    logs.configure()
    cluster = target.connect(log_retries=True)
    options = ServerOptions(
        namespaces=namespaces.selection(cluster),
        host=host,
        port=port,
        metrics_host=metrics.metrics_host,
        metrics_port=metrics.metrics_port or None,
        admission=Admission(require_token=require_token, admin_token=token),
    )
    DiServer(cluster, options).run(stop_on_signals())
