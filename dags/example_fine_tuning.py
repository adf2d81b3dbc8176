"""Fine-tune a published PyTorch model with new data.

The DAG runs when ``example_torch_training`` has published a model, and starts from the
checkpoint that the asset event names. A manual run names a checkpoint in ``base``. The
new data imitates a few digits read by another scanner: they are fainter, noisy, and one
pixel further to the right. The body of the network learns slowly, its head fast.
Workers train together, and may join and leave.

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, all
optional: ``edl_work_dir`` (folder for checkpoints, which all pods share),
``edl_python`` (Python of the training containers, with PyTorch), ``edl_image``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, task
from airflow.sdk.exceptions import AirflowFailException

BASE = Asset("digits_torch_model", uri="edl://models/digits-torch")
TUNED = Asset("scanner_torch_model", uri="edl://models/scanner-torch")

with DAG(
    "example_fine_tuning",
    schedule=BASE,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "base": Param(
            "", type="string", description="checkpoint to start from; empty: the published one"
        ),
        "workers": Param(2, type="integer", minimum=1, description="workers at the beginning"),
    },
):
    # [START howto_base_model]
    @task
    def find_base(*, params: Any = None, triggering_asset_events: Any = None) -> str:
        """The checkpoint to fine-tune."""
        published = [event.extra["checkpoint"] for event in triggering_asset_events.get(BASE, ())]
        if not (params["base"] or published):
            raise AirflowFailException(
                "name a checkpoint in `base`, or run example_torch_training first"
            )
        return str(params["base"] or published[-1])

    # [END howto_base_model]

    @task.elastic(
        workers="{{ params.workers }}",
        max_workers=4,
        image="{{ var.value.get('edl_image', 'edl-workflows:latest') }}",
        python="{{ var.value.get('edl_python', 'python') }}",
        checkpoints="{{ var.value.get('edl_work_dir', '/tmp/edl-workflows') }}"
        "/{{ dag.dag_id }}/{{ run_id | replace(':', '-') | replace('+', '-') }}",
        completion_timeout=timedelta(hours=1),
    )
    def fine_tune(base: str, epochs: int) -> dict[str, float]:
        """Fine-tune the model. Return the accuracy on held-out digits of the new
        scanner, before and after the tuning."""
        import torch
        from sklearn.datasets import load_digits

        from edl_workflows.training import connect, open_model
        from edl_workflows.training.frameworks.torch_collective import (
            Dataset,
            TorchModel,
            TrainingOptions,
            from_saved_state,
            training,
        )

        random = torch.Generator().manual_seed(1)
        bunch = load_digits()
        order = torch.randperm(len(bunch.target), generator=random)
        images = torch.tensor(bunch.images / 16.0, dtype=torch.float32)[order].roll(1, 2).flatten(1)
        images = 0.5 * images + 0.1 * torch.randn(images.shape, generator=random)
        labels = torch.tensor(bunch.target)[order]
        new, held_out = slice(0, 320), slice(320, None)

        # [START howto_fine_tuning]
        saved = open_model(base).tensors
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )
        model.load_state_dict(from_saved_state(saved)["model"])
        body, head = model[0], model[2]
        optimizer = torch.optim.Adam(
            [{"params": body.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 5e-3}]
        )
        # [END howto_fine_tuning]

        def losses(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(images), labels, reduction="none")

        def accuracy() -> float:
            with torch.no_grad():
                return float((model(images[held_out]).argmax(1) == labels[held_out]).float().mean())

        example = {"images": torch.zeros(1, 64), "labels": torch.zeros(1, dtype=torch.int64)}
        parts = TorchModel(model=model, optimizer=optimizer, losses=losses, example=example)
        before, job = accuracy(), connect()
        settings = TrainingOptions(job.checkpoint_dir, save_seconds=60, threads=1)
        with training(job, lambda: parts, Dataset(320, 16, epochs), settings) as run:
            for mini_batches in run:
                rows = [torch.tensor(list(batch)) for batch in mini_batches]
                run.step(
                    [{"images": images[new][batch], "labels": labels[new][batch]} for batch in rows]
                )
        return {"before": before, "accuracy": accuracy()}

    @task(outlets=[TUNED])
    def publish(result: Any, checkpoint: Any, *, outlet_events: Any = None) -> dict[str, Any]:
        """Publish the tuned model if it is better than the model from which it was tuned."""
        if result["accuracy"] <= result["before"]:
            raise AirflowFailException(
                f"fine-tuning did not help: {result}; the model is not published"
            )
        outlet_events[TUNED].extra = {**result, "checkpoint": checkpoint["uri"]}
        return {**result, "checkpoint": checkpoint["uri"]}

    tuned: Any = fine_tune(find_base(), epochs=40)
    publish(tuned["result"], tuned["checkpoint"])
