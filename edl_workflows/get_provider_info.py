"""The provider's metadata, which Airflow's ProvidersManager reads. This module imports none of the modules
that it names."""

from pathlib import Path
from typing import Any

_SHARED = ("base", "cluster", "lineage", "rendered", "stage_bases")
"""Modules that define no operator."""


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
                "python-modules": _modules_in("operators"),
            }
        ],
        "sensors": [{"integration-name": integration, "python-modules": _modules_in("sensors")}],
        "hooks": [
            {"integration-name": integration, "python-modules": ["edl_workflows.airflow.hooks.elastic_job"]}
        ],
        "triggers": [{"integration-name": integration, "python-modules": ["edl_workflows.airflow.triggers"]}],
        "task-decorators": [
            {"name": "elastic", "class-name": "edl_workflows.airflow.decorators.elastic_task"}
        ],
        "extra-links": ["edl_workflows.airflow.links.ElasticJobLink"],
        "config": {
            "edl_workflows": {
                "description": "Settings of the operators and triggers of elastic jobs.",
                "options": {
                    "settle_seconds": {
                        "description": "Earliest time of a trigger's event after the trigger's start, in "
                        "seconds.\nBy default three times ``[scheduler] scheduler_heartbeat_sec``. Set more "
                        "if loops of your schedulers take longer.\n",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "30",
                        "default": None,
                    },
                },
            },
        },
    }


def _modules_in(folder: str) -> list[str]:
    """The modules in a folder of the package that define operators or sensors. They are not imported."""
    files = sorted((Path(__file__).parent / folder).glob("[a-z]*.py"))
    return [f"edl_workflows.{folder}.{file.stem}" for file in files if file.stem not in _SHARED]
