"""``edl controller``: the manager as a process."""

from pathlib import Path
from typing import Annotated, Any

import typer

from edl_workflows.cli.options import (
    Context,
    Kinds,
    Kubeconfig,
    LeaderElect,
    LeaderElectNamespace,
    LogFormat,
    Logs,
    MetricsHost,
    MetricsPort,
    Namespace,
    Verbose,
    configure_logs,
    connect,
    kinds_of,
)
from edl_workflows.jobs import names

app = typer.Typer(help="The controller of all job kinds.", no_args_is_help=True)

DiServerUrl = Annotated[
    str | None,
    typer.Option(
        help="Where programs of DIJobs find the DI server; default upstream's address.",
        show_default=False,
    ),
]
DiServiceDomain = Annotated[
    str | None,
    typer.Option(
        help="What stands behind the namespace in the names of DIJobs' pods; default svc.cluster.local.",
        show_default=False,
    ),
]
DiJobResources = Annotated[
    str,
    typer.Option(
        metavar="RESOURCE=QUANTITY,...",
        help="What a replica of a preemptible DIJob asks for where its template does not say; default cpu=1,memory=2Gi.",
        show_default=False,
    ),
]
DiPriorityClasses = Annotated[
    str,
    typer.Option(
        metavar="PRIORITY=CLASS,...",
        help="PriorityClasses of the pods of DIJobs, by the jobs' priority (normal, high).",
        show_default=False,
    ),
]


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
    kinds: Kinds = "",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs reconciled at a time.")] = 16,
    leader_elect: LeaderElect = True,
    leader_elect_namespace: LeaderElectNamespace = None,
    metrics_host: MetricsHost = "127.0.0.1",
    metrics_port: MetricsPort = names.CONTROLLER_PORT,
    master_image: Annotated[
        str | None,
        typer.Option(help="Image of the job master where a job's template names none.", show_default=False),
    ] = None,
    master_template: Annotated[
        Path | None,
        typer.Option(
            help="File with a pod template (YAML) that each job's own dlrover-master template is put over: pull secrets, "
            "a security context, placement.",
            show_default=False,
        ),
    ] = None,
    di_server_url: DiServerUrl = None,
    di_service_domain: DiServiceDomain = None,
    di_job_resources: DiJobResources = "",
    di_priority_classes: DiPriorityClasses = "",
    allocator_policy: Annotated[
        str, typer.Option(help="How preemptible DIJobs are sized and placed: fit (first-fit).")
    ] = "fit",
    allocator_period: Annotated[
        float, typer.Option(min=1, help="Seconds of the cycle in which that is looked at again.")
    ] = 60.0,
    log_format: Logs = LogFormat.AUTO,
    verbose: Verbose = False,
) -> None:
    """Reconcile jobs until SIGTERM.

    Ends with code 1 when it loses its leadership: whoever restarts it gets a fresh candidate.
    """
    from edl_workflows.controller.allocator import AllocatorOptions
    from edl_workflows.controller.manager import ManagerOptions
    from edl_workflows.controller.run import Controller, RunOptions
    from edl_workflows.jobs.actions import Settings
    from edl_workflows.jobs.kinds import chosen
    from edl_workflows.kube.resources import ALL_NAMESPACES
    from edl_workflows.process.leader import Election
    from edl_workflows.process.signals import stop_on_signals

    rows = chosen(kinds_of(kinds))
    configure_logs(log_format, verbose=verbose)
    cluster = connect(kubeconfig, context, namespace, log_retries=True)
    given: dict[str, Any] = {
        "master_template": _template(master_template) if master_template else None,
        "master_image": master_image,
        "di_server_url": di_server_url,
        "di_service_domain": di_service_domain,
        "di_job_resources": _quantities(_pairs("--di-job-resources", di_job_resources)),
        "di_priority_classes": _pairs("--di-priority-classes", di_priority_classes),
    }
    settings = Settings(**{name: value for name, value in given.items() if value})
    allocator = AllocatorOptions(allocator_policy, allocator_period)
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    options = RunOptions(
        manager=ManagerOptions(where, workers, settings, rows, allocator),
        election=Election(leader_elect_namespace or cluster.namespace) if leader_elect else None,
        metrics_host=metrics_host,
        metrics_port=metrics_port or None,
    )
    Controller(cluster, options).run(stop_on_signals())


def _pairs(option: str, text: str) -> dict[str, str]:
    """``a=b,c=d`` as a map."""
    from edl_workflows.exceptions import InvalidError

    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not name or not value for name, _, value in pairs):
        raise InvalidError(f"{option}: {text!r} is no list of NAME=VALUE, with commas between them")
    return {name: value for name, _, value in pairs}


def _quantities(amounts: dict[str, str]) -> dict[str, str]:
    from edl_workflows.exceptions import InvalidError
    from edl_workflows.jobs.objects import parse_quantity

    for name, amount in amounts.items():
        try:
            parse_quantity(amount)
        except ValueError as error:
            raise InvalidError(f"--di-job-resources: {name}: {error}") from error
    return amounts


def _template(path: Path) -> dict[str, Any]:
    from edl_workflows.exceptions import InvalidError, ManifestError
    from edl_workflows.jobs import checks
    from edl_workflows.stages import manifest

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"--master-template: can't read {path}: {error}") from error
    template = manifest.values(text, str(path))
    if not isinstance(template, dict):
        raise InvalidError(f"{path}: a pod template is a map with metadata and spec, this is a list")
    if problems := list(checks.template(template, partial=True)):
        raise ManifestError(f"pod template {path}", problems)
    return template
