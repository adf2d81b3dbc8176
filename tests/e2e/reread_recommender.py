"""Reads a checkpoint of `recorded_recommender` outside of its job, in several ways: one line of JSON with
what each predicts for the same pairs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "dags" / "training"))

import numpy as np
import tensorflow as tf
import train_recommender as recommender  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import open_model

PAIRS = 512
tf1 = tf.compat.v1


def main() -> None:
    """Read the newest checkpoint of a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    _, held_out = recommender.load(60_000, PAIRS)
    pairs = {"users": held_out.users, "items": held_out.items}
    with open_model(folder / "checkpoints", recommender.build) as model:
        predictions = {"opened": model.run(recommender.PREDICTIONS, **pairs)}
        model.export_saved_model(folder / "saved", {"score": recommender.PREDICTIONS})
        tables = model.tensors
        scores = tables["recommender/users"][pairs["users"]] * tables["recommender/items"][pairs["items"]]
        predictions["numpy"] = 1 / (1 + np.exp(-scores.sum(axis=1)))
        step = model.checkpoint.step
        if list(model.folder.glob("*.index")):
            predictions["plain"] = plain(model.folder, pairs)
    serve = tf.saved_model.load(str(folder / "saved")).signatures["serving_default"]
    predictions["served"] = serve(**{name: tf.constant(ids) for name, ids in pairs.items()})["score"].numpy()
    print(json.dumps({"step": step, **{name: numbers.tolist() for name, numbers in predictions.items()}}))


def plain(folder: Path, pairs: dict[str, Any]) -> Any:
    """The predictions of the program's graph in TensorFlow alone, restored by its own Saver."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        model = recommender.build()
        tf1.train.Saver().restore(session, str(folder / "model.ckpt"))
        return session.run(recommender.PREDICTIONS, {model.inputs[name]: ids for name, ids in pairs.items()})


if __name__ == "__main__":
    main()
