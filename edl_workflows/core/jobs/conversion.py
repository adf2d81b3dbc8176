"""A job's manifest as another version or kind: what all conversions share. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.kubernetes.objects import Resource

AGENT = ("edl", "agent", "run", "--")
"""The command that runs the program in an ElasticJob's training container."""

_CARRIED = ("name", "generateName", "namespace", "labels", "annotations")


@dataclass(frozen=True)
class ConvertedJob:
    """A converted manifest, and notes on what the conversion lost.

    Attributes:
        manifest: of the new kind or version, without status and without the fields that an API server fills
            in.
        notes: what was lost or has to be done by hand, each with its field path.
    """

    manifest: dict[str, Any]
    notes: tuple[str, ...] = ()


def converted_manifest(api_version: str, kind: str, job: Resource, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A job's manifest with another kind and spec. Its name and the other metadata that users write stay."""
    metadata = {key: value for key, value in job.metadata.to_dict().items() if key in _CARRIED and value}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}
