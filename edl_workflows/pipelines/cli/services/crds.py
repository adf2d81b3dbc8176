"""``edl crds``: prints or installs the CustomResourceDefinitions of the job kinds."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import AlreadyExistsError, ConflictError, InvalidError, UnavailableError
from edl_workflows.core.jobs.kinds import ALL_KINDS, DEFAULT_KINDS, kind_of
from edl_workflows.pipelines.cli.options import Context, Kubeconfig, connect_cluster
from edl_workflows.pipelines.cli.output import print_document, print_line

if TYPE_CHECKING:
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(help="The CustomResourceDefinitions of the job kinds.", no_args_is_help=True)

ESTABLISH_SECONDS = 30.0
"""Longest time until the API server serves a new definition, in seconds. Usually this takes less than a
second."""


def read_definitions() -> Iterator[tuple[str, str]]:
    """Yield (plural, YAML text) for each definition in the package."""
    folder = resources.files("edl_workflows.core.jobs") / "crds"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            yield file.name.removesuffix(".yaml"), file.read_text(encoding="utf-8")


Definitions = Annotated[
    list[str] | None,
    typer.Argument(
        help="Plural names such as 'tfjobs', or 'all'.",
        show_default="elasticjobs scaleplans",
        metavar="[NAME]...",
    ),
]


@app.command("print")
def print_(names: Definitions = None) -> None:
    """Print the definitions as YAML: `edl crds print | kubectl apply --server-side -f -`."""
    print_document("---\n".join(_choose(names).values()))


@app.command()
def install(
    names: Definitions = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Also replace definitions that another operator has installed."),
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Create or update the definitions in a cluster, and wait until the API server serves them.

    A definition that another operator has installed is kept, and is an error unless `--replace` is given.
    """
    import yaml

    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import CRDS

    cluster = connect_cluster(kubeconfig, context, None)
    manifests = {name: yaml.load(text, yaml.CSafeLoader) for name, text in _choose(names).items()}
    if not replace:
        _keep_foreign(cluster, manifests.values())
    for plural, manifest in manifests.items():
        try:
            client.create(cluster, manifest)
        except AlreadyExistsError:
            change = {"metadata": {"labels": manifest["metadata"]["labels"]}, "spec": manifest["spec"]}
            client.patch(cluster, CRDS, manifest["metadata"]["name"], change)
        _wait_until_served(cluster, manifest["metadata"]["name"])
        print_line(f"{plural}: installed")


def _choose(names: Sequence[str] | None) -> dict[str, str]:
    """The texts of the named definitions.

    Raises:
        InvalidError: there is no such definition.
    """
    definitions = dict(read_definitions())
    if names == [ALL_KINDS]:
        return definitions
    for name in names or ():
        if name not in definitions:
            raise InvalidError(
                f"there is no definition {name!r}; the definitions are {', '.join(definitions)}"
            )
    default = [kind_of(name).source.api.plural for name in DEFAULT_KINDS]
    return {name: definitions[name] for name in names or default}


def _keep_foreign(cluster: "Cluster", manifests: Iterable[Mapping[str, Any]]) -> None:
    """Check that the definitions, where they exist, are of this package.

    Raises:
        ConflictError: another operator has installed one.
    """
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import CRDS

    for manifest in manifests:
        name, ours = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        existing = client.find(cluster, CRDS, name)
        if existing is not None and not ours.items() <= (existing["metadata"].get("labels") or {}).items():
            raise ConflictError(
                f"CustomResourceDefinition {name} belongs to another operator and is kept, and no definition "
                "was changed. Leave the kind to that operator; if it is gone, add --replace"
            )


def _wait_until_served(cluster: "Cluster", name: str) -> None:
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import CRDS

    deadline = time.monotonic() + ESTABLISH_SECONDS
    while True:
        status = client.get(cluster, CRDS, name).get("status") or {}
        states = {c["type"]: c for c in status.get("conditions") or ()}  # null at first
        if states.get("Established", {}).get("status") == "True":
            return
        refused = states.get("NamesAccepted", {})
        if refused.get("status") == "False":
            raise InvalidError(f"CustomResourceDefinition {name} is not served: {refused.get('message')}")
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"CustomResourceDefinition {name} is not served after {ESTABLISH_SECONDS:.0f} s"
            )
        time.sleep(0.1)
