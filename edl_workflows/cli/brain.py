"""``edl brain``: the Brain service as a process, and tokens for its tenants."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.cli.options import (
    ClusterFlags,
    LogFlags,
    MetricsFlags,
    expand_options,
)
from edl_workflows.cli.output import print_line
from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs import names

app = typer.Typer(help="Plans for the jobs of a whole cluster.", no_args_is_help=True)


DatabaseUrl = Annotated[
    str,
    typer.Option(
        envvar=names.ENV_BRAIN_DATABASE_URL,
        help="The store: sqlite:///brain.db (four slashes for an absolute path) or "
        "postgresql://user:password@host/name.",
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="Who may ask: a file that `edl brain token` writes; read again when it changes.",
        show_default=False,
    ),
]
RequireToken = Annotated[
    bool,
    typer.Option(
        help="Let in only who shows a token of --tokens-file. Without it whoever reaches the port may see "
        "and write all."
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        help="With --no-require-token: a name by which people and masters reach it, as an Ingress's; repeat "
        "it for more.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option(help="Address of the API; in a pod 0.0.0.0, for the masters of jobs.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 for any free one.")]
Certificate = Annotated[Path | None, typer.Option(help="Certificate for HTTPS, as PEM.", show_default=False)]
Key = Annotated[Path | None, typer.Option(help="Its key, as PEM.", show_default=False)]
Days = Annotated[float, typer.Option(min=0.01, max=3650, help="For how long anything is kept.")]
Watch = Annotated[
    bool, typer.Option(help="Watch the cluster: its nodes, pods and jobs. One of several Brains does.")
]
TenantCalls = Annotated[
    float,
    typer.Option(min=0.1, help="Reports, questions and reads a second of each tenant; ten jobs make one."),
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
    """Serve until SIGTERM. Several may share a PostgreSQL database; an SQLite database has one.

    `/` is a web page for people, which asks for a token. The cluster's options are for --monitor.
    """
    from edl_workflows.brain.monitor import MonitorOptions
    from edl_workflows.brain.server import BrainOptions, BrainServer
    from edl_workflows.brain.store.retention import RetentionOptions
    from edl_workflows.kube.resources import ALL_NAMESPACES
    from edl_workflows.process.signals import stop_on_signals

    set_up_process = logs.configure
    set_up_process()
    sys.setswitchinterval(0.001)  # a report is answered soon, also while another thread plans
    if require_token and tokens_file is None:
        raise InvalidError(
            "--tokens-file: say who may ask (`edl brain token` makes the file), or --no-require-token"
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
    tenant: Annotated[str, typer.Argument(help="Whose token it is; a name for people.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="A namespace whose jobs the tenant sees and writes; repeat it for more."
        ),
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="The token sees and writes all jobs.")] = False,
    tokens_file: Annotated[
        Path, typer.Option(help="The file of `edl brain run --tokens-file`; made if it is not there.")
    ] = Path("tokens.json"),
) -> None:
    """Make a token: print it, and write its hash to the file. It can't be shown again."""
    from edl_workflows.brain import auth

    if operator == bool(namespace):
        raise InvalidError("say either --namespace, once or more, or --operator")
    made, row = auth.new_token(tenant, [auth.EVERYTHING] if operator else list(namespace or ()))
    auth.add_token(tokens_file, row)
    print_line(made)
