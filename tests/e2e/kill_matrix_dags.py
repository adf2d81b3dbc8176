"""The DAGs of the kill matrix, as the text of a file: one for each row, and the reaper's."""

GRACE_SECONDS = 2
"""Of the reaper."""

DAGS = """
import json
from datetime import timedelta
from pathlib import Path
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, task_group
from edl_workflows.operators import FailMarkedRunOperator
from edl_workflows.operators.stages import CancelJobOperator
from edl_workflows.operators.job import SubmitJobOperator
from edl_workflows.operators.reaper import ReapOrphanedJobsOperator
from edl_workflows.sensors.job import JobSensor

FOLDER = Path(__file__).parents[1]
# A manifest writes a dollar sign as $$.
SCRIPT = "echo $$$$ >> {0}/{1}.begun; until [ -e {0}/{1}.end ]; do sleep 0.5; done"

def manifest(name):
    container = {
        "name": "tensorflow", "image": "local", "command": ["sh", "-c", SCRIPT.format(FOLDER, name)],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    role = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": role}}}

def add_tasks(row, limit):
    name, shape, waits = row["name"], row["shape"], {"deferrable": row["deferrable"]}
    train = SubmitJobOperator(
        task_id="train", manifest=manifest(name), wait_for_completion=shape == "waits",
        retries=row["retries"], on_kill_action=row["on_kill_action"], completion_timeout=limit, **waits,
    )
    if shape in ("waits", "leaves"):
        return
    job = "{{ ti.xcom_pull(task_ids='train', map_indexes=ti.map_index)['name'] }}"
    trained = JobSensor(task_id="trained", poke_interval=2, name=job, kind="TFJob", **waits)
    train >> trained
    if shape != "leaks":
        cancel = CancelJobOperator(task_id="cancel", kind="TFJob", **waits).as_teardown(setups=train)
        watcher = FailMarkedRunOperator(task_id="watcher").as_teardown(
            setups=train, on_failure_fail_dagrun=True
        )
        trained >> cancel >> watcher

for row in json.loads((FOLDER / "rows.json").read_text()):
    name, shape = row["name"], row["shape"]
    limit = timedelta(seconds=row["seconds"]) if row["seconds"] else None
    run_limit = limit if shape in ("pipeline", "mapped") else None
    delay = {"retry_delay": timedelta(seconds=1)}
    with DAG(name, schedule=None, dagrun_timeout=run_limit, default_args=delay) as dag:
        if shape == "mapped":
            @task_group(prefix_group_id=False)
            def each(one, row=row):
                add_tasks(row, None)

            each.expand(one=["only"]) >> EmptyOperator(task_id="after")
        else:
            add_tasks(row, None if run_limit else limit)
        if shape == "pipeline":
            dag.get_task("trained") >> EmptyOperator(task_id="after")
    globals()[name.replace("-", "_")] = dag

with DAG("reaper", schedule=None, params={"report_only": Param(True, type="boolean")}):
    ReapOrphanedJobsOperator(
        task_id="reap", report_only="{{ params.report_only }}", grace=timedelta(seconds=GRACE),
        max_cancellations=100
    )
""".replace("GRACE", str(GRACE_SECONDS))
