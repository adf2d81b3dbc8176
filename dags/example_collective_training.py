"""Train with workers that sum their gradients, let two more workers join during the
training, and evaluate the model.

The global batch size is fixed at the size for the largest number of workers, so the
model does not depend on when workers join.

It needs a Kubernetes connection ``kubernetes_default``; the Airflow variables are those
of ``example_elastic_training``.
"""

import json
from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

from edl_workflows.airflow import elastic_job

with DAG(
    "example_collective_training",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "program": Param(
            "train_digits_allreduce.py", type="string", description="the training program"
        ),
        "workers": Param(1, type="integer", minimum=1, description="workers at the beginning"),
        "max_workers": Param(4, type="integer", minimum=3, description="mini-batches of a step"),
        "epochs": Param(100, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(
            0.1, type="number", minimum=0, description="seconds of rest a step, to watch it train"
        ),
        "warm_up_steps": Param(50, type="integer", description="steps before workers join"),
    },
):
    # [START howto_collective]
    with elastic_job(
        manifest="manifests/digits-allreduce.yaml",
        completion_timeout=timedelta(hours=1),
        prefix_group_id=False,
    ) as training:
        running = training.wait(
            step="{{ params.warm_up_steps }}", phases=["Running"], timeout=600, task_id="running"
        )
        scale = training.scale(
            {"worker": 3}, task_id="more_workers", completion_timeout=timedelta(minutes=10)
        )
        running >> scale
    # [END howto_collective]

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

    training >> evaluate
