"""``edl controller``: runs the controller."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.partitions import MAX_PARTITIONS
from edl_workflows.core.scaling.policies import POLICIES, policy_help
from edl_workflows.core.write_budget import MIN_WRITES_PER_SECOND, WRITES_PER_SECOND
from edl_workflows.pipelines.cli.options import (
    ClusterFlags,
    Kinds,
    LeaderFlags,
    LogFlags,
    MetricsFlags,
    NamespacesFlags,
    expand_options,
    kinds_of,
    parse_pairs,
    read_template,
)

if TYPE_CHECKING:
    LivePolicyName = str
    from edl_workflows.core.jobs.actions import InstallationSettings
    from edl_workflows.services.controller.allocator import AllocatorOptions
    from edl_workflows.services.controller.autoscaler import AutoscalerOptions
else:  # typer shows the members of an Enum as choices
    LivePolicyName = StrEnum("LivePolicyName", {entry.name: entry.name for entry in POLICIES})

app = typer.Typer(help="The controller of all job kinds.", no_args_is_help=True)

_NOT_GIVEN: tuple[object, ...] = (None, "", {})

Workers = Annotated[int, typer.Option(min=1, max=64, help="Number of jobs that are reconciled concurrently.")]
Partitions = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PARTITIONS,
        help="Number of replicas that share the jobs, each with a Lease; further replicas wait. Needs "
        "--leader-elect.",
    ),
]


@dataclass(frozen=True)
class JobFlags:
    """Settings for all jobs."""

    master_image: Annotated[
        str | None,
        typer.Option(help="Image of the job master where a job's template names none.", show_default=False),
    ] = None
    master_template: Annotated[
        Path | None,
        typer.Option(
            help="File with a pod template (YAML) for masters. The job's own dlrover-master template "
            "overrides it. For example pull secrets, a security context, or placement.",
            show_default=False,
        ),
    ] = None
    master_cpu_limit: Annotated[
        str,
        typer.Option(
            metavar="QUANTITY",
            help="CPU limit of masters whose template names no resources, for namespaces whose "
            "ResourceQuota counts limits.cpu; default none.",
            show_default=False,
        ),
    ] = ""
    training_template: Annotated[
        Path | None,
        typer.Option(
            help="File with a pod template (YAML) below the training pods of all jobs, whose own templates "
            "override it. For example tolerations, a security context, or labels.",
            show_default=False,
        ),
    ] = None
    ttl_seconds_after_finished: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seconds after its end at which a job is deleted that has no ttlSecondsAfterFinished; by "
            "default it stays.",
            show_default=False,
        ),
    ] = None
    tf_cluster_domain: Annotated[
        str | None,
        typer.Option(
            envvar="CUSTOM_CLUSTER_DOMAIN",
            help="Domain of the cluster, appended to `svc` in the TF_CONFIG of TFJobs; default none.",
            show_default=False,
        ),
    ] = None
    di_server_url: Annotated[
        str | None,
        typer.Option(
            help="Address of the DI server for programs of DIJobs; by default that of DI-orchestrator.",
            show_default=False,
        ),
    ] = None
    di_service_domain: Annotated[
        str | None,
        typer.Option(
            help="Suffix after the namespace in host names of DIJobs' pods; default svc.cluster.local.",
            show_default=False,
        ),
    ] = None
    di_job_resources: Annotated[
        str,
        typer.Option(
            metavar="RESOURCE=QUANTITY,...",
            help="Requests of a replica of a preemptible DIJob if its template has none; default "
            "cpu=1,memory=2Gi.",
            show_default=False,
        ),
    ] = ""
    di_priority_classes: Annotated[
        str,
        typer.Option(
            metavar="PRIORITY=CLASS,...",
            help="PriorityClasses for pods of DIJobs, by the priority of the job (normal, high).",
            show_default=False,
        ),
    ] = ""
    network_policies: Annotated[
        bool,
        typer.Option(
            "--network-policies/--no-network-policies",
            help="Create a NetworkPolicy for each job that admits only the job's own pods to its pods.",
        ),
    ] = False

    prometheus_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace whose pods the NetworkPolicies of new ElasticJobs admit to port 50001 of the "
            "jobs' pods, where masters serve their metrics.",
            show_default=False,
        ),
    ] = ""
    prometheus_labels: Annotated[
        str,
        typer.Option(
            metavar="LABEL=VALUE,...",
            help="Labels that Prometheus' pods have in --prometheus-namespace; by default all its pods are "
            "admitted.",
            show_default=False,
        ),
    ] = ""
    force_delete_lost_pods: Annotated[
        bool,
        typer.Option(
            "--force-delete-lost-pods/--keep-lost-pods",
            help="Delete pods by force if their machine is lost, so that jobs whose pods have fixed names, "
            "all but ElasticJobs, can replace them. Use it only where a machine that has lost its contact is "
            "switched off: otherwise two pods of one name may run.",
        ),
    ] = False
    unreachable_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds after which an ElasticJob's master on an unreachable node is replaced.", min=0
        ),
    ] = 60.0
    progress_writes_per_second: Annotated[
        float,
        typer.Option(
            help="Budget of all ElasticJobs together for writes of mere progress. Each job writes once a "
            "minute, and more rarely where the budget does not suffice.",
            min=MIN_WRITES_PER_SECOND,
        ),
    ] = WRITES_PER_SECOND

    def settings(self) -> "InstallationSettings":
        """The settings. Options that were not given have their defaults.

        Raises:
            InvalidError: an option's value is malformed.
        """
        from edl_workflows.core.jobs.actions import InstallationSettings

        given: dict[str, Any] = {
            "master_template": read_template("--master-template", self.master_template),
            "training_template": read_template("--training-template", self.training_template),
            "ttl_seconds_after_finished": self.ttl_seconds_after_finished,
            "master_image": self.master_image,
            "master_cpu_limit": self.master_cpu_limit,
            "tf_cluster_domain": self.tf_cluster_domain,
            "di_server_url": self.di_server_url,
            "di_service_domain": self.di_service_domain,
            "di_job_resources": parse_pairs("--di-job-resources", self.di_job_resources),
            "di_priority_classes": parse_pairs("--di-priority-classes", self.di_priority_classes),
            "network_policies": self.network_policies,
            "prometheus_namespace": self.prometheus_namespace,
            "prometheus_labels": parse_pairs("--prometheus-labels", self.prometheus_labels),
            "force_delete_lost_pods": self.force_delete_lost_pods,
            "unreachable_seconds": self.unreachable_timeout,
            "progress_writes_per_second": self.progress_writes_per_second,
        }
        return InstallationSettings(**{key: value for key, value in given.items() if value not in _NOT_GIVEN})


@dataclass(frozen=True)
class AllocatorFlags:
    """How preemptible DIJobs are sized and placed."""

    allocator_policy: Annotated[
        LivePolicyName,
        typer.Option(
            metavar="NAME",
            help=f"How preemptible DIJobs are sized and placed. {policy_help(POLICIES)}",
        ),
    ] = "fit"
    allocator_period: Annotated[
        float, typer.Option(min=1, help="Interval between decisions of the allocator, in seconds.")
    ] = 60.0

    def options(self) -> "AllocatorOptions":
        """The allocator's options."""
        from edl_workflows.services.controller.allocator import AllocatorOptions

        return AllocatorOptions(self.allocator_policy, self.allocator_period)


@dataclass(frozen=True)
class AutoscalerFlags:
    """Whether and how the autoscaler changes elastic jobs."""

    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscaler",
            help="Change the replicas of elastic jobs according to the free capacity of the cluster.",
        ),
    ] = False
    autoscaler_dry_run: Annotated[
        bool,
        typer.Option("--autoscaler-dry-run", help="Report planned changes as Events without applying them."),
    ] = False
    autoscaler_period: Annotated[
        float, typer.Option(min=1, help="Interval between decisions of the autoscaler, in seconds.")
    ] = 30.0
    autoscaler_cool_down: Annotated[
        float, typer.Option(min=0, help="Seconds after a change of a job during which the job does not grow.")
    ] = 60.0
    max_load: Annotated[
        str,
        typer.Option(
            metavar="RESOURCE=PART,...",
            help="Fraction of the cluster that all pods together may request; default cpu=0.97,memory=0.97.",
            show_default=False,
        ),
    ] = ""

    def options(self) -> "AutoscalerOptions | None":
        """The autoscaler's options; None if the autoscaler is disabled.

        Raises:
            InvalidError: ``--max-load`` is malformed.
        """
        from edl_workflows.services.controller.autoscaler import AutoscalerOptions

        if not (self.autoscale or self.autoscaler_dry_run):
            return None
        parts: dict[str, float] = {}
        for name, text in parse_pairs("--max-load", self.max_load).items():
            try:
                parts[name] = float(text)
            except ValueError:
                raise InvalidError(f"--max-load: {name}: {text!r} is not a number") from None
        return AutoscalerOptions(
            self.autoscaler_period, self.autoscaler_cool_down, parts, self.autoscaler_dry_run
        )


@app.callback()
def _group() -> None:
    """Make typer treat `run` as a subcommand although it is the only one."""


@app.command()
@expand_options
def run(
    *,
    target: ClusterFlags,
    namespaces: NamespacesFlags,
    kinds: Kinds = "",
    workers: Workers = 16,
    partitions: Partitions = 1,
    leader: LeaderFlags,
    metrics: MetricsFlags,
    jobs: JobFlags,
    allocator: AllocatorFlags,
    autoscaler: AutoscalerFlags,
    logs: LogFlags,
) -> None:
    """Reconcile jobs until SIGTERM.

    Exits with code 1 when it loses its leadership, so that it is restarted as a candidate.
    """
    from edl_workflows.core.jobs.kinds import choose_kinds
    from edl_workflows.runtime.process.partition_member import hasten_take_over
    from edl_workflows.runtime.process.signals import stop_on_signals
    from edl_workflows.services.controller.manager import ManagerOptions
    from edl_workflows.services.controller.run import Controller, RunOptions

    job_kinds = choose_kinds(kinds_of(kinds))
    logs.configure()
    cluster = target.connect(log_retries=True)
    served = namespaces.selection(cluster)
    manager = ManagerOptions(
        served, workers, jobs.settings(), job_kinds, allocator.options(), autoscaler.options(), partitions
    )
    election = leader.election(cluster)
    options = RunOptions(
        manager=manager,
        election=hasten_take_over(election) if election and partitions > 1 else election,
        metrics_host=metrics.metrics_host,
        metrics_port=metrics.metrics_port or None,
    )
    Controller(cluster, options).run(stop_on_signals())
