"""Train a TrainingJob of Paddle EDL with two trainers, give it two more while it trains, and wait for its
end.

It needs a Kubernetes connection ``kubernetes_default`` and the image of
``manifests/trainingjob-digits.yaml``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from edl_workflows.operators.elastic_job import CancelJobOperator
from edl_workflows.operators.scale_plan import ScaleElasticJobOperator
from edl_workflows.operators.training_job import SubmitTrainingJobOperator
from edl_workflows.sensors.job import JobSensor

with DAG(
    "example_training_job",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
):
    # [START howto_training_job]
    submit = SubmitTrainingJobOperator(
        task_id="submit", manifest="manifests/trainingjob-digits.yaml", wait_for_completion=False
    )
    job: Any = submit.output["name"]  # type: ignore[index]  # an XComArg of a dict
    running = JobSensor(task_id="running", name=job, kind="TrainingJob", phases=["Running"], timeout=600)
    scale = ScaleElasticJobOperator(task_id="scale", job=job, kind="TrainingJob", replicas={"trainer": 4})
    trained = JobSensor(task_id="trained", name=job, kind="TrainingJob", timeout=3600)
    cancel = CancelJobOperator(task_id="cancel", name=job, kind="TrainingJob").as_teardown(setups=submit)

    submit >> running >> scale >> trained >> cancel
    # [END howto_training_job]
