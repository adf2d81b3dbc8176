"""``edl master``: runs the master of one job. The controller starts it in the job's master pod."""

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.trace_context import trace_id_of
from edl_workflows.pipelines.cli.options import ClusterFlags, LogFlags, expand_options
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master import server
from edl_workflows.services.master.brain import BrainAccess
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from edl_workflows.training.addresses import listen

app = typer.Typer(help="The master of one job.", no_args_is_help=True)

JobName = Annotated[
    str | None, typer.Option(envvar=names.ENV_JOB_NAME, help="The ElasticJob.", show_default=False)
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API.")]
Standalone = Annotated[
    bool,
    typer.Option("--standalone", help="Run without a Kubernetes API; agents are started by other means."),
]
Nodes = Annotated[
    str, typer.Option(help="Standalone: the nodes to wait for, such as ps=2,worker=1.", show_default=False)
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar=names.ENV_STATE_DIR,
        help="Folder for the state, on a volume that all masters of the job mount; without it the state is "
        "in ConfigMaps. Standalone: by default edl-master.",
        show_default=False,
    ),
]
StateBrain = Annotated[
    str,
    typer.Option(
        envvar=names.ENV_STATE_BRAIN,
        metavar="URL",
        help="Address of a Brain that keeps the state instead of ConfigMaps. Not with --state-dir.",
        show_default=False,
    ),
]
HeartbeatTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds without a heartbeat after which a node counts as failed.")
]
PendingTimeout = Annotated[
    float, typer.Option(min=0, help="Seconds that a critical node may be pending; 0 for no limit.")
]
PrepareTimeout = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds after which a parameter server that does not get ready counts as failed."
    ),
]
VerdictWait = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to wait after a worker's failure, in case a lost parameter server caused it."
    ),
]
AutoscalePeriod = Annotated[
    float,
    typer.Option(
        min=1,
        envvar=names.ENV_AUTOSCALE_PERIOD,
        help="Seconds between two plans of the job's own optimizer. Its other intervals change in "
        "proportion.",
    ),
]


@app.callback()
def _group() -> None:
    """Make typer treat `run` as a subcommand although it is the only one."""


@app.command()
@expand_options
def run(
    job: JobName = None,
    *,
    target: ClusterFlags,
    port: Port = names.MASTER_PORT,
    standalone: Standalone = False,
    nodes: Nodes = "worker=1",
    state_dir: StateDir = None,
    state_brain: StateBrain = "",
    heartbeat_timeout: HeartbeatTimeout = 600.0,
    pending_timeout: PendingTimeout = 900.0,
    prepare_timeout: PrepareTimeout = 900.0,
    verdict_wait: VerdictWait = 10.0,
    autoscale_period: AutoscalePeriod = 300.0,
    logs: LogFlags,
) -> None:
    """Serve one job until it ends.

    Exit codes: 0 if the job succeeded, 1 if it failed permanently; with any other code the master must be
    restarted. Agents need the token $EDL_JOB_TOKEN. A standalone master without it creates a token in the
    file "token" of its state folder.
    """
    logs.configure(whose=_whose(job, target.namespace))
    timeouts = Timeouts(
        heartbeat_timeout, pending_timeout, verdict_wait, prepare_timeout, autoscale=autoscale_period
    )
    if state_brain and (standalone or state_dir is not None):
        other = "--standalone" if standalone else f"--state-dir (${names.ENV_STATE_DIR})"
        raise InvalidError(f"--state-brain (${names.ENV_STATE_BRAIN}) and {other} exclude each other")
    places = server.StatePlaces(state_dir, state_brain)
    try:
        if standalone:
            folder = state_dir or Path("edl-master")
            code = _standalone(job or "job", target.namespace or "default", nodes, folder, port, timeouts)
        else:
            code = _in_cluster(job, target.connect(log_retries=True), port, timeouts, places)
    except EdlError:
        raise
    except Exception as error:
        # Exit code 1, the default of Python, would mean that the job failed permanently.
        structlog.get_logger(__name__).exception("the master failed")
        raise UnavailableError(f"the master failed: {error}") from error
    sys.exit(code)


def _whose(job: str | None, namespace: str | None) -> dict[str, str]:
    """The fields that identify the job and the pod in each log line, if they are known."""
    fields = {
        "job": job,
        "namespace": namespace or os.environ.get(names.ENV_NAMESPACE),
        "pod": os.environ.get(names.ENV_POD_NAME),
        "trace_id": trace_id_of(os.environ.get(names.ENV_TRACEPARENT, "")),
    }
    return {field: value for field, value in fields.items() if value}


def _standalone(job: str, namespace: str, nodes: str, state_dir: Path, port: int, timeouts: Timeouts) -> int:
    settings = JobSettings(job, namespace, parse_nodes(nodes), timeouts=timeouts)
    token = os.environ.get(names.ENV_JOB_TOKEN) or _own_token(state_dir)
    return server.run_standalone(settings, state_dir, token, server.ListenAddress("127.0.0.1", port))


def _in_cluster(
    job: str | None, cluster: Cluster, port: int, timeouts: Timeouts, places: server.StatePlaces
) -> int:
    token = os.environ.get(names.ENV_JOB_TOKEN, "")
    if not job or not token:
        raise InvalidError(
            f"--job (${names.ENV_JOB_NAME}) and ${names.ENV_JOB_TOKEN} are required in a cluster"
        )
    access = server.JobAccess(
        job, token, timeouts, lambda url: BrainAccess.of_environment(url, os.environ), places
    )
    return server.run_in_cluster(cluster, access, server.ListenAddress(*listen(port)))


def _own_token(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "token"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32))
    return path.read_text().strip()
