"""Train on the digits as a TFJob: the program of every replica, which learns from
``TF_CONFIG`` what it is.

Between-graph replication with parameter servers, as TFJobs are written: no agent. The
chief (worker 0 where there is none) saves checkpoints, also when it is told to end, and
every start goes on from the newest. So the job can be given other parameter servers:
all replicas end, and begin anew with the new cluster.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from digits import load, network

tf1 = tf.compat.v1
LEARNING_RATE = 2e-3
TERMINATED = 143
"""Exit code of a replica that was told to end: 128 + SIGTERM, which the restart policy
ExitCode restarts."""


def main() -> None:
    """Run the role in ``TF_CONFIG``: a parameter server, or a worker that trains until
    the last step."""
    options = _options()
    config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {"worker": ["127.0.0.1:0"]}}')
    task = config.get("task", {"type": "worker", "index": 0})
    server = tf1.train.Server(
        tf1.train.ClusterSpec(config["cluster"]), job_name=task["type"], task_index=task["index"]
    )
    if task["type"] == "ps":
        server.join()
    else:
        train(server, config["cluster"], task, options)


def train(
    server: Any, cluster: dict[str, list[str]], task: dict[str, Any], options: argparse.Namespace
) -> None:
    """Train on this worker's share of the data."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    me = f"/job:{task['type']}/task:{task['index']}"
    tf1.disable_eager_execution()
    with tf1.device(tf1.train.replica_device_setter(worker_device=me, cluster=cluster)):
        net = network()
        optimizer = tf1.train.AdamOptimizer(LEARNING_RATE)
        step = optimizer.minimize(net.loss, global_step=tf1.train.get_or_create_global_step())
    chief = task["type"] == "chief" or ("chief" not in cluster and task["index"] == 0)
    # Without this filter, a session waits for all other workers.
    settings = tf1.ConfigProto(device_filters=["/job:ps", me], intra_op_parallelism_threads=1)
    hooks = [tf1.train.StopAtStepHook(last_step=options.steps)]
    data, _ = load()
    random = np.random.default_rng(task["index"])
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=chief,
        checkpoint_dir=str(options.checkpoint_dir),
        save_checkpoint_secs=options.save_seconds,
        hooks=hooks,
        config=settings,
    ) as session:
        while not session.should_stop() and not told:
            picked = random.choice(len(data), options.batch_size)
            feed = {net.images: data.images[picked], net.labels: data.labels[picked]}
            _, now = session.run([step, tf1.train.get_global_step()], feed)
            if now % options.log_steps == 0:
                print(f"step {now}", flush=True)
            time.sleep(options.step_delay)
    if told:
        sys.exit(TERMINATED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument(
        "--steps", type=int, default=1000, help="of all workers together (default %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, help="records a step (default %(default)s)"
    )
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="pause after each step"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=10.0, metavar="SECONDS", help="between checkpoints"
    )
    parser.add_argument("--log-steps", type=int, default=50, help="steps between output lines")
    return parser.parse_args()


if __name__ == "__main__":
    main()
