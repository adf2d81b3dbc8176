"""The example's recommender, which also notes what it predicts for the same pairs: at its start, and after
each step."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "dags" / "training"))

import train_recommender as recommender  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import CheckpointRef, CheckpointStore, Job, connect
from edl_workflows.training.frameworks.tensorflow import TrainingOptions, training

PAIRS = 512


def by_servers(job: Job) -> Callable[[str, int, Any], Any]:
    """A program's own way to spread ids over servers: where a row stands depends on how many there are.

    Rows lie far apart, so that another row is another prediction from the first step on, trained or not.
    """
    plain = recommender.look_up

    def look_up(name: str, rows: int, ids: Any) -> Any:
        servers = len(job.cluster.ps)
        return 5.0 * plain(name, rows, ids % servers * (rows // servers) + ids // servers)

    return look_up


def table_a_server(job: Job) -> Callable[[str, int, Any], Any]:
    """As many tables as there are servers, made by the program itself."""

    def look_up(name: str, rows: int, ids: Any) -> Any:
        servers = len(job.cluster.ps)
        shape = [-(-rows // servers), recommender.WIDTH]
        tables = [recommender.tf1.get_variable(f"{name}_{number}", shape) for number in range(servers)]
        return recommender.tf1.nn.embedding_lookup(tables, ids)

    return look_up


def damage_switch() -> None:
    """Tear the second checkpoint of this process, which is that of its first switch: the first is the plan's
    safeguard."""
    publish, saved = CheckpointStore.publish, []

    def published(store: CheckpointStore, *args: Any, **kwargs: Any) -> CheckpointRef:
        saved.append(publish(store, *args, **kwargs))
        if len(saved) == 2:
            next(Path(saved[-1].uri).glob("*.data-*")).write_bytes(b"torn")
        return saved[-1]

    CheckpointStore.publish = published  # type: ignore[method-assign,assignment]


LOOKUPS = {"by-servers": by_servers, "table-a-server": table_a_server}


def main() -> None:
    """Train; one line of JSON for the start and for each step in a file of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--lookup", choices=LOOKUPS, help="other than the example's")
    parser.add_argument("--damage-switch", action="store_true")
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    logging.basicConfig()
    logging.getLogger("edl_workflows").setLevel(logging.INFO)
    job = connect()
    if options.damage_switch and job.version == 1:
        damage_switch()
    if options.lookup:
        recommender.look_up = LOOKUPS[options.lookup](job)
    data, held_out = recommender.load(60_000, PAIRS)
    settings = TrainingOptions(
        options.folder / "checkpoints", save_seconds=None, threads=1, async_save=options.async_save
    )
    notes = options.folder / f"predictions-v{job.version}-{job.node}"
    with notes.open("w") as file, training(job, recommender.build, settings) as run:
        pairs = {run.model.inputs[name]: value for name, value in held_out.at(slice(None)).items()}

        def note(step: int, loss: float | None) -> None:
            predicted = run.session.run(recommender.PREDICTIONS, pairs).tolist()
            line = {"step": step, "loss": loss, "servers": len(job.cluster.ps), "predicted": predicted}
            file.write(f"{json.dumps(line)}\n")
            file.flush()

        note(int(run.session.run(run.graph.get_collection("global_step")[0])), None)
        for batch in job.batches(
            "clicks",
            size=len(data),
            shard_size=1024,
            batch_size=256,
            num_epochs=options.epochs,
            splitter="text",
            shuffle=True,
        ):
            note(*run.step(**data.at(batch.indices)))
            time.sleep(0.01)


if __name__ == "__main__":
    main()
