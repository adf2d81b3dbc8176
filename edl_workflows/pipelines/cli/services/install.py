"""``edl install``: prints the manifests of an installation for `kubectl apply`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import MAX_PARTITIONS
from edl_workflows.core.write_budget import MIN_WRITES_PER_SECOND, WRITES_PER_SECOND
from edl_workflows.pipelines.cli.options import Kinds, expand_options, kinds_of, parse_pairs, read_template
from edl_workflows.pipelines.cli.output import print_document
from edl_workflows.pipelines.install.options import (
    MAX_REPLICAS,
    NAMESPACE,
    CrdMode,
    InstallOptions,
    InstallPart,
    PullPolicy,
)

_PRINT_MISSING = (
    "edl install does not change a cluster itself: add --print, and apply the manifests with "
    "`kubectl apply -f -` or add them to your repository"
)

app = typer.Typer()

Image = Annotated[
    str,
    typer.Option(
        help="Image of the controller and of masters, built from Containerfile. Required except with "
        "`--crds only`.",
        show_default=False,
    ),
]
Print = Annotated[bool, typer.Option("--print", help="Print the manifests as YAML and do nothing else.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the controller.")]
JobsNamespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--jobs-namespace",
        help="Namespace whose jobs are reconciled, which must exist. The controller gets permissions only "
        "there. May be repeated.",
        show_default="all",
    ),
]
JobsNamespaceSelector = Annotated[
    str,
    typer.Option(
        metavar="SELECTOR",
        help="Reconcile the jobs of the namespaces with these labels (`team=vision,env in (test,prod)`), "
        "while they have them. The controller gets permissions in all namespaces.",
        show_default=False,
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_REPLICAS,
        help="Replicas of the controller. All but one wait, and take over if another fails. Those of further "
        "--controller-partitions come on top.",
    ),
]
ControllerPartitions = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PARTITIONS,
        help="Replicas of the controller that share the jobs. Besides them, --replicas less one wait. From a "
        "version without partitions upgrade with 1 first.",
    ),
]
ImagePullPolicy = Annotated[
    PullPolicy | None, typer.Option(help="Pull policy of the image.", show_default=False)
]
ImagePullSecrets = Annotated[
    list[str] | None,
    typer.Option(
        help="Secret with credentials for the registry, in the controller's namespace and in those with "
        "jobs. May be repeated.",
        show_default=False,
    ),
]
With = Annotated[
    list[InstallPart] | None,
    typer.Option("--with", help="Component to install in addition. May be repeated.", show_default=False),
]
Autoscaler = Annotated[
    bool, typer.Option("--autoscaler", help="Allow the controller to change the replicas of elastic jobs.")
]
ForceDeleteLostPods = Annotated[
    bool,
    typer.Option(
        "--force-delete-lost-pods/--keep-lost-pods",
        help="Let the controller delete pods by force if their machine is lost, see `edl controller run`.",
    ),
]
MasterAccounts = Annotated[
    list[str] | None,
    typer.Option(
        "--master-account",
        help="ServiceAccount that templates of masters set. It may create auto plans for every job. "
        "May be repeated.",
        show_default=False,
    ),
]
MasterCpuLimit = Annotated[
    str,
    typer.Option(
        metavar="QUANTITY",
        help="CPU limit of masters, for namespaces whose ResourceQuota counts limits.cpu.",
        show_default="none",
    ),
]
ProgressWrites = Annotated[
    float | None,
    typer.Option(
        min=MIN_WRITES_PER_SECOND,
        help="Budget of all ElasticJobs together for writes of mere progress, see `edl controller run`.",
        show_default=f"{WRITES_PER_SECOND:g}",
    ),
]
Crds = Annotated[
    CrdMode,
    typer.Option(
        help="Print the definitions, the roles of people and pipelines, and the priority levels, which all "
        "installations of a cluster share, with the installation, or only them, or the installation without "
        "them."
    ),
]
PodTemplate = Annotated[
    Path | None,
    typer.Option(
        help="File with a pod template (YAML) over the pods of the controller and of the other components: "
        "resources, node selector, tolerations, priority class, labels.",
        show_default=False,
    ),
]
MasterTemplate = Annotated[
    Path | None,
    typer.Option(help="File with a pod template (YAML) for the jobs' masters.", show_default=False),
]
TrainingTemplate = Annotated[
    Path | None,
    typer.Option(
        help="File with a pod template (YAML) below the training pods of all jobs, whose own templates "
        "override it.",
        show_default=False,
    ),
]
Ttl = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Seconds after its end at which a job is deleted that has no ttlSecondsAfterFinished.",
        show_default="it stays",
    ),
]
OtherOperators = Annotated[
    list[str] | None,
    typer.Option(
        "--other-operator",
        metavar="NAMESPACE:ACCOUNT",
        help="ServiceAccount of another operator of these kinds, whose running jobs go on: the admission "
        "policies let it create their pods. May be repeated.",
        show_default=False,
    ),
]
BrainDatabaseSecret = Annotated[
    str,
    typer.Option(
        help="Secret whose key `url` contains the URL of the Brain's PostgreSQL database. By default "
        "SQLite on a volume.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class GuardFlags:
    """What keeps jobs apart from others and the API server from overload, and who may look at the jobs."""

    network_policies: Annotated[
        bool,
        typer.Option(
            "--network-policies/--no-network-policies",
            help="Create a NetworkPolicy for each job that admits only the job's own pods to its pods.",
        ),
    ] = True
    admission_policies: Annotated[
        bool,
        typer.Option(
            "--admission-policies/--no-admission-policies",
            help="Install admission policies against forged children of jobs and foreign plans. Needs "
            "Kubernetes 1.30 or newer.",
        ),
    ] = True
    flow_schemas: Annotated[
        bool,
        typer.Option(
            "--flow-schemas/--no-flow-schemas",
            help="Install FlowSchemas, so that at a busy API server masters do not delay the controller, and "
            "neither of them the rest of the cluster.",
        ),
    ] = True
    monitoring: Annotated[
        bool,
        typer.Option(
            "--monitoring",
            help="Install alert rules and monitors for Prometheus' operator, and dashboards for Grafana's "
            "sidecar.",
        ),
    ] = False
    prometheus_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of Prometheus, which the NetworkPolicies of new ElasticJobs then admit to port "
            "50001 of the jobs' pods, where masters serve their metrics.",
            show_default=False,
        ),
    ] = ""
    prometheus_labels: Annotated[
        str,
        typer.Option(
            metavar="LABEL=VALUE,...",
            help="Labels of Prometheus' pods; by default all pods of its namespace are admitted.",
            show_default=False,
        ),
    ] = ""

    def options(self) -> dict[str, Any]:
        """The fields of `InstallOptions`.

        Raises:
            InvalidError: the labels are malformed.
        """
        labels = parse_pairs("--prometheus-labels", self.prometheus_labels)
        return {**asdict(self), "prometheus_labels": labels}


@app.command()
@expand_options
def install(
    image: Image = "",
    print_: Print = False,
    namespace: Namespace = NAMESPACE,
    jobs_namespace: JobsNamespaces = None,
    jobs_namespace_selector: JobsNamespaceSelector = "",
    kinds: Kinds = "",
    replicas: Replicas = 2,
    controller_partitions: ControllerPartitions = 1,
    image_pull_policy: ImagePullPolicy = None,
    image_pull_secret: ImagePullSecrets = None,
    with_: With = None,
    autoscaler: Autoscaler = False,
    brain_database_secret: BrainDatabaseSecret = "",
    force_delete_lost_pods: ForceDeleteLostPods = False,
    master_account: MasterAccounts = None,
    master_cpu_limit: MasterCpuLimit = "",
    progress_writes_per_second: ProgressWrites = None,
    pod_template: PodTemplate = None,
    master_template: MasterTemplate = None,
    training_template: TrainingTemplate = None,
    ttl_seconds_after_finished: Ttl = None,
    crds: Crds = CrdMode.WITH,
    other_operator: OtherOperators = None,
    *,
    guards: GuardFlags,
) -> None:
    """Print the manifests of an installation: `edl install --image … --print | kubectl apply -f -`.

    They contain the definitions, a namespace, permissions and the controller. To upgrade, apply the new ones.
    To uninstall, delete those of `--crds without`: deleting a definition deletes every job of its kind.
    """
    options = InstallOptions(
        image=image,
        namespace=namespace,
        jobs_namespaces=NamespaceSelection(tuple(jobs_namespace or ()), jobs_namespace_selector),
        kinds=kinds_of(kinds),
        replicas=replicas,
        controller_partitions=controller_partitions,
        pull_policy=image_pull_policy,
        pull_secrets=tuple(image_pull_secret or ()),
        parts=frozenset(with_ or ()),
        autoscaler=autoscaler,
        brain_database_secret=brain_database_secret,
        force_delete_lost_pods=force_delete_lost_pods,
        master_accounts=tuple(master_account or ()),
        master_cpu_limit=master_cpu_limit,
        progress_writes_per_second=progress_writes_per_second,
        pod_template=read_template("--pod-template", pod_template),
        master_template=read_template("--master-template", master_template),
        training_template=read_template("--training-template", training_template),
        ttl_seconds_after_finished=ttl_seconds_after_finished,
        crds=crds,
        other_operators=tuple(other_operator or ()),
        **guards.options(),
    )
    _print_manifests(options, confirmed=print_)


def _print_manifests(options: InstallOptions, *, confirmed: bool) -> None:
    if not confirmed:
        raise InvalidError(_PRINT_MISSING)
    from edl_workflows.pipelines.install.crds import render_yaml
    from edl_workflows.pipelines.install.manifests import installation_manifests

    print_document(render_yaml(installation_manifests(options)))
