"""The example of each kind, with labels on its pods."""

import copy
from collections.abc import Iterator

from tests.cases.kind import Manifest
from tests.cases.kinds import KIND_CASES

OWN_LABELS = {"app": "recommender", "team": "ads"}


def make_example(kind: str, labels: dict[str, str] | None = None) -> Manifest:
    """A copy of a kind's example, with these labels (default: `OWN_LABELS`) on each of its pod templates."""
    job = copy.deepcopy(KIND_CASES[kind].example)
    for template in _templates(job):
        template.setdefault("metadata", {})["labels"] = dict(OWN_LABELS if labels is None else labels)
    return job


def _templates(value: object) -> Iterator[Manifest]:
    if isinstance(value, dict):
        if isinstance(value.get("template"), dict):
            yield value["template"]
        for key, below in value.items():
            if key != "template":
                yield from _templates(below)
    elif isinstance(value, list):
        for below in value:
            yield from _templates(below)
