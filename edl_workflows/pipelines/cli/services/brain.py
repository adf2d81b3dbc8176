"""``edl brain``: runs the Brain and creates tokens for its tenants."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.options import ClusterFlags, LogFlags, MetricsFlags, expand_options
from edl_workflows.pipelines.cli.output import print_line

app = typer.Typer(help="Resource plans for all jobs of a cluster.", no_args_is_help=True)


DatabaseUrl = Annotated[
    str,
    typer.Option(
        envvar=names.ENV_BRAIN_DATABASE_URL,
        help="Database of the store: sqlite:///brain.db (four slashes for an absolute path) or "
        "postgresql://user:password@host/name.",
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the hashes of tenants' tokens, written by `edl brain token`. Reloaded when it "
        "changes.",
        show_default=False,
    ),
]
RequireToken = Annotated[
    bool,
    typer.Option(
        help="Require a token of --tokens-file. Without it, every client that can reach the port may read "
        "and write everything."
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        help="With --no-require-token: a host name by which clients reach the Brain, such as that of an "
        "Ingress. May be repeated.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option(help="Address of the API. In a pod, 0.0.0.0 admits the masters of jobs.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 for any free port.")]
Certificate = Annotated[
    Path | None, typer.Option(help="Certificate for HTTPS (PEM file).", show_default=False)
]
Key = Annotated[Path | None, typer.Option(help="Key of the certificate (PEM file).", show_default=False)]
Days = Annotated[float, typer.Option(min=0.01, max=3650, help="Days for which data is kept.")]
Watch = Annotated[
    bool,
    typer.Option(
        help="Watch nodes, pods and jobs of the cluster. If several Brains share a database, enable this "
        "for one."
    ),
]
TenantCalls = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="Limit of requests per second for each tenant. Ten jobs make about one request per second.",
    ),
]
Everywhere = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Watch the jobs and pods of all namespaces.")
]


@app.command()
@expand_options
def run(
    database_url: DatabaseUrl = "sqlite:///brain.db",
    tokens_file: TokensFile = None,
    require_token: RequireToken = True,
    allowed_host: AllowedHosts = None,
    host: Host = "127.0.0.1",
    port: Port = names.BRAIN_PORT,
    tls_cert_file: Certificate = None,
    tls_key_file: Key = None,
    retention_days: Days = 30.0,
    tenant_calls_per_second: TenantCalls = 400.0,
    monitor: Watch = False,
    *,
    target: ClusterFlags,
    all_namespaces: Everywhere = False,
    metrics: MetricsFlags,
    logs: LogFlags,
) -> None:
    """Serve until SIGTERM. Several Brains may share a PostgreSQL database, but not an SQLite database.

    `/` is a web page, which asks for a token. The options that select a cluster have an effect only with
    --monitor.
    """
    from edl_workflows.runtime.kube.resources import ALL_NAMESPACES
    from edl_workflows.runtime.process.signals import stop_on_signals
    from edl_workflows.services.brain.monitor import MonitorOptions
    from edl_workflows.services.brain.server import BrainOptions, BrainServer
    from edl_workflows.services.brain.store.retention import RetentionOptions

    set_up_process = logs.configure
    set_up_process()
    sys.setswitchinterval(0.001)  # so that other threads hardly delay responses
    if require_token and tokens_file is None:
        raise InvalidError(
            "--tokens-file is missing: create the file with `edl brain token`, or use --no-require-token"
        )
    cluster = target.connect(log_retries=True) if monitor else None
    watched = MonitorOptions(ALL_NAMESPACES if all_namespaces else cluster.namespace) if cluster else None
    options = BrainOptions(
        database_url=database_url,
        tokens_file=tokens_file if require_token else None,
        allowed_hosts=tuple(allowed_host or ()),
        host=host,
        port=port,
        certificate=tls_cert_file,
        key=tls_key_file,
        metrics_host=metrics.metrics_host,
        metrics_port=metrics.metrics_port or None,
        retention=RetentionOptions(days=retention_days),
        monitor=watched,
        tenant_calls_per_second=tenant_calls_per_second,
    )
    BrainServer(options, cluster, set_up_process).run(stop_on_signals())


@app.command()
def token(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant, for people.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="Namespace whose jobs the tenant may read and write. May be repeated."
        ),
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="Allow reading and writing all jobs.")] = False,
    tokens_file: Annotated[
        Path, typer.Option(help="The file for `edl brain run --tokens-file`; created if absent.")
    ] = Path("tokens.json"),
) -> None:
    """Create a token, print it, and add its hash to the file. The token can't be shown again."""
    from edl_workflows.services.brain import auth

    if operator == bool(namespace):
        raise InvalidError("give either --namespace (may be repeated) or --operator")
    made, record = auth.new_token(tenant, [auth.EVERYTHING] if operator else list(namespace or ()))
    auth.add_token(tokens_file, record)
    print_line(made)
