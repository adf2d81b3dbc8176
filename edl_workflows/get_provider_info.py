"""What Airflow's ProvidersManager reads. It imports none of the modules named here."""

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata (schema: Airflow's ``provider_info.schema.json``)."""
    integration = "EDL workflows"
    return {
        # Airflow refuses to start if this is not the distribution's canonical name.
        "package-name": "edl-workflows",
        "name": integration,
        "description": "Elastic deep-learning jobs on Kubernetes: "
        "submit, wait, scale, checkpoint, migrate, suspend, resume.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://github.com/intelligent-machine-learning/dlrover",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    "edl_workflows.operators.di_job",
                    "edl_workflows.operators.elastic_job",
                    "edl_workflows.operators.job",
                    "edl_workflows.operators.reaper",
                    "edl_workflows.operators.scale_plan",
                    "edl_workflows.operators.tf_job",
                    "edl_workflows.operators.training_job",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": integration,
                "python-modules": ["edl_workflows.sensors.elastic_job", "edl_workflows.sensors.job"],
            }
        ],
        "hooks": [{"integration-name": integration, "python-modules": ["edl_workflows.hooks.elastic_job"]}],
        "triggers": [
            {"integration-name": integration, "python-modules": ["edl_workflows.triggers.elastic_job"]}
        ],
        "extra-links": ["edl_workflows.links.elastic_job.ElasticJobLink"],
    }
