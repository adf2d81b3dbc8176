"""Train again when there is a new model to challenge or new data to learn from, and
compare the two models.

The DAG runs after an event of the asset ``digits_model`` (which
`example_elastic_training` emits) or of ``digits_data``. Such a run has no logical date,
so the job's name is derived from the run's id. The connection and the variables are
those of `example_elastic_training`.
"""

import json
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, Param, task

from edl_workflows.operators import SubmitElasticJobOperator

MODEL = Asset("digits_model", uri="edl://models/digits")
DATA = Asset("digits_data", uri="edl://data/digits")
CHALLENGER = Asset("digits_challenger", uri="edl://models/digits-challenger")

with DAG(
    "example_retrain_on_data",
    schedule=(MODEL | DATA),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "ps": Param(1, type="integer", minimum=1, description="parameter servers"),
        "workers": Param(1, type="integer", minimum=1, description="workers"),
        "epochs": Param(20, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(0.0, type="number", minimum=0, description="seconds of rest a step"),
    },
):
    retrain = SubmitElasticJobOperator(
        task_id="retrain",
        manifest="manifests/digits.yaml",
        completion_timeout=timedelta(minutes=30),
        on_kill_action="suspend",
    )

    evaluate = BashOperator(
        task_id="evaluate",
        # What a job reports reaches the shell as variables, never as a part of the
        # command's text.
        bash_command='"$PYTHON" "$PROGRAM" --checkpoint-dir="$(dirname -- "$CHECKPOINT")"',
        env={
            "PYTHON": "{{ var.value.get('edl_python', 'python') }}",
            "PROGRAM": "{{ var.value.get('edl_training_dir', dag.folder ~ '/training') }}"
            "/evaluate_digits.py",
            "CHECKPOINT": "{{ ti.xcom_pull('retrain')['checkpoint']['uri'] }}",
        },
        append_env=True,
        output_processor=json.loads,
    )

    @task(outlets=[CHALLENGER])
    def compare(
        metrics: dict[str, Any], *, triggering_asset_events: Any = None, outlet_events: Any = None
    ) -> dict[str, Any]:
        """Compare the new model's accuracy with that of the model whose event caused this run."""
        reigning = [event.extra.get("accuracy") for event in triggering_asset_events.get(MODEL, ())]
        best = max((accuracy for accuracy in reigning if accuracy is not None), default=None)
        result = {
            **metrics,
            "reigning_accuracy": best,
            "better": best is None or metrics["accuracy"] > best,
        }
        outlet_events[CHALLENGER].extra = result
        return result

    retrain >> evaluate >> compare(evaluate.output)
