"""Train a recommender each night on the clicks of the day, publish it if it is not
worse than the published model, and roll it back if it ranks users' later clicks worse.

The newest event of the asset ``recommender_model`` names the published model: its
checkpoint is in ``extra["model"]``. Each night's training continues from that model.
The gate compares the models on clicks with which neither was trained; the check after
publication compares them on later clicks. The program uses NumPy, so that training
takes only seconds.

It needs a Kubernetes connection ``kubernetes_default``. Airflow variables, all
optional: ``edl_work_dir`` (folder for clicks and checkpoints, which all pods and
Airflow's workers share), ``edl_python`` (Python of the training containers),
``edl_image``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, task
from airflow.sdk.exceptions import AirflowSkipException

MODEL = Asset("recommender_model", uri="edl://models/recommender")
FOLDER = (
    "{{ var.value.get('edl_work_dir', '/tmp/edl-workflows') }}/{{ dag.dag_id }}"
    "/{{ run_id | replace(':', '-') | replace('+', '-') }}"
)
JOB: dict[str, Any] = {
    "image": "{{ var.value.get('edl_image', 'edl-workflows:latest') }}",
    "python": "{{ var.value.get('edl_python', 'python') }}",
    "completion_timeout": timedelta(hours=1),
}

with DAG(
    "example_nightly_recommender",
    schedule="0 3 * * *",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "tolerance": Param(
            0.01, type="number", minimum=0, description="AUC that a new model may lose"
        ),
        "broken": Param(
            "nothing",
            enum=["nothing", "training", "day"],
            description="what was recorded wrongly, to see the gate and the rollback: "
            "the clicks for training, or all of the day",
        ),
    },
):

    @task
    def export_clicks(path: str, seed: str, broken: str) -> str:
        """In place of a real export of a day's clicks, write a CSV of user, item, and
        whether the item was clicked. The last fifth is held out."""
        import math
        import random
        from pathlib import Path

        tastes = random.Random(0)  # they stay the same from day to day
        likes = [[tastes.gauss(0, 1) for _ in range(4)] for _user in range(200)]
        items = [[tastes.gauss(0, 1) for _ in range(4)] for _item in range(100)]
        day, lines, count = random.Random(seed), [], 20_000
        for number in range(count):
            user, item = day.randrange(200), day.randrange(100)
            score = sum(a * b for a, b in zip(likes[user], items[item], strict=True))
            clicked = day.random() < 1 / (1 + math.exp(-2 * score))
            wrong = broken == "day" or (broken == "training" and number < count * 4 // 5)
            lines.append(f"{user},{item},{int(clicked != wrong)}")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("\n".join(lines))
        return path

    # [START howto_published_model]
    @task(inlets=[MODEL])
    def find_published(*, inlet_events: Any = None) -> str:
        """The checkpoint of the published model; "" before the first one."""
        events = list(inlet_events[MODEL])
        return str(events[-1].extra["model"]) if events else ""

    # [END howto_published_model]

    @task.elastic(checkpoints=f"{FOLDER}/checkpoints", **JOB)
    def train(clicks: str, published: str) -> None:
        """Factorize the matrix of users and items, starting from the published model."""
        from pathlib import Path

        import numpy as np

        from edl_workflows.training import CheckpointRef, connect, open_model, open_store

        data = np.loadtxt(clicks, delimiter=",", dtype=int)
        users, items, clicked = data[: len(data) * 4 // 5].T
        random = np.random.default_rng(0)
        model = {
            name: random.normal(0, 0.3, (size, 8))
            for name, size in (("users", 200), ("items", 100))
        }
        if published:
            base = open_model(published)
            model = dict(np.load(base.folder / "model.npz"))
        with connect() as job:
            store, step = open_store(job.checkpoint_dir), 0

            def save() -> CheckpointRef:
                def write(folder: Path) -> None:
                    np.savez(folder / "model.npz", users=model["users"], items=model["items"])

                return store.publish(step, write, position=job.data_position)

            job.wait_until_active()
            # There is a checkpoint if a worker was replaced or the task is tried again.
            if (checkpoint := job.start_from(store)) is not None:
                model = dict(np.load(store.local(checkpoint) / "model.npz"))
                step = checkpoint.step
            job.save_with(save, every_seconds=60)
            for batch in job.batches(
                "clicks",
                size=len(users),
                batch_size=200,
                shard_size=4000,
                num_epochs=8,
                shuffle=True,
            ):
                user, item = users[batch.indices], items[batch.indices]
                u, i = model["users"][user], model["items"][item]
                error = clicked[batch.indices] - 1 / (1 + np.exp(-(u * i).sum(axis=1)))
                np.add.at(model["users"], user, 0.3 * error[:, None] * i)
                np.add.at(model["items"], item, 0.3 * error[:, None] * u)
                step += 1
                job.report(step, {"error": float(np.abs(error).mean())})

    @task.elastic(task_id="judge", **JOB)
    def judge(clicks: str, models: dict[str, str]) -> dict[str, float]:
        """How well each model ranks held-out clicks: the area under the ROC curve."""
        import numpy as np

        from edl_workflows.training import open_model

        data = np.loadtxt(clicks, delimiter=",", dtype=int)
        users, items, clicked = data[len(data) * 4 // 5 :].T
        areas = {}
        for name, uri in models.items():
            saved = open_model(uri)
            model = np.load(saved.folder / "model.npz")
            scores = (model["users"][users] * model["items"][items]).sum(axis=1)
            ranks = np.argsort(np.argsort(scores)) + 1
            ones = int(clicked.sum())
            area = ranks[clicked == 1].sum() - ones * (ones + 1) / 2
            areas[name] = float(area / (ones * (len(clicked) - ones)))
        return areas

    @task
    def name_models(published: str, trained: dict[str, Any]) -> dict[str, str]:
        """The models to compare; on the first night there is only one."""
        models = {"new": trained["uri"], "published": published}
        return {name: uri for name, uri in models.items() if uri}

    # [START howto_gate]
    @task(outlets=[MODEL])
    def publish(
        models: dict[str, str],
        auc: dict[str, float],
        *,
        params: Any = None,
        outlet_events: Any = None,
    ) -> None:
        """Publish the new model unless it is worse than the published one."""
        if auc["new"] < auc.get("published", 0.5) - params["tolerance"]:
            raise AirflowSkipException(
                f"the published model stays: its AUC on held-out clicks is "
                f"{auc.get('published', 0.5):.3f}, that of the new one {auc['new']:.3f}"
            )
        outlet_events[MODEL].extra = {"model": models["new"], "auc": auc["new"]}

    # [END howto_gate]

    # [START howto_rollback]
    @task(outlets=[MODEL])
    def roll_back(
        models: dict[str, str],
        auc: dict[str, float],
        *,
        params: Any = None,
        outlet_events: Any = None,
    ) -> None:
        """Publish the former model again if it ranks better what users clicked since."""
        if "published" not in models or auc["new"] >= auc["published"] - params["tolerance"]:
            raise AirflowSkipException("the new model stays published")
        outlet_events[MODEL].extra = {"model": models["published"], "auc": auc["published"]}

    # [END howto_rollback]

    clicks = export_clicks(f"{FOLDER}/clicks.csv", "{{ run_id }}", "{{ params.broken }}")
    published = find_published()
    trained: Any = train(clicks, published)
    models = name_models(published, trained["checkpoint"])
    held_out: Any = judge(clicks, models)
    gate = publish(models, held_out["result"])

    # In production, wait here for about an hour with a TimeDeltaSensor, until users
    # have clicked on the new model's recommendations.
    later = export_clicks.override(task_id="export_later_clicks")(
        f"{FOLDER}/later.csv", "{{ run_id }} later", "nothing"
    )
    live: Any = judge.override(task_id="judge_later")(later, models)
    gate >> later
    roll_back(models, live["result"])
