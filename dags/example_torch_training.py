"""Train with PyTorch while workers join, fail and leave, evaluate the model, and
publish it.

Training starts with 1 worker. Then 2 workers join, one is killed on purpose and
replaced, and one leaves. The global batch size is fixed at the size for the largest
number of workers, so none of this changes the model. The model must pass a gate on
held-out data. Only then does the asset ``digits_torch_model`` get an event, with the
metrics.

It needs a Kubernetes connection ``kubernetes_default``; the Airflow variables are those
of ``example_elastic_training``, but ``edl_python`` must be a Python with PyTorch.
"""

import json
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, Param, task
from airflow.sdk.exceptions import AirflowFailException

from edl_workflows.airflow import elastic_job

MODEL = Asset("digits_torch_model", uri="edl://models/digits-torch")

with DAG(
    "example_torch_training",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "program": Param(
            "train_digits_torch.py", type="string", description="the training program"
        ),
        "workers": Param(1, type="integer", minimum=1, description="workers at the beginning"),
        "max_workers": Param(4, type="integer", minimum=3, description="mini-batches of a step"),
        "epochs": Param(60, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(
            0.1, type="number", minimum=0, description="seconds of rest a step, to watch it train"
        ),
        "warm_up_steps": Param(
            50, type="integer", description="steps before each change of the workers"
        ),
        "min_accuracy": Param(
            0.93, type="number", description="gate of the model, on held-out data"
        ),
    },
):

    @task
    def kill_worker(name: str, *, params: Any = None) -> int:
        """Kill the newest worker without a grace period, as if its machine were lost.
        Return a step that training must reach afterwards."""
        from edl_workflows.airflow import ConnectionSettings, ElasticJobHook

        hook = ElasticJobHook(ConnectionSettings())
        namespace = hook.get_namespace() or "default"
        selector = f"elasticjob.dlrover/name={name},elasticjob.dlrover/replica-type=worker"
        pods = hook.core_v1_client.list_namespaced_pod(namespace, label_selector=selector).items
        running = [pod for pod in pods if pod.status.phase == "Running"]
        newest = max(running, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        hook.core_v1_client.delete_namespaced_pod(
            newest.metadata.name, namespace, grace_period_seconds=0
        )
        group, version = "elastic.iml.github.io", "v1alpha1"
        job = hook.get_custom_object(group, version, "elasticjobs", name, namespace)
        return int(job["status"]["progress"]["step"]) + int(params["warm_up_steps"])

    with elastic_job(
        manifest="manifests/digits-allreduce.yaml",
        completion_timeout=timedelta(hours=1),
        prefix_group_id=False,
    ) as job:
        running = job.wait(
            step="{{ params.warm_up_steps }}", phases=["Running"], timeout=600, task_id="running"
        )
        more = job.scale(
            {"worker": 3}, task_id="more_workers", completion_timeout=timedelta(minutes=10)
        )
        killed = kill_worker(job.name)
        goes_on = job.wait(step="{{ ti.xcom_pull('kill_worker') }}", timeout=600, task_id="goes_on")
        fewer = job.scale(
            {"worker": 2}, task_id="fewer_workers", completion_timeout=timedelta(minutes=10)
        )
        running >> more >> killed >> goes_on >> fewer

    evaluate = BashOperator(
        task_id="evaluate",
        # What a job reports reaches the shell as variables, never as a part of the
        # command's text.
        bash_command='"$PYTHON" "$PROGRAM" --checkpoint-dir="$(dirname -- "$CHECKPOINT")"',
        env={
            "PYTHON": "{{ var.value.get('edl_python', 'python') }}",
            "PROGRAM": "{{ var.value.get('edl_training_dir', dag.folder ~ '/training') }}"
            "/evaluate_digits_torch.py",
            "CHECKPOINT": "{{ ti.xcom_pull('trained')['checkpoint']['uri'] }}",
        },
        append_env=True,
        output_processor=json.loads,
    )

    @task(outlets=[MODEL])
    def publish(metrics: dict[str, Any], *, params: Any = None, outlet_events: Any = None) -> None:
        """Pass the gate and tell who waits for the model."""
        if metrics["accuracy"] < params["min_accuracy"]:
            raise AirflowFailException(
                f"accuracy {metrics['accuracy']} on held-out data is below "
                f"{params['min_accuracy']}; the model is not published"
            )
        outlet_events[MODEL].extra = metrics

    job >> evaluate >> publish(evaluate.output)
