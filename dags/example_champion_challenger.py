"""Train the champion's configuration and a challenger's on the same data, and promote
the better one.

The newest event of the asset ``digits_champion`` contains the champion's configuration
and checkpoint. Both configurations are trained again, so that neither has the advantage
of newer data, and are compared on the same held-out digits. The challenger must be
better by a margin, so that it does not become the champion by chance.

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, all
optional: ``edl_work_dir`` (folder for checkpoints, which all pods share),
``edl_python`` (Python of the training containers), ``edl_image``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

CHAMPION = Asset("digits_champion", uri="edl://models/digits-champion")

with DAG(
    "example_champion_challenger",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "first": Param(
            {"rate": 0.02, "epochs": 5},
            type="object",
            description="configuration of the first champion",
        ),
        "challenger": Param(
            {"rate": 0.5, "epochs": 5}, type="object", description="its challenger's"
        ),
        "margin": Param(
            0.005, type="number", minimum=0, description="by how much it must be more accurate"
        ),
    },
):

    @task(inlets=[CHAMPION])
    def choose_rivals(*, params: Any = None, inlet_events: Any = None) -> list[dict[str, Any]]:
        """The champion's configuration, then the challenger's."""
        events = list(inlet_events[CHAMPION])
        champion = events[-1].extra["config"] if events else params["first"]
        return [champion, params["challenger"]]

    @task.elastic(
        image="{{ var.value.get('edl_image', 'edl-workflows:latest') }}",
        python="{{ var.value.get('edl_python', 'python') }}",
        checkpoints="{{ var.value.get('edl_work_dir', '/tmp/edl-workflows') }}"
        "/{{ dag.dag_id }}/{{ run_id | replace(':', '-') | replace('+', '-') }}/{{ ti.map_index }}",
        completion_timeout=timedelta(hours=1),
    )
    def train(config: dict[str, Any]) -> dict[str, Any]:
        """Train on the digits with NumPy. Return the configuration and the accuracy on
        held-out digits."""
        import numpy as np
        from sklearn.datasets import load_digits

        from edl_workflows.training import CheckpointRef, connect, open_store

        data = load_digits()
        images, labels = data.data / 16.0, data.target
        weights, step = np.zeros((64, 10)), 0
        with connect() as job:
            store = open_store(job.checkpoint_dir)

            def save() -> CheckpointRef:
                return store.publish(
                    step,
                    lambda folder: np.save(folder / "weights.npy", weights),
                    position=job.data_position,
                )

            job.wait_until_active()
            # There is a checkpoint if a worker was replaced or the task is tried again.
            if (checkpoint := job.start_from(store)) is not None:
                weights, step = np.load(store.local(checkpoint) / "weights.npy"), checkpoint.step
            job.save_with(save, every_seconds=60)
            for batch in job.batches(
                "digits", size=1437, batch_size=32, shard_size=479, num_epochs=config["epochs"]
            ):
                x, y = images[batch.indices], labels[batch.indices]
                likely = np.exp(x @ weights)
                likely /= likely.sum(axis=1, keepdims=True)
                step += 1
                job.report(step, {"loss": float(-np.log(likely[np.arange(len(y)), y]).mean())})
                weights -= config["rate"] * x.T @ (likely - np.eye(10)[y]) / len(y)
        accuracy = ((images[1437:] @ weights).argmax(1) == labels[1437:]).mean()
        return {"config": config, "accuracy": accuracy}

    # [START howto_promote]
    @task(outlets=[CHAMPION])
    def promote(
        results: Any, checkpoints: Any, *, params: Any = None, outlet_events: Any = None
    ) -> dict[str, Any]:
        """Promote the newly trained challenger if it is better by the margin, otherwise
        the newly trained champion."""
        rivals = [
            {**result, "checkpoint": checkpoint["uri"]}
            for result, checkpoint in zip(results, checkpoints, strict=True)
        ]
        champion, challenger = rivals
        better = challenger["accuracy"] >= champion["accuracy"] + params["margin"]
        winner = challenger if better else champion
        outlet_events[CHAMPION].extra = winner
        return {"promoted": "challenger" if better else "champion", **winner}

    # [END howto_promote]

    trained: Any = train.expand(config=choose_rivals())
    promote(trained["result"], trained["checkpoint"])
