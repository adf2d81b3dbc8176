"""Train with workers that sum their gradients, let two more join while they train, and evaluate what was
learned.

The global batch is that of the most workers, whatever their number is, so the model does not depend on when
they came.

It needs a Kubernetes connection ``kubernetes_default``; Airflow variables as ``example_elastic_training``.
"""

import json
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param, TaskGroup

from edl_workflows.operators.elastic_job import CancelJobOperator, SubmitElasticJobOperator
from edl_workflows.operators.scale_plan import ScaleElasticJobOperator
from edl_workflows.sensors.elastic_job import ElasticJobSensor

with DAG(
    "example_collective_training",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "workers": Param(1, type="integer", minimum=1, description="workers at the beginning"),
        "max_workers": Param(4, type="integer", minimum=3, description="mini-batches of a step"),
        "epochs": Param(100, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(
            0.1, type="number", minimum=0, description="seconds of rest a step, to watch it train"
        ),
        "warm_up_steps": Param(50, type="integer", description="steps before workers join"),
    },
):
    with TaskGroup("training", prefix_group_id=False) as training:
        # [START howto_collective]
        submit = SubmitElasticJobOperator(
            task_id="submit", manifest="manifests/digits-allreduce.yaml", wait_for_completion=False
        )
        job: Any = submit.output["name"]  # type: ignore[index]  # an XComArg of a dict

        running = ElasticJobSensor(
            task_id="running",
            name=job,
            phases=["Running"],
            step="{{ params.warm_up_steps }}",
            timeout=600,
            poke_interval=2,
        )
        scale = ScaleElasticJobOperator(
            task_id="more_workers", job=job, replicas={"worker": 3}, completion_timeout=timedelta(minutes=10)
        )
        trained = ElasticJobSensor(task_id="trained", name=job, timeout=3600, poke_interval=5)
        cancel = CancelJobOperator(task_id="cancel", name=job).as_teardown(setups=submit)

        submit >> running >> scale >> trained >> cancel
        # [END howto_collective]

    evaluate = BashOperator(
        task_id="evaluate",
        # What a job reports reaches the shell as variables, never as a part of the command's text.
        bash_command='"$PYTHON" "$PROGRAM" --checkpoint-dir="$(dirname -- "$CHECKPOINT")"',
        env={
            "PYTHON": "{{ var.value.get('edl_python', 'python') }}",
            "PROGRAM": "{{ var.value.get('edl_training_dir', dag.folder ~ '/training') }}/evaluate_digits.py",
            "CHECKPOINT": "{{ ti.xcom_pull('trained')['checkpoint']['uri'] }}",
        },
        append_env=True,
        output_processor=json.loads,
    )

    training >> evaluate
