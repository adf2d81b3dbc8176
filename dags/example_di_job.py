"""Train an agent with a DIJob, give its learner more collectors while it learns, and wait for its end.

It needs a Kubernetes connection ``kubernetes_default`` and the image of ``manifests/dijob-cliff.yaml``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from edl_workflows.operators.di_job import SubmitDIJobOperator
from edl_workflows.operators.elastic_job import CancelJobOperator
from edl_workflows.operators.scale_plan import ScaleElasticJobOperator
from edl_workflows.sensors.job import JobSensor

with DAG(
    "example_di_job",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
):
    # [START howto_di_job]
    submit = SubmitDIJobOperator(
        task_id="submit", manifest="manifests/dijob-cliff.yaml", wait_for_completion=False
    )
    job: Any = submit.output["name"]  # type: ignore[index]  # an XComArg of a dict
    running = JobSensor(task_id="running", name=job, kind="DIJob", phases=["Running"], timeout=600)
    scale = ScaleElasticJobOperator(task_id="scale", job=job, kind="DIJob", replicas={"collector": 4})
    trained = JobSensor(task_id="trained", name=job, kind="DIJob", timeout=3600)
    cancel = CancelJobOperator(task_id="cancel", name=job, kind="DIJob").as_teardown(setups=submit)

    submit >> running >> scale >> trained >> cancel
    # [END howto_di_job]
