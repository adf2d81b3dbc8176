"""``edl master``: the master of one job as a process. The controller starts it in the job's master pod."""

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from edl_workflows.cli.options import ClusterFlags, LogFlags, expand_options
from edl_workflows.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.jobs import names
from edl_workflows.kube.connect import Cluster
from edl_workflows.master import server
from edl_workflows.master.brain import BrainAccess
from edl_workflows.master.standalone import parse_nodes
from edl_workflows.master.state.settings import JobSettings, Timeouts
from edl_workflows.protocol.addresses import listen

app = typer.Typer(help="The master of one job.", no_args_is_help=True)

JobName = Annotated[
    str | None, typer.Option(envvar=names.ENV_JOB_NAME, help="The ElasticJob.", show_default=False)
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API.")]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="Without a Kubernetes API: agents come by themselves.")
]
Nodes = Annotated[
    str, typer.Option(help="Standalone: the nodes to wait for, as ps=2,worker=1.", show_default=False)
]
StateDir = Annotated[Path, typer.Option(help="Standalone: where the state is kept.", show_default=False)]
HeartbeatTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds of silence after which a node has failed.")
]
PendingTimeout = Annotated[
    float, typer.Option(min=0, help="Seconds that a critical node may be pending; 0 for ever.")
]
PrepareTimeout = Annotated[
    float, typer.Option(min=0, help="Seconds after which a server that does not get ready has failed.")
]
VerdictWait = Annotated[
    float,
    typer.Option(min=0, help="Seconds for which a worker's failure may turn out to be a lost server's."),
]
AutoscalePeriod = Annotated[
    float,
    typer.Option(
        min=1,
        envvar=names.ENV_AUTOSCALE_PERIOD,
        help="Seconds between two of the job's own plans; its other intervals keep their proportion to it.",
    ),
]


@app.callback()
def _group() -> None:
    """Keep `run` a command of its own while it is the only one."""


@app.command()
@expand_options
def run(
    job: JobName = None,
    *,
    target: ClusterFlags,
    port: Port = names.MASTER_PORT,
    standalone: Standalone = False,
    nodes: Nodes = "worker=1",
    state_dir: StateDir = Path("edl-master"),
    heartbeat_timeout: HeartbeatTimeout = 600.0,
    pending_timeout: PendingTimeout = 900.0,
    prepare_timeout: PrepareTimeout = 900.0,
    verdict_wait: VerdictWait = 10.0,
    autoscale_period: AutoscalePeriod = 300.0,
    logs: LogFlags,
) -> None:
    """Serve one job until it is over.

    Exit codes: 0 the job succeeded, 1 it failed for good, any other: start me again. The token that agents
    must bring is $EDL_JOB_TOKEN; standalone without it, one is made and kept in the state folder's file
    "token".
    """
    logs.configure(whose=_whose(job, target.namespace))
    timeouts = Timeouts(
        heartbeat_timeout, pending_timeout, verdict_wait, prepare_timeout, autoscale=autoscale_period
    )
    try:
        if standalone:
            code = _standalone(job or "job", target.namespace or "default", nodes, state_dir, port, timeouts)
        else:
            code = _in_cluster(job, target.connect(log_retries=True), port, timeouts)
    except EdlError:
        raise
    except Exception as error:
        # 1, Python's code for this, would say that the job failed for good.
        structlog.get_logger(__name__).exception("the master failed")
        raise UnavailableError(f"the master failed: {error}") from error
    sys.exit(code)


def _whose(job: str | None, namespace: str | None) -> dict[str, str]:
    """What each line of the log says of whom it is; without what is not known."""
    known = {
        "job": job,
        "namespace": namespace or os.environ.get(names.ENV_NAMESPACE),
        "pod": os.environ.get(names.ENV_POD_NAME),
    }
    return {field: value for field, value in known.items() if value}


def _standalone(job: str, namespace: str, nodes: str, state_dir: Path, port: int, timeouts: Timeouts) -> int:
    settings = JobSettings(job, namespace, parse_nodes(nodes), timeouts=timeouts)
    token = os.environ.get(names.ENV_JOB_TOKEN) or _own_token(state_dir)
    return server.run_standalone(settings, state_dir, token, server.ListenAddress("127.0.0.1", port))


def _in_cluster(job: str | None, cluster: Cluster, port: int, timeouts: Timeouts) -> int:
    token = os.environ.get(names.ENV_JOB_TOKEN, "")
    if not job or not token:
        raise InvalidError(
            f"--job (${names.ENV_JOB_NAME}) and ${names.ENV_JOB_TOKEN} are needed in a cluster"
        )
    access = server.JobAccess(job, token, timeouts, lambda url: BrainAccess.of_environment(url, os.environ))
    return server.run_in_cluster(cluster, access, server.ListenAddress(*listen(port)))


def _own_token(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "token"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32))
    return path.read_text().strip()
