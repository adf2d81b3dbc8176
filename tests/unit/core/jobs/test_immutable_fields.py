"""Fields of Kubeflow's kinds that an API server keeps as they are."""

from copy import deepcopy
from typing import Any

import pytest

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.local.apiserver.objects import rules
from edl_workflows.pipelines.install.crds import crd_of_kind
from tests.cases.kind import put
from tests.cases.kinds import KIND_CASES
from tests.cases.kubeflow import KUBEFLOW_KINDS

MANAGER = "spec/runPolicy/managedBy"
QUEUE = "spec/runPolicy/schedulingPolicy/queue"


def refusals(kind: str, path: str, old: str | None, new: str | None) -> list[str]:
    """What an API server says to an edit of one field; None: the field is absent."""
    (version,) = [v for v in crd_of_kind(kind_of(kind))["spec"]["versions"] if v["storage"]]
    tree, problems = rules.compile_rules(version["schema"]["openAPIV3Schema"], "")
    assert problems == []
    manifests: list[dict[str, Any]] = []
    for text in (new, old):
        manifest = deepcopy(KIND_CASES[kind].example)
        manifest["metadata"]["name"] = "mnist"
        manifest["spec"].pop("runPolicy", None)
        if text is not None:
            put(path, text)(manifest)
        manifests.append(manifest)
    edited, stored = manifests
    edited["spec"].setdefault("runPolicy", {})["suspend"] = True
    return [cause.message for cause in rules.evaluate(edited, stored, tree)]


@pytest.mark.parametrize("kind", KUBEFLOW_KINDS)
@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        (MANAGER, "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"),
        (QUEUE, "night", "day"),
        ("spec/schedulingPolicy/queue", "night", "day"),
    ],
)
def test_manager_and_queue_never_change(kind: str, path: str, one: str, other: str) -> None:
    """A job's manager and queue can't be set, changed or removed once the job exists, as with upstream's
    webhook; other fields beside them can. A running job that was given to another manager would say Running
    for ever."""
    field = ".".join(path.split("/")[1:])
    for old, new in ((one, other), (None, one), (one, None)):
        (message,) = refusals(kind, path, old, new)
        assert f"{field}: is immutable" in message
    assert refusals(kind, path, one, one) == []
    assert refusals(kind, path, None, None) == []
