"""``edl install``: the manifests of an installation, for `kubectl apply`."""

from typing import Annotated

import typer

from edl_workflows.cli.options import Kinds, kinds_of
from edl_workflows.cli.output import print_document
from edl_workflows.exceptions import InvalidError
from edl_workflows.install.options import NAMESPACE, InstallOptions, InstallPart, PullPolicy

app = typer.Typer()

Image = Annotated[
    str, typer.Option(help="Image of the controller and of the masters, as Containerfile makes it.")
]
Print = Annotated[bool, typer.Option("--print", help="Print the manifests as YAML; nothing else is done.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where the controller lives.")]
JobsNamespace = Annotated[
    str,
    typer.Option(
        help="Reconcile the jobs of this namespace only, with rights there only.", show_default="all"
    ),
]
Replicas = Annotated[int, typer.Option(min=1, max=9, help="Controllers; one works, the others take over.")]
ImagePullPolicy = Annotated[PullPolicy | None, typer.Option(help="Of the image.", show_default=False)]
ImagePullSecrets = Annotated[
    list[str] | None,
    typer.Option(
        help="Secret with the registry's credentials, in the controller's namespace and in those with jobs. "
        "Repeatable.",
        show_default=False,
    ),
]
With = Annotated[
    list[InstallPart] | None,
    typer.Option("--with", help="What to install besides. Repeatable.", show_default=False),
]
Autoscaler = Annotated[
    bool, typer.Option("--autoscaler", help="Let the controller change the replicas of elastic jobs.")
]
NetworkPolicies = Annotated[
    bool,
    typer.Option(
        "--network-policies/--no-network-policies",
        help="Let the controller make a NetworkPolicy for each job, which admits only the job's own pods to "
        "its pods.",
    ),
]
AdmissionPolicies = Annotated[
    bool,
    typer.Option(
        "--admission-policies/--no-admission-policies",
        help="Let the API server refuse forged children of jobs and foreign plans. Kubernetes 1.29 has no "
        "such policies.",
    ),
]
MasterAccounts = Annotated[
    list[str] | None,
    typer.Option(
        "--master-account",
        help="ServiceAccount that masters have by their template: it may make auto plans for every job. "
        "Repeatable.",
        show_default=False,
    ),
]
BrainDatabaseSecret = Annotated[
    str,
    typer.Option(
        help="Secret whose key `url` has the URL of Brain's PostgreSQL database. Without it, SQLite on a "
        "volume.",
        show_default=False,
    ),
]


@app.command()
def install(
    image: Image,
    print_: Print = False,
    namespace: Namespace = NAMESPACE,
    jobs_namespace: JobsNamespace = "",
    kinds: Kinds = "",
    replicas: Replicas = 2,
    image_pull_policy: ImagePullPolicy = None,
    image_pull_secret: ImagePullSecrets = None,
    with_: With = None,
    autoscaler: Autoscaler = False,
    brain_database_secret: BrainDatabaseSecret = "",
    network_policies: NetworkPolicies = True,
    admission_policies: AdmissionPolicies = True,
    master_account: MasterAccounts = None,
) -> None:
    """Print what a cluster needs to run jobs: `edl install --image … --print | kubectl apply -f -`.

    Definitions, a namespace, rights, the controller with its metrics Service, NetworkPolicy and
    PodDisruptionBudget. To upgrade, apply what the newer version prints.
    """
    from edl_workflows.install.manifests import installation_manifests, render_manifests

    options = InstallOptions(
        image=image,
        namespace=namespace,
        jobs_namespace=jobs_namespace,
        kinds=kinds_of(kinds),
        replicas=replicas,
        pull_policy=image_pull_policy,
        pull_secrets=tuple(image_pull_secret or ()),
        parts=frozenset(with_ or ()),
        autoscaler=autoscaler,
        brain_database_secret=brain_database_secret,
        network_policies=network_policies,
        admission_policies=admission_policies,
        master_accounts=tuple(master_account or ()),
    )
    if not print_:
        raise InvalidError(
            "edl install changes no cluster itself: add --print, look at the manifests, and give them to "
            "`kubectl apply -f -` or to your repository"
        )
    print_document(render_manifests(installation_manifests(options)))
