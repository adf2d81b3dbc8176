"""What a training saved in an object store, as artifacts of later steps: on the real Argo controller, with an
S3 server in a pod."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hera.workflows import Artifact, Container, Parameter, Steps, Workflow, models

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.trace_context import trace_id_of
from edl_workflows.pipelines.argo.api import WORKFLOW_TEMPLATES
from edl_workflows.pipelines.argo.templates.artifacts import saved_artifact
from edl_workflows.pipelines.argo.templates.serializer import to_manifest
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import ACCOUNT
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from tests.argo.templates import example
from tests.clients.environments import python_environment
from tests.cluster.argo_runs import argo, create, named, until
from tests.cluster.bed.bed import Bed
from tests.cluster.training import place

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BUCKET = "models"
PORT = 9000


@dataclass(frozen=True)
class Store:
    """An S3 server in the namespace, with one bucket.

    Attributes:
        url: where pods and tests reach it.
    """

    url: str

    def put(self, key: str, content: bytes) -> None:
        """Store an object; the server takes every signature, and none."""
        httpx.put(f"{self.url}/{BUCKET}/{key}", content=content).raise_for_status()

    def keys(self) -> list[str]:
        """All objects."""
        return re.findall("<Key>([^<]+)</Key>", httpx.get(f"{self.url}/{BUCKET}").text)

    def answers(self) -> bool:
        """Whether it serves its bucket."""
        try:
            return httpx.get(f"{self.url}/{BUCKET}").is_success
        except httpx.TransportError:
            return False


@pytest.fixture
def store(bed: Bed, cluster: Cluster, namespace: str) -> Store:
    """A store that is the artifact repository of the namespace, and the Secret of those who train there."""
    mine, labels = cluster.in_namespace(namespace), {"app": "store"}
    command = [f"{bed.programs}/gofakes3", f"-host=:{PORT}", "-backend=memory", f"-initialbucket={BUCKET}"]
    server = {"name": "main", "image": bed.image, "imagePullPolicy": "Never", "command": command}
    client.create(mine, _object("Pod", "store", labels=labels, spec={"containers": [server]}))
    ports = [{"name": "http", "port": PORT}]
    service = client.create(mine, _object("Service", "store", spec={"selector": labels, "ports": ports}))
    # By its address: by a host name, S3 clients look for the bucket in a domain of its own.
    address = f"{service['spec']['clusterIP']}:{PORT}"
    keys = {"AWS_ACCESS_KEY_ID": "edl", "AWS_SECRET_ACCESS_KEY": "edl"}
    settings = {
        **keys, "AWS_ENDPOINT_URL": f"http://{address}", "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": str(ROOT),  # the interpreter with s3fs has no edl_workflows of its own
    }  # fmt: skip
    client.create(mine, _object("Secret", "object-store", stringData=settings))
    repository: dict[str, Any] = {"bucket": BUCKET, "endpoint": address, "insecure": True}
    for field, key in zip(("accessKeySecret", "secretKeySecret"), keys, strict=True):
        repository[field] = {"name": "object-store", "key": key}
    default = {"workflows.argoproj.io/default-artifact-repository": "store"}
    known = _object("ConfigMap", "artifact-repositories", annotations=default)
    client.create(mine, known | {"data": {"store": json.dumps({"s3": repository})}})
    running = Store(f"http://{address}")
    until(running.answers, 180, "the S3 server answers")
    return running


def _object(kind: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {key: more.pop(key) for key in ("labels", "annotations") if key in more}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}, **more}


@pytest.mark.parametrize("way", [pytest.param("resource", marks=pytest.mark.long), "plugin"])
def test_the_next_step_loads_the_checkpoint(
    way: WaitMode,
    request: pytest.FixtureRequest,
    bed: Bed,
    cluster: Cluster,
    namespace: str,
    store: Store,
    tmp_path: Path,
) -> None:
    """The training saves to the store. The next step, which does not know the store, finds the newest
    checkpoint in a folder and computes the accuracy that the training reported. The store has no copy of
    the checkpoint. The training pods of a plugin step belong to the workflow's trace."""
    mine = cluster.in_namespace(namespace)
    with place(request, bed, mine), argo(bed, mine, (), tmp_path) as running:
        create(mine, WORKFLOW_TEMPLATES, named(example(way, "example-artifact"), way))
        run = running.start(
            "example-artifact",
            way,
            image=bed.image,
            python=str(python_environment("s3")),
            training_dir=str(ROOT / "dags" / "training"),
        )
        run.wait(seconds=400)

        found = run.outputs(run.name)
        reported = json.loads(found["training-metrics"])["accuracy"]
        assert reported > 0.8
        assert json.loads(found["metrics"])["accuracy"] == reported
        saved, stored = found["checkpoint-uri"].removeprefix(f"s3://{BUCKET}/"), store.keys()
        assert saved.startswith(f"digits/{run.name}/checkpoint-")
        assert f"{saved}/weights.npy" in stored
        assert all(key.startswith(f"digits/{run.name}/checkpoint-") for key in stored), stored
        if way == "plugin":
            trace = run.get()["metadata"]["annotations"]["workflows.argoproj.io/trace-id"]
            assert _traces_of_pods(mine, found["name"]) == {trace}


def _traces_of_pods(cluster: Cluster, job: str) -> set[str]:
    """The traces that the job's pods, master and workers, were told to belong to."""
    scope = Scope(resources.PODS, cluster.namespace, label_selector=f"{names.JOB_LABEL}={job}")
    variables = [
        {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
        for pod in client.list_objects(cluster, scope).items
    ]
    return {trace_id_of(one.get(names.ENV_TRACEPARENT, "")) for one in variables}


def test_a_step_loads_one_file_of_an_export(
    bed: Bed, cluster: Cluster, namespace: str, store: Store, tmp_path: Path
) -> None:
    """The author's URI names a folder, and the step gets one file of it, unchanged."""
    store.put("exports/one-file/config.json", b"{}")
    store.put("exports/one-file/model.safetensors", b"weights")
    with Workflow(name="one-file", entrypoint="main", service_account_name=ACCOUNT) as workflow:
        show = Container(
            name="show",
            inputs=[Artifact(name="model", path="/mnt/model")],
            image=bed.image,
            command=["cat"],
            args=["/mnt/model"],
        )
        content = models.ValueFrom(parameter="{{steps.show.outputs.result}}")
        with Steps(name="main", outputs=[Parameter(name="content", value_from=content)]):
            model = saved_artifact(
                "model", f"s3://{BUCKET}/exports/{{{{workflow.name}}}}", "model.safetensors"
            )
            show(arguments=[model])
    with argo(bed, cluster.in_namespace(namespace), (), tmp_path) as running:
        run = running.run("one-file", to_manifest(workflow)["spec"])
        run.wait()

        assert run.outputs(run.name) == {"content": "weights"}
