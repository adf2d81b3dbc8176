"""What passes by while steps wait: an API server that restarts, and a leader that goes."""

from pathlib import Path

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent.run import ArgoAgent, ArgoAgentOptions
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.runtime.process.leader import Election
from edl_workflows.testing import api_server
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.support import ARGO_CRDS, Argo, body, running
from tests.unit.services.controller.support import crds


def test_an_api_server_that_restarts_fails_no_step(tmp_path: Path) -> None:
    """The API server is killed while a step waits. When it is back, this step and a new one are served."""
    with api_server(tmp_path) as server:
        cluster = server.cluster()
        for crd in (*crds(), *ARGO_CRDS):
            client.create(cluster, crd)
        argo = Argo(cluster)
        argo.start("w")
        with running(cluster):
            argo.add("w", "n1", body("submit", manifest=elastic_job()))
            eventually(lambda: "mnist" in jobs(cluster), "the job")
            uid = jobs(cluster)["mnist"]["metadata"]["uid"]
            server.kill()
            server.start()
            argo.add("w", "n2", body("collect", name="mnist"))
            client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Succeeded"})
            for node in ("n1", "n2"):
                eventually(lambda node=node: argo.result("w", node) is not None, "answered", 60)
                assert argo.result("w", node)["phase"] == "Succeeded"
            assert jobs(cluster)["mnist"]["metadata"]["uid"] == uid


def test_replicas_take_turns(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """Only one replica leads at a time. After it has ended, the next one leads and continues the steps that
    it finds."""
    argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job()))

    def options(name: str) -> ArgoAgentOptions:
        election = Election(cluster.namespace, "turns", name, retry_seconds=0.1)
        return ArgoAgentOptions(namespaces=NamespaceSelection.of(cluster.namespace), election=election)

    with running(cluster, options("first")) as first:
        eventually(lambda: "mnist" in jobs(cluster), "the job")
        with running(cluster, options("second")) as second:
            argo.add("w", "n2", body("collect", name="mnist"))
            eventually(lambda: argo.result("w", "n2") is not None, "answered by the leader")
            assert (leads(first), leads(second)) == (1.0, 0.0)
    assert leads(first) == 0.0
    with running(cluster, options("third")) as third:
        eventually(lambda: leads(third) == 1.0, "the next one leads")
        stand_in.end("mnist")
        eventually(lambda: argo.result("w", "n1") is not None, "answered")
    assert argo.result("w", "n1")["phase"] == "Succeeded"


def leads(agent: ArgoAgent) -> float:
    """1 or 0, as its metrics say."""
    return agent.metrics.registry.get_sample_value("edl_argo_agent_leading") or 0.0
