"""The pods of the examples, as an installation makes them."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import yaml

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.pods import NodeToMake, node_pod
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart
from edl_workflows.pipelines.install.workloads import master_template
from tests.jobs_namespace import JobsNamespace

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[1]
EXAMPLES = [
    path
    for pattern in ("dags/manifests/*.yaml", "docs/tutorial/*.yaml", "dags/argo/example_*.py")
    for path in sorted(ROOT.glob(pattern))
]
NUMBERS = re.compile(r"\{\{workflow\.parameters\.(ps|workers|max-workers)\}\}")
TAGS = re.compile(r"\{\{[^}]*\}\}")
"""Parameters of a workflow."""
INSTALLATION = InstallOptions("registry.example/edl:1", kinds=("all",), parts=frozenset(InstallPart))


def read_argo_example(text: str) -> Manifest:
    """The job of an example workflow, as its parameters could be."""
    namespace: Manifest = {"__name__": "example"}
    exec(text, namespace)
    spec = yaml.safe_load(TAGS.sub("text", NUMBERS.sub("2", namespace["SPEC"])))
    return {"apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": "job"}, "spec": spec}


def read_example(text: str) -> Manifest:
    """The job of an example: a manifest, rendered as Airflow renders it, or a program for Argo."""
    if "hera.workflows" in text:
        return read_argo_example(text)
    variables = SimpleNamespace(value={"edl_work_dir": "/work"})
    params = {"ps": 1, "workers": 1, "max_workers": 2, "epochs": 1, "step_delay": 0.1}
    dag = SimpleNamespace(folder="/dags", dag_id="digits")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    rendered = environment.from_string(text).render(var=variables, params=params, dag=dag, run_id="manual:1")
    manifest: Manifest = yaml.safe_load(rendered)
    manifest["metadata"]["name"] = (
        manifest["metadata"].pop("generateName", "") or manifest["metadata"]["name"]
    )
    return manifest


def pods_of(job: Manifest) -> list[Manifest]:
    """The pods of a job in an installation, with one node of each role of an ElasticJob."""
    world = JobsNamespace()
    world.settings = InstallationSettings(master_template=master_template(INSTALLATION))
    if job["kind"] == "DIJob":
        job["spec"].pop("preemptible", None)
    stored = world.add(job)
    world.settle()
    pods = [obj for (kind, _), obj in world.objects.items() if kind == "Pod"]
    if job["kind"] == "ElasticJob":
        parsed = ElasticJob.parse(stored)
        roles = [role for role in job["spec"]["replicaSpecs"] if role != names.MASTER_TYPE]
        pods += [node_pod(parsed, NodeToMake(role, 0, 0, 1)) for role in roles]
    return pods
