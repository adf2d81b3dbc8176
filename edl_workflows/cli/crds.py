"""``edl crds``: the CustomResourceDefinitions of the job kinds, to look at or to install."""

import time
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.cli.options import Context, Kubeconfig, connect
from edl_workflows.cli.output import print_document, print_line
from edl_workflows.exceptions import AlreadyExistsError, InvalidError, UnavailableError

if TYPE_CHECKING:
    from edl_workflows.kube.connect import Cluster

app = typer.Typer(help="The CustomResourceDefinitions of the job kinds.", no_args_is_help=True)

ESTABLISH_SECONDS = 30.0
"""How long a server may take until it serves a new definition; a healthy one takes less than a second."""


def definitions() -> Iterator[tuple[str, str]]:
    """(plural, YAML text) of each definition, as the package ships them."""
    folder = resources.files("edl_workflows.jobs") / "crds"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            yield file.name.removesuffix(".yaml"), file.read_text(encoding="utf-8")


@app.command("print")
def print_(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Which, by plural name as 'elasticjobs'; default all.")
    ] = None,
) -> None:
    """Print them as YAML: `edl crds print | kubectl apply --server-side -f -`."""
    known = dict(definitions())
    unknown = [kind for kind in kinds or () if kind not in known]
    if unknown:
        raise InvalidError(f"there is no definition {unknown[0]!r}; there are {', '.join(known)}")
    print_document("---\n".join(known[kind] for kind in kinds or known))


@app.command()
def install(kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Create or update them in a cluster, and wait until it serves them."""
    import yaml

    from edl_workflows.kube import client
    from edl_workflows.kube.resources import CRDS

    cluster = connect(kubeconfig, context, None)
    for plural, text in definitions():
        manifest = yaml.safe_load(text)
        try:
            client.create(cluster, manifest)
        except AlreadyExistsError:
            client.patch(cluster, CRDS, manifest["metadata"]["name"], {"spec": manifest["spec"]})
        _wait_until_served(cluster, manifest["metadata"]["name"])
        print_line(f"{plural}: installed")


def _wait_until_served(cluster: "Cluster", name: str) -> None:
    from edl_workflows.kube import client
    from edl_workflows.kube.resources import CRDS

    deadline = time.monotonic() + ESTABLISH_SECONDS
    while True:
        status = client.get(cluster, CRDS, name).get("status") or {}
        states = {c["type"]: c for c in status.get("conditions") or ()}  # null in the first moment
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
