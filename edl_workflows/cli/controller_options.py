"""The options of ``edl controller run`` that are its own, and what they mean."""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.scaling.policies import live_policies, policy_help

if TYPE_CHECKING:
    LivePolicyName = str
    from edl_workflows.controller.autoscaler import AutoscalerOptions
    from edl_workflows.jobs.actions import InstallationSettings
else:  # typer shows the members of an Enum as choices
    LivePolicyName = StrEnum("LivePolicyName", {entry.name: entry.name for entry in live_policies()})

AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Reconcile the jobs of all namespaces.")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Jobs reconciled at a time.")]
MasterImage = Annotated[
    str | None,
    typer.Option(help="Image of the job master where a job's template names none.", show_default=False),
]
MasterTemplate = Annotated[
    Path | None,
    typer.Option(
        help="File with a pod template (YAML) that each job's own dlrover-master template is put over: pull secrets, "
        "a security context, placement.",
        show_default=False,
    ),
]
TfClusterDomain = Annotated[
    str | None,
    typer.Option(
        envvar="CUSTOM_CLUSTER_DOMAIN",
        help="The cluster's domain, put behind `svc` in the addresses of TFJobs' TF_CONFIG; default none.",
        show_default=False,
    ),
]
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
NetworkPolicies = Annotated[
    bool,
    typer.Option(
        "--network-policies/--no-network-policies",
        help="Make a NetworkPolicy for each job, which admits only the job's own pods to its pods.",
    ),
]
AllocatorPolicy = Annotated[
    LivePolicyName,
    typer.Option(
        metavar="NAME",
        help=f"How preemptible DIJobs are sized and placed. {policy_help(live_policies())}",
    ),
]
AllocatorPeriod = Annotated[
    float, typer.Option(min=1, help="Seconds of the cycle in which that is looked at again.")
]
Autoscaler = Annotated[
    bool,
    typer.Option("--autoscaler", help="Give elastic jobs other replicas as the cluster has room."),
]
AutoscalerDryRun = Annotated[
    bool,
    typer.Option("--autoscaler-dry-run", help="Tell by Events what it would change, and change nothing."),
]
AutoscalerPeriod = Annotated[float, typer.Option(min=1, help="Seconds of the autoscaler's cycle.")]
AutoscalerCoolDown = Annotated[
    float, typer.Option(min=0, help="Seconds after a change of a job in which it does not grow.")
]
MaxLoad = Annotated[
    str,
    typer.Option(
        metavar="RESOURCE=PART,...",
        help="The part of the cluster that jobs and all others may use together; default cpu=0.97,memory=0.97.",
        show_default=False,
    ),
]


def settings_of(
    *,
    master_image: str | None,
    master_template: Path | None,
    tf_cluster_domain: str | None,
    di_server_url: str | None,
    di_service_domain: str | None,
    di_job_resources: str,
    di_priority_classes: str,
    network_policies: bool,
) -> "InstallationSettings":
    """What the options say that all jobs have in common; what is not given keeps its default."""
    from edl_workflows.jobs.actions import InstallationSettings

    given: dict[str, Any] = {
        "master_template": template(master_template) if master_template else None,
        "master_image": master_image,
        "tf_cluster_domain": tf_cluster_domain,
        "di_server_url": di_server_url,
        "di_service_domain": di_service_domain,
        "di_job_resources": quantities(pairs("--di-job-resources", di_job_resources)),
        "di_priority_classes": pairs("--di-priority-classes", di_priority_classes),
        "network_policies": network_policies,
    }
    return InstallationSettings(**{name: value for name, value in given.items() if value})


def pairs(option: str, text: str) -> dict[str, str]:
    """``a=b,c=d`` as a map."""
    from edl_workflows.exceptions import InvalidError

    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not name or not value for name, _, value in pairs):
        raise InvalidError(f"{option}: {text!r} is no list of NAME=VALUE, with commas between them")
    return {name: value for name, _, value in pairs}


def quantities(amounts: dict[str, str]) -> dict[str, str]:
    """The same; each must be a quantity."""
    from edl_workflows.exceptions import InvalidError
    from edl_workflows.jobs.objects import parse_quantity

    for name, amount in amounts.items():
        try:
            parse_quantity(amount)
        except ValueError as error:
            raise InvalidError(f"--di-job-resources: {name}: {error}") from error
    return amounts


def template(path: Path) -> dict[str, Any]:
    """A pod template in a file."""
    from edl_workflows.exceptions import InvalidError, ManifestError
    from edl_workflows.jobs import validation
    from edl_workflows.stages import manifest

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"--master-template: can't read {path}: {error}") from error
    found = manifest.parse_values(text, str(path))
    if not isinstance(found, dict):
        raise InvalidError(f"{path}: a pod template is a map with metadata and spec, this is a list")
    if problems := list(validation.template(found, partial=True)):
        raise ManifestError(f"pod template {path}", problems)
    return found


def autoscaler(period: float, cool_down: float, max_load: str, *, dry_run: bool) -> "AutoscalerOptions":
    """How to autoscale."""
    from edl_workflows.controller.autoscaler import AutoscalerOptions
    from edl_workflows.exceptions import InvalidError

    parts: dict[str, float] = {}
    for name, text in pairs("--max-load", max_load).items():
        try:
            parts[name] = float(text)
        except ValueError:
            parts[name] = math.nan
        if not 0 < parts[name] <= 1:
            raise InvalidError(f"--max-load: {name}: {text!r} must be a number above 0 and at most 1")
    return AutoscalerOptions(period, cool_down, parts, dry_run)
