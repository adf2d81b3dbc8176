"""Train with an elastic job, change the job while it trains, evaluate the model, and
publish it as an asset event.

Training starts with 2 parameter servers and 1 worker. Then 2 workers join. Then one
parameter server is replaced by one with more CPU, and a third one is added: the job
saves a checkpoint, stops briefly, and restarts from the checkpoint. The model must pass
a gate on held-out data. Only then does the asset ``digits_model`` get an event, with
the metrics, and the DAG ``example_retrain_on_data`` runs.

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, all
optional: ``edl_python`` (Python of the training containers), ``edl_training_dir``
(folder with the programs), ``edl_work_dir`` (for checkpoints), ``edl_image``.
"""

import json
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, Param, task
from airflow.sdk.exceptions import AirflowFailException

from edl_workflows.airflow import elastic_job

MODEL = Asset("digits_model", uri="edl://models/digits")

with DAG(
    "example_elastic_training",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "optimize_mode": Param(
            "manual", enum=["manual", "single-job", "cluster"], description="who plans"
        ),
        "ps": Param(2, type="integer", minimum=1, description="parameter servers at the beginning"),
        "workers": Param(1, type="integer", minimum=1, description="workers at the beginning"),
        "epochs": Param(70, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(
            0.1, type="number", minimum=0, description="seconds of rest a step, to watch it train"
        ),
        "warm_up_steps": Param(50, type="integer", description="steps before the job is changed"),
        "min_accuracy": Param(
            0.93, type="number", description="gate of the model, on held-out data"
        ),
    },
):
    # [START howto_elastic_job]
    with elastic_job(
        manifest="manifests/digits.yaml",
        completion_timeout=timedelta(hours=1),
        prefix_group_id=False,
    ) as job:
        running = job.wait(
            step="{{ params.warm_up_steps }}", phases=["Running"], timeout=600, task_id="running"
        )
        scale = job.scale(
            {"worker": 3}, task_id="scale_workers", completion_timeout=timedelta(minutes=5)
        )
        migrate = job.migrate_in_steps(
            "more_parameter_servers", replicas=3, migrate={0: {"cpu": "100m"}}
        )
        running >> scale >> migrate
    # [END howto_elastic_job]

    evaluate = BashOperator(
        task_id="evaluate",
        # What a job reports reaches the shell as variables, never as a part of the
        # command's text.
        bash_command='"$PYTHON" "$PROGRAM" --checkpoint-dir="$(dirname -- "$CHECKPOINT")"',
        env={
            "PYTHON": "{{ var.value.get('edl_python', 'python') }}",
            "PROGRAM": "{{ var.value.get('edl_training_dir', dag.folder ~ '/training') }}"
            "/evaluate_digits.py",
            "CHECKPOINT": "{{ ti.xcom_pull('trained')['checkpoint']['uri'] }}",
        },
        append_env=True,
        output_processor=json.loads,
    )

    # [START howto_publish]
    @task(outlets=[MODEL])
    def publish(metrics: dict[str, Any], *, params: Any = None, outlet_events: Any = None) -> None:
        """Pass the gate and tell who waits for the model."""
        if metrics["accuracy"] < params["min_accuracy"]:
            raise AirflowFailException(
                f"accuracy {metrics['accuracy']} on held-out data is below "
                f"{params['min_accuracy']}; the model is not published"
            )
        outlet_events[MODEL].extra = metrics

    # [END howto_publish]

    job >> evaluate >> publish(evaluate.output)
