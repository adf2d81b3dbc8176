"""``edl scale|migrate-ps|checkpoint|suspend|resume``: changes of a running job, by the same stages that pipelines run."""

from typing import Annotated

import typer

from edl_workflows.cli.completion import complete_role
from edl_workflows.cli.jobs import JOB, Kind, Name, Timeout, Wait, run, show
from edl_workflows.cli.options import Context, Kubeconfig, Namespace, Output, OutputFormat, connect
from edl_workflows.exceptions import InvalidError

app = typer.Typer(no_args_is_help=True)

Cpu = Annotated[str | None, typer.Option(help="CPU of new nodes, as 500m or 2.", show_default=False)]
Memory = Annotated[str | None, typer.Option(help="Memory of new nodes, as 4Gi.", show_default=False)]


def _size(cpu: str | None, memory: str | None) -> dict[str, str]:
    return {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}


@app.command()
def scale(
    name: Name,
    replicas: Annotated[
        list[str],
        typer.Argument(
            help="Wanted counts by role, as worker=3 ps=2.", show_default=False, autocompletion=complete_role
        ),
    ],
    cpu: Cpu = None,
    memory: Memory = None,
    kind: Kind = JOB,
    wait: Wait = True,
    timeout: Timeout = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change how many nodes a running job has. A change of parameter servers checkpoints and migrates them."""
    from edl_workflows.stages.scale import SCALE, ScaleRequest

    wanted = {
        role: {"replicas": count, "resource": _size(cpu, memory)} for role, count in map(_count, replicas)
    }
    cluster = connect(kubeconfig, context, namespace)
    request = ScaleRequest.of({"job": name, "kind": kind, "replicas": wanted})
    show(run(cluster, SCALE, request, wait=wait, timeout=timeout), output)


def _count(text: str) -> tuple[str, int]:
    role, _, count = text.partition("=")
    if not count.isdecimal():
        raise InvalidError(f"{text!r}: give a role and a count, as worker=3")
    return role, int(count)


@app.command("migrate-ps")
def migrate_ps(
    name: Name,
    rank: Annotated[
        list[int] | None,
        typer.Option(help="Rank of a server to replace by one of --cpu and --memory; repeatable."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="How many servers afterwards.", min=1, show_default=False)
    ] = None,
    cpu: Cpu = None,
    memory: Memory = None,
    kind: Kind = JOB,
    wait: Wait = True,
    timeout: Timeout = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move a running job to other parameter servers: checkpoint, migrate, restart, verify."""
    from edl_workflows.stages.migrate_ps import MIGRATE_PS, MigratePsRequest

    size = _size(cpu, memory)
    values = {
        "job": name,
        "kind": kind,
        "replicas": replicas,
        "resource": size,
        "migrate": dict.fromkeys(rank or (), size),
    }
    cluster = connect(kubeconfig, context, namespace)
    show(run(cluster, MIGRATE_PS, MigratePsRequest.of(values), wait=wait, timeout=timeout), output)


@app.command()
def checkpoint(
    name: Name,
    wait: Wait = True,
    timeout: Timeout = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Ask a running job for a checkpoint now."""
    from edl_workflows.stages.checkpoint import CHECKPOINT, CheckpointRequest

    cluster = connect(kubeconfig, context, namespace)
    show(run(cluster, CHECKPOINT, CheckpointRequest.of({"job": name}), wait=wait, timeout=timeout), output)


@app.command()
def autoscale(
    name: Name,
    bounds: Annotated[
        str, typer.Argument(help="true: as far as the spec allows; false: not at all; or bounds such as 2-8.")
    ] = "true",
    kind: Kind = JOB,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Let the cluster's autoscaler, or an ElasticJob's own master, change a job's replicas, or no longer."""
    from edl_workflows.stages.autoscale import AUTOSCALE, AutoscaleRequest

    request = AutoscaleRequest.of({"name": name, "kind": kind, "bounds": bounds})
    cluster = connect(kubeconfig, context, namespace)
    show(run(cluster, AUTOSCALE, request, wait=True, timeout=None), output)


@app.command()
def suspend(
    name: Name,
    kind: Kind = JOB,
    wait: Wait = True,
    timeout: Timeout = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Free all pods of a job; its checkpoint and data position stay."""
    from edl_workflows.stages.suspend import SUSPEND, SuspendRequest

    cluster = connect(kubeconfig, context, namespace)
    show(
        run(cluster, SUSPEND, SuspendRequest.of({"name": name, "kind": kind}), wait=wait, timeout=timeout),
        output,
    )


@app.command()
def resume(
    name: Name,
    kind: Kind = JOB,
    wait: Wait = True,
    timeout: Timeout = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Let a suspended job go on from its newest checkpoint."""
    from edl_workflows.stages.suspend import RESUME, ResumeRequest

    cluster = connect(kubeconfig, context, namespace)
    show(
        run(cluster, RESUME, ResumeRequest.of({"name": name, "kind": kind}), wait=wait, timeout=timeout),
        output,
    )
