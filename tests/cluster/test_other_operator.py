"""Jobs and definitions of other operators, on a real cluster."""

import pytest

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes.api import CRDS
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import EVENTS, Scope
from tests.cases.kind import make_manifest
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.wait import until
from tests.cluster.installed import restricted_pod
from tests.cluster.training import Place, container
from tests.e2e.other_operator import hand_over_a_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

DEFINITION = "tfjobs.kubeflow.org"


def test_a_job_of_another_operator_is_taken_over_on_request(here: Place) -> None:
    """The pod that training-operator made stays until the job is handed over."""
    hand_over_a_job(here.cluster, "theirs", container(here.bed).runs("-c", "import time; time.sleep(600)"))


def test_a_missing_definition_stops_its_own_kind_only(here: Place) -> None:
    """Somebody deletes the definition of TFJobs, as uninstalling their operator does. A controller that
    starts then serves the other kinds, and an Event names the definition. TFJobs come by themselves when
    their definition does."""
    client.delete(here.cluster, CRDS, DEFINITION)
    try:
        until(lambda: client.find(here.cluster, CRDS, DEFINITION) is None, "the definition is gone")
        here.controllers.stop()
        here.controllers.start()
        _runs_to_its_end(here, "PyTorchJob")
        until(lambda: _is_told(here), "an Event names the definition")
    finally:
        crds.install(["tfjobs"], kubeconfig=here.bed.kubeconfig)
    _runs_to_its_end(here, "TFJob")


def _is_told(here: Place) -> bool:
    """Whether an Event says that the definition is missing."""
    events = client.list_objects(here.cluster, Scope(EVENTS, here.cluster.namespace)).items
    return any(
        (event["reason"], event["involvedObject"].get("name")) == ("DefinitionMissing", DEFINITION)
        for event in events
    )


def _runs_to_its_end(here: Place, kind_name: str) -> None:
    kind, single, name = kind_of(kind_name), KIND_CASES[kind_name].installed, f"served-{kind_name.lower()}"
    assert single is not None
    spec = single.make_spec(restricted_pod(here.bed, [here.bed.python, "-c", "pass"]), 1)
    client.create(here.cluster, make_manifest(kind.source.api.api_version, kind_name, name, **spec))

    def succeeded() -> bool:
        return kind.view_stored(client.get(here.cluster, kind.source.api, name)).phase is JobPhase.SUCCEEDED

    until(succeeded, f"{kind_name} {name} succeeds")
