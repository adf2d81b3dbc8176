"""Run a training script of your own, save a checkpoint while it trains, and use its
result. This is the DAG of the tutorial "Your own DAG".

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, all
optional: ``edl_work_dir`` (folder for checkpoints, which all pods share),
``edl_python`` (Python of the training containers), ``edl_image``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from edl_workflows.airflow import elastic_job

PYTHON = "{{ var.value.get('edl_python', 'python') }}"
CHECKPOINTS = (
    "{{ var.value.get('edl_work_dir', '/tmp/edl-workflows') }}/{{ dag.dag_id }}"
    "/{{ run_id | replace(':', '-') | replace('+', '-') }}"
)
SCRIPT = "{{ dag.folder }}/training/own_script.py"
CONTAINER = {
    "name": "main",
    "image": "{{ var.value.get('edl_image', 'edl-workflows:latest') }}",
    "command": [PYTHON, "-m", "edl_workflows", "agent", "run", "--", PYTHON, SCRIPT],
    "env": [{"name": "EDL_CHECKPOINT_DIR", "value": CHECKPOINTS}],
}
MANIFEST = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "spec": {
        "replicaSpecs": {
            "worker": {"replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}},
        },
    },
}

with DAG(
    "example_own_script",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
):
    with elastic_job(manifest=MANIFEST, completion_timeout=timedelta(minutes=10)) as job:
        job.wait(step=50, timeout=300, task_id="begun") >> job.checkpoint(task_id="save")

    @task
    def report(trained: dict[str, Any]) -> str:
        """Where the model is."""
        return f"trained {trained['step']} steps: {trained['checkpoint']['uri']}"

    job >> report(job.output)
