"""One job of each kind: every test of all kinds takes its manifests from here."""

import copy
from collections.abc import Iterator
from typing import Any

from tests.unit.core.jobs.conftest import make_job, make_template
from tests.unit.core.jobs.di_jobs import make as make_di_job
from tests.unit.core.jobs.di_jobs import task
from tests.unit.core.jobs.test_pytorch_job_reconcile import make_pytorch_job
from tests.unit.core.jobs.tf_jobs import make_tf_job
from tests.unit.core.jobs.training_jobs import make_training_job

Manifest = dict[str, Any]

EXAMPLES: dict[str, Manifest] = {
    "ElasticJob": make_job(
        optimizeMode="manual",
        replicaSpecs={
            "dlrover-master": {"template": {}},
            "worker": {"replicas": 2, "template": make_template()},
        },
    ),
    "TFJob": make_tf_job(PS=1, Worker=(2, "ExitCode")),
    "PyTorchJob": make_pytorch_job(Worker=(2, "ExitCode"), elastic={"minReplicas": 1, "maxReplicas": 4}),
    "TrainingJob": make_training_job(template={}),
    "DIJob": make_di_job(task("learner"), task("collector", 2, minReplicas=1, maxReplicas=4)),
}
"""An autoscaler may change the jobs of kinds that have `Kind.elastic`."""

OWN_LABELS = {"app": "recommender", "team": "ads"}


def make_example(kind: str, labels: dict[str, str] | None = None) -> Manifest:
    """A copy of a kind's example, with these labels (default: `OWN_LABELS`) on each of its pod templates."""
    job = copy.deepcopy(EXAMPLES[kind])
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
