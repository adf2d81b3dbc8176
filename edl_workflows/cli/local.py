"""``edl local``: the embedded cluster of this machine."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.cli.options import LogFlags, Output, OutputFormat, expand_options
from edl_workflows.cli.output import Table, emit, print_line

app = typer.Typer(help="The embedded cluster of this machine.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="State folder; default $EDL_LOCAL_DIR or ~/.local/share/edl-workflows/local.",
        show_default=False,
    ),
]


@app.command()
@expand_options
def up(
    folder: Folder = None,
    cpu: Annotated[
        str, typer.Option(help="CPUs that pods may request together; default the machine's.")
    ] = "",
    memory: Annotated[
        str, typer.Option(help="Memory that pods may request together, as 8Gi; default the machine's.")
    ] = "",
    pods_per_core: Annotated[
        int | None,
        typer.Option(
            min=1, help="Pods that run at once for each core of the machine; the others wait. Default 10."
        ),
    ] = None,
    controller: Annotated[bool, typer.Option(help="Run the controller of the job kinds, too.")] = True,
    di_server: Annotated[
        bool, typer.Option("--di-server", help="Run the HTTP API for programs of DIJobs, too.")
    ] = False,
    back_off: Annotated[
        float, typer.Option(min=0, help="Seconds before a container that crashed twice is started again.")
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that pods get to end when the cluster is stopped.")
    ] = 10.0,
    allow_open_ports: Annotated[
        bool,
        typer.Option(
            "--allow-open-ports",
            envvar="EDL_LOCAL_ALLOW_OPEN_PORTS",
            help="Let servers in pods listen on every interface of this machine, as they ask; "
            "else they are kept on loopback, and the cluster does not start where it can't do so.",
        ),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Serve in this process until Ctrl-C.")
    ] = False,
    *,
    logs: LogFlags,
) -> None:
    """Start the cluster, unless it runs, and wait until it serves."""
    from edl_workflows.exceptions import InvalidError
    from edl_workflows.local import daemon
    from edl_workflows.local.capacity import PODS_PER_CORE, Capacity

    where = (folder or daemon.default_folder()).absolute()
    most = pods_per_core or PODS_PER_CORE
    try:
        capacity = Capacity.of_machine(cpu, memory, most)
    except ValueError as error:
        raise InvalidError(f"--cpu, --memory: {error}") from error
    if foreground:
        from datetime import timedelta

        from edl_workflows.local.cluster import ClusterOptions
        from edl_workflows.local.serve import serve

        logs.configure()
        options = ClusterOptions(where, capacity, timedelta(seconds=back_off), grace, allow_open_ports)
        asyncio.run(serve(options, controller=controller, di_server=di_server))
        return
    arguments = ["--cpu", capacity.cpu, "--memory", capacity.memory, "--pods-per-core", str(most)]
    arguments += ["--back-off", str(back_off), "--grace", str(grace)]
    arguments += ["--controller" if controller else "--no-controller"]
    arguments += [*(["--di-server"] if di_server else []), *(["--verbose"] if logs.verbose else [])]
    arguments += ["--allow-open-ports"] if allow_open_ports else []
    found, started = daemon.up(daemon.DaemonStart(where, arguments))
    print_line(
        f"the embedded cluster {'runs' if started else 'already runs'} on {found.url} (process {found.pid})"
    )
    print_line(f"use it:   export KUBECONFIG={found.kubeconfig}")
    print_line("          kubectl get nodes    or    edl get")
    if found.di_server:
        print_line(f"DIJobs:   their DI server is {found.di_server}")
    print_line("stop it:  edl local down" + (f" --dir {where}" if folder else ""))


@app.command()
def down(
    folder: Folder = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete its state, too: all objects and logs.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds before it is killed.")] = 60.0,
) -> None:
    """Stop the cluster and every process of its pods; its state stays for the next `up`."""
    from edl_workflows.local import daemon

    where = (folder or daemon.default_folder()).absolute()
    stopped = daemon.down(where, seconds=timeout)
    if delete:
        daemon.delete(where)
    print_line("the embedded cluster is stopped" if stopped else "no embedded cluster runs")


@app.command()
def status(folder: Folder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show whether the cluster runs, its capacity and its pods. Ends with code 3 if it does not run."""
    from edl_workflows.exceptions import NotFoundError
    from edl_workflows.local import daemon, overview

    where = (folder or daemon.default_folder()).absolute()
    found = daemon.find(where)
    if found is None:
        raise NotFoundError(f"no embedded cluster runs on {where}; start it with `edl local up`")
    shown = overview.read(found)
    if output is OutputFormat.TABLE:
        print_line(f"{found.url}   process {found.pid}   kubeconfig {found.kubeconfig}")
        print_line()
        emit(output, None, Table(("resource", "requested", "capacity"), shown.resource_rows()))
        print_line()
    emit(
        output,
        shown.model_dump(mode="json"),
        Table(("namespace", "pod", "phase", "ready", "restarts"), shown.pod_rows()),
    )
