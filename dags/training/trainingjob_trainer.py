"""A trainer of the TrainingJob example: takes chunks from the master, trains on them,
until there are none left.

It knows no other trainer and keeps nothing: any may be killed, and others may come, at
any time.
"""

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from digits import Digits, load
from trainingjob_http import PAUSE_SECONDS, ask
from trainingjob_pserver import SHAPES, Arrays, pack, unpack

BATCH = 16


def main() -> None:
    """Train until the master says that all is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--chunk-delay", type=float, default=0.0, metavar="SECONDS", help="rest after each chunk"
    )
    options = parser.parse_args()
    # Without a handler, the first process of a container ignores SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    master, me = os.environ["PADDLE_MASTER"], os.environ["POD_NAME"]
    servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    data, _ = load()
    while True:
        task = _call(master, "/lease", {})
        if task["done"]:
            return
        if "chunk" not in task:
            time.sleep(PAUSE_SECONDS)  # other trainers have the last chunks
            continue
        number, chunk = task["chunk"]
        picked = np.arange(chunk, len(data), task["chunks"])
        train(servers, Digits(data.images[picked], data.labels[picked]))
        time.sleep(options.chunk_delay)
        left = _call(master, "/acknowledge", {"trainer": me, "chunk": task["chunk"]})["left"]
        print(f"pass {number} chunk {chunk}, left {left}", flush=True)


def train(servers: list[str], chunk: Digits) -> None:
    """Train on a chunk once. For each batch, get the parameters from the servers and
    send them the gradients."""
    for start in range(0, len(chunk), BATCH):
        values: Arrays = {}
        for server in servers:
            values |= unpack(ask(server, "/read"))
        images, labels = chunk.images[start : start + BATCH], chunk.labels[start : start + BATCH]
        found = gradients(values, images, labels)
        for index, server in enumerate(servers):
            ask(
                server,
                "/update",
                pack({name: found[name] for name in list(SHAPES)[index :: len(servers)]}),
            )


def gradients(values: Arrays, images: Any, labels: Any) -> Arrays:
    """The gradients of the mean cross entropy."""
    variables = {name: tf.constant(value) for name, value in values.items()}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        hidden = tf.nn.relu(
            images @ variables["digits/hidden/weights"] + variables["digits/hidden/biases"]
        )
        logits = hidden @ variables["digits/logits/weights"] + variables["digits/logits/biases"]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return {name: np.asarray(value) for name, value in tape.gradient(loss, variables).items()}


def _call(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(address, path, json.dumps(body).encode()))
    return answer


if __name__ == "__main__":
    main()
