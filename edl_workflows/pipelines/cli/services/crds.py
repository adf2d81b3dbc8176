"""``edl crds``: prints or installs the CustomResourceDefinitions of the job kinds."""

import time
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import AlreadyExistsError, InvalidError, UnavailableError
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


@app.command("print")
def print_(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Plural names such as 'elasticjobs'; by default all.")
    ] = None,
) -> None:
    """Print the definitions as YAML: `edl crds print | kubectl apply --server-side -f -`."""
    definitions = dict(read_definitions())
    unknown = [kind for kind in kinds or () if kind not in definitions]
    if unknown:
        raise InvalidError(
            f"there is no definition {unknown[0]!r}; the definitions are {', '.join(definitions)}"
        )
    print_document("---\n".join(definitions[kind] for kind in kinds or definitions))


@app.command()
def install(kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Create or update the definitions in a cluster, and wait until the API server serves them."""
    import yaml

    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import CRDS

    cluster = connect_cluster(kubeconfig, context, None)
    for plural, text in read_definitions():
        manifest = yaml.load(text, yaml.CSafeLoader)
        try:
            client.create(cluster, manifest)
        except AlreadyExistsError:
            client.patch(cluster, CRDS, manifest["metadata"]["name"], {"spec": manifest["spec"]})
        _wait_until_served(cluster, manifest["metadata"]["name"])
        print_line(f"{plural}: installed")


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
