"""Installs the CustomResourceDefinitions of the job kinds, which the embedded cluster has from the start. On
other clusters ``edl crds install`` does this."""

from importlib import resources

import yaml

from edl_workflows.local.apiserver.client import LocalClient

_DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def install(client: LocalClient) -> None:
    """Create the definitions, or update them if they come from an older version."""
    folder = resources.files("edl_workflows.core.jobs") / "crds"
    for file in folder.iterdir():
        definition = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
        name = definition["metadata"]["name"]
        if client.find(_DEFINITIONS, name) is None:
            client.create(_DEFINITIONS, definition)
        else:
            client.patch(_DEFINITIONS, name, {"spec": definition["spec"]})
