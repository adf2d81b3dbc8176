"""Cancel the jobs that tasks of this Airflow left behind: their worker or triggerer was
killed, or their run was deleted.

Every half hour the DAG checks the namespace of the connection ``kubernetes_default``.
An orphan that it finds a second time, ten minutes later or more, is cancelled. With the
Airflow variable ``edl_reap_report_only`` set to ``true`` it only reports, in its log and
its result. If the connection does not name this Airflow (``edl_installation``), jobs of
deleted runs are only reported. The DAG is paused at first.
"""

from datetime import timedelta

from airflow.sdk import DAG

from edl_workflows.operators import ReapOrphanedJobsOperator

with DAG(
    "example_reap_orphans",
    schedule=timedelta(minutes=30),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
):
    # [START howto_reap]
    reap = ReapOrphanedJobsOperator(
        task_id="reap",
        report_only="{{ var.value.get('edl_reap_report_only', 'false') }}",
        grace=timedelta(minutes=10),
    )
    # [END howto_reap]
