"""``edl local``: the embedded cluster on this machine."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.pipelines.cli.options import LogFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, print_line

if TYPE_CHECKING:
    from edl_workflows.local.capacity import Capacity

app = typer.Typer(help="The embedded cluster on this machine.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Folder with the cluster's state; default $EDL_LOCAL_DIR or ~/.local/share/edl-workflows/local.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class LocalClusterFlags:
    """What the embedded cluster runs, and its limits."""

    cpu: Annotated[str, typer.Option(help="CPUs of the node; by default those of the machine.")] = ""
    memory: Annotated[
        str, typer.Option(help="Memory of the node, such as 8Gi; by default that of the machine.")
    ] = ""
    pods_per_core: Annotated[
        int | None,
        typer.Option(
            min=1, help="Pods that run at once per core of the machine; further pods wait. Default 10."
        ),
    ] = None
    controller: Annotated[bool, typer.Option(help="Run the controller of the job kinds.")] = True
    di_server: Annotated[
        bool, typer.Option("--di-server", help="Run the HTTP API for programs of DIJobs.")
    ] = False
    back_off: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds before the second restart of a crashed container. The pause doubles with each "
            "further one.",
        ),
    ] = 10.0
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that pods get to end when the cluster stops.")
    ] = 10.0
    allow_open_ports: Annotated[
        bool,
        typer.Option(
            "--allow-open-ports",
            envvar="EDL_LOCAL_ALLOW_OPEN_PORTS",
            help="Allow servers in pods to listen on every interface of this machine. By default they are "
            "restricted to loopback, and the cluster does not start if the machine does not support that.",
        ),
    ] = False

    def capacity(self) -> "Capacity":
        """The capacity of the node.

        Raises:
            InvalidError: ``--cpu`` or ``--memory`` is not a quantity.
        """
        from edl_workflows.core.exceptions import InvalidError
        from edl_workflows.local.capacity import PODS_PER_CORE, Capacity

        try:
            return Capacity.of_machine(self.cpu, self.memory, self.pods_per_core or PODS_PER_CORE)
        except ValueError as error:
            raise InvalidError(f"--cpu, --memory: {error}") from error

    def serve(self, folder: Path) -> None:
        """Run the cluster in this process until it gets a signal."""
        from datetime import timedelta

        from edl_workflows.local.cluster import ClusterOptions
        from edl_workflows.local.serve import serve_cluster

        back_off = timedelta(seconds=self.back_off)
        options = ClusterOptions(folder, self.capacity(), back_off, self.grace, self.allow_open_ports)
        asyncio.run(serve_cluster(options, controller=self.controller, di_server=self.di_server))

    def arguments(self) -> list[str]:
        """The same options as arguments of ``edl local up``."""
        capacity = self.capacity()
        arguments = ["--cpu", capacity.cpu, "--memory", capacity.memory]
        arguments += ["--pods-per-core", str(self.pods_per_core)] if self.pods_per_core else []
        arguments += ["--back-off", str(self.back_off), "--grace", str(self.grace)]
        arguments += ["--controller" if self.controller else "--no-controller"]
        arguments += ["--di-server"] if self.di_server else []
        return arguments + (["--allow-open-ports"] if self.allow_open_ports else [])


@app.command()
@expand_options
def up(
    folder: Folder = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the cluster in this process until Ctrl-C.")
    ] = False,
    *,
    settings: LocalClusterFlags,
    logs: LogFlags,
) -> None:
    """Start the cluster unless it already runs, and wait until it is ready."""
    from edl_workflows.local import daemon

    where = (folder or daemon.default_folder()).absolute()
    if foreground:
        logs.configure()
        settings.serve(where)
        return
    arguments = [*settings.arguments(), *(["--verbose"] if logs.verbose else [])]
    cluster, started = daemon.up(daemon.DaemonStart(where, arguments))
    state = "runs" if started else "already runs"
    print_line(f"the embedded cluster {state} on {cluster.url} (process {cluster.pid})")
    print_line(f"use it:   export KUBECONFIG={cluster.kubeconfig}")
    print_line("          edl get    (kubectl works, too)")
    if cluster.di_server:
        print_line(f"DIJobs:   their DI server is {cluster.di_server}")
    print_line("stop it:  edl local down" + (f" --dir {where}" if folder else ""))


@app.command()
def down(
    folder: Folder = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete its state: all objects and logs.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which the cluster is killed.")] = 60.0,
) -> None:
    """Stop the cluster and all processes of its pods. The state is kept for the next `up`."""
    from edl_workflows.local import daemon

    where = (folder or daemon.default_folder()).absolute()
    stopped = daemon.down(where, seconds=timeout)
    message = "the embedded cluster is stopped" if stopped else "no embedded cluster runs"
    if delete and where.exists():
        daemon.delete(where)
        message += f"; {where} " + ("could not be deleted entirely" if where.exists() else "is deleted")
    elif delete:
        message += f"; there is no {where} to delete"
    print_line(message)


@app.command()
def status(folder: Folder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show whether the cluster runs, its capacity and its pods. Exits with code 3 if it does not run."""
    from edl_workflows.core.exceptions import NotFoundError
    from edl_workflows.local import daemon, overview

    where = (folder or daemon.default_folder()).absolute()
    cluster = daemon.find(where)
    if cluster is None:
        raise NotFoundError(f"no embedded cluster runs in {where}; start it with `edl local up`")
    shown = overview.read_overview(cluster)
    if output is OutputFormat.TABLE:
        print_line(f"{cluster.url}   process {cluster.pid}   kubeconfig {cluster.kubeconfig}")
        print_line()
        emit(output, None, Table(("resource", "requested", "capacity"), shown.resource_rows()))
        print_line()
    emit(
        output,
        shown.model_dump(mode="json"),
        Table(("namespace", "pod", "phase", "ready", "restarts"), shown.pod_rows()),
    )
