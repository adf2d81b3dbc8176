"""The cases of ElasticJob."""

from typing import Any

from tests.benchmarks.cluster import masters
from tests.cases.kind import KindCases, Manifest, make_detailed_template, make_manifest, make_template

API_VERSION = "elastic.iml.github.io/v1alpha1"


def make_agent_template() -> Manifest:
    """The template of a training pod."""
    template = make_template("main")
    template["spec"]["containers"][0]["command"] = ["edl", "agent", "run", "--", "python", "train.py"]
    return template


def make_elastic_job(**spec: Any) -> Manifest:
    """A job of 2 parameter servers and 1 worker."""
    roles = {
        "ps": {"replicas": 2, "template": make_agent_template()},
        "worker": {"replicas": 1, "template": make_agent_template()},
    }
    job = make_manifest(API_VERSION, "ElasticJob", "digits", **{"replicaSpecs": roles} | spec)
    job["metadata"]["namespace"] = "default"
    return job


CASES = KindCases(
    example=make_elastic_job(
        optimizeMode="manual",
        replicaSpecs={
            "dlrover-master": {"template": {}},
            "worker": {"replicas": 2, "template": make_agent_template()},
        },
    ),
    ends=("Succeeded", "Failed"),
    mistakes=(),  # `tests.contract.bad_manifests` has them: they are tried in every driver
    detailed=make_manifest(
        API_VERSION, "ElasticJob", "x",
        replicaSpecs={
            role: {"replicas": 1, "template": make_detailed_template()} for role in ("ps", "worker")
        },
        distributionStrategy="ParameterServerStrategy",
        envs={"A": {"value": "b"}},
        suspend=False,
    ),
    template=("spec", "replicaSpecs", "worker", "template"),
    four_pods={
        "replicaSpecs": {
            role: {"replicas": replicas, "template": make_template("main")}
            for role, replicas in masters.ROLES.items()
        }
    },
    installed=None,
)  # fmt: skip
