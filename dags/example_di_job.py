"""Train an agent with a DIJob, add collectors while it learns, and wait for the end of
the job.

It needs a Kubernetes connection ``kubernetes_default`` and the image of
``manifests/dijob-cliff.yaml``.
"""

from datetime import timedelta

from airflow.sdk import DAG

from edl_workflows.airflow import elastic_job

with DAG(
    "example_di_job",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
):
    # [START howto_di_job]
    with elastic_job(
        manifest="manifests/dijob-cliff.yaml",
        kind="DIJob",
        completion_timeout=timedelta(hours=1),
        prefix_group_id=False,
    ) as job:
        running = job.wait(phases=["Running"], timeout=600, task_id="running")
        running >> job.scale({"collector": 4})
    # [END howto_di_job]
