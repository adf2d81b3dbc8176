"""What tables of tests read of Kubeflow's kinds, besides the cases of all kinds."""

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.kubeflow.model import KubeflowJob, KubeflowSpec
from tests.cases.kinds import KIND_CASES

KUBEFLOW_KINDS = [kind for kind in KIND_CASES if issubclass(kind_of(kind).model, KubeflowJob)]


def spec_of(kind: str) -> type[KubeflowSpec]:
    """The model of a kind's spec."""
    model = kind_of(kind).model.model_fields["spec"].annotation
    assert isinstance(model, type)
    assert issubclass(model, KubeflowSpec)
    return model
