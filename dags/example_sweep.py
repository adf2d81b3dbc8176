"""Run a training function with several learning rates at once, and determine the best
model.

The function is the training program. Each rate gets an ElasticJob of its own, without a
manifest and without an image that contains the program. Training takes only seconds, so
it saves no checkpoints.

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, both
optional: ``edl_python`` (Python of the training containers), ``edl_image``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

with DAG(
    "example_sweep",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "rates": Param([0.01, 0.1, 0.5], type="array", description="learning rates, a job for each")
    },
):

    @task
    def choose_rates(*, params: Any = None) -> list[float]:
        """The configurations."""
        return [float(rate) for rate in params["rates"]]

    # [START howto_elastic_task]
    @task.elastic(
        workers=1,
        image="{{ var.value.get('edl_image', 'edl-workflows:latest') }}",
        python="{{ var.value.get('edl_python', 'python') }}",
        completion_timeout=timedelta(minutes=10),
    )
    def train(rate: float, epochs: int) -> dict[str, float]:
        """Train on the digits with NumPy; return the accuracy on held-out digits."""
        import numpy as np
        from sklearn.datasets import load_digits

        from edl_workflows.training import connect

        data = load_digits()
        images, labels = data.data / 16.0, data.target
        weights = np.zeros((64, 10))
        with connect() as job:
            batches = job.batches(
                "digits", size=1437, batch_size=32, shard_size=479, num_epochs=epochs
            )
            for step, batch in enumerate(batches, 1):
                x, y = images[batch.indices], labels[batch.indices]
                likely = np.exp(x @ weights)
                likely /= likely.sum(axis=1, keepdims=True)
                job.report(step, {"loss": float(-np.log(likely[np.arange(len(y)), y]).mean())})
                weights -= rate * x.T @ (likely - np.eye(10)[y]) / len(y)
        accuracy = ((images[1437:] @ weights).argmax(1) == labels[1437:]).mean()
        return {"rate": rate, "accuracy": accuracy}

    # [END howto_elastic_task]

    @task
    def choose_best(results: Any) -> dict[str, float]:
        """The configuration whose model is the most accurate."""
        return max(results, key=lambda result: result["accuracy"])

    # [START howto_mapped_elastic_task]
    trained: Any = train.partial(epochs=5).expand(rate=choose_rates())
    choose_best(trained["result"])
    # [END howto_mapped_elastic_task]
