"""Learn to walk along a cliff as a DIJob: the program of the learner, the collectors
and the evaluator. NumPy only.

The learner holds a table of action values (Q-learning). Collectors fetch it, walk by it
with some random steps, and hand in what happened. The evaluator walks without random
steps and reports the return; the learner ends the job when that reaches the target. All
find the learner by ``DI_LEARNER_NODES``. Any of them can be killed: a new learner goes
on from its checkpoint, the others try again until the learner is back.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from edl_workflows.training import listen, resolve

PORT = 22270
ROWS, COLUMNS = 4, 12
START, GOAL = (ROWS - 1, 0), (ROWS - 1, COLUMNS - 1)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
BEST_RETURN = -13.0
"""The return of the shortest way, which has 13 steps."""
RATE = 0.5
TERMINATED = 143
"""Exit code of a replica that was told to end: 128 + SIGTERM."""

Step = tuple[int, int, float, int, bool]
"""State, action, reward, next state, whether the walk is over."""


def move(state: int, action: int) -> tuple[float, int, bool]:
    """Make one step. Returns the reward, the next state, and whether the walk is over.
    A fall off the cliff leads back to the start."""
    row, column = divmod(state, COLUMNS)
    row = min(max(row + MOVES[action][0], 0), ROWS - 1)
    column = min(max(column + MOVES[action][1], 0), COLUMNS - 1)
    if (row, column) == GOAL:
        return -1.0, row * COLUMNS + column, True
    if row == ROWS - 1 and column > 0:
        return -100.0, START[0] * COLUMNS + START[1], False
    return -1.0, row * COLUMNS + column, False


def walk(
    values: Any, random: np.random.Generator, curiosity: float, limit: int = 200
) -> list[Step]:
    """Walk once from the start, by the table and with a share of random steps."""
    state, steps = START[0] * COLUMNS + START[1], []
    for _ in range(limit):
        best = np.flatnonzero(values[state] == values[state].max())
        action = int(
            random.integers(len(MOVES)) if random.random() < curiosity else random.choice(best)
        )
        reward, after, over = move(state, action)
        steps.append((state, action, reward, after, over))
        state = after
        if over:
            break
    return steps


class Learner:
    """The learner's state: the table, how many walks it has learned from, and whether
    it is good enough."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.values = np.zeros((ROWS * COLUMNS, len(MOVES)))
        self.walks: dict[str, int] = {}
        self.evaluation: float | None = None
        self.done = False
        self.told: set[str] = set()
        self._options = options
        self._lock = threading.Lock()
        self._file = options.folder / "learner.npz"
        if self._file.exists():
            with np.load(self._file, allow_pickle=False) as kept:
                self.values = kept["values"]
                self.walks = json.loads(str(kept["walks"]))

    def learn(self, who: str, steps: list[Step]) -> None:
        """Learn from a walk by Q-learning, from its last step to its first."""
        with self._lock:
            for state, action, reward, after, over in reversed(steps):
                target = reward + (0.0 if over else self.values[after].max())
                self.values[state, action] += RATE * (target - self.values[state, action])
            self.walks[who] = self.walks.get(who, 0) + 1

    def judge(self, result: float) -> None:
        """Record the evaluator's result, and decide whether learning is done."""
        with self._lock:
            self.evaluation = result
            enough = sum(self.walks.values()) >= self._options.least_walks
            self.done = self.done or (enough and result >= self._options.target)

    def answer(self, who: str) -> dict[str, Any]:
        """The response to every replica's report: the newest table, and whether
        learning is done."""
        with self._lock:
            if self.done:
                self.told.add(who)
            return {"values": self.values.tolist(), "done": self.done}

    def save(self) -> None:
        """Write the checkpoint, and the progress for users. Each file is replaced atomically."""
        with self._lock:
            told = {"walks": self.walks, "evaluation": self.evaluation, "done": self.done}
            partial = self._file.with_suffix(".tmp.npz")
            np.savez(partial, values=self.values, walks=json.dumps(self.walks))
        partial.replace(self._file)
        progress = self._options.folder / "progress.json"
        progress.with_suffix(".tmp").write_text(json.dumps(told))
        progress.with_suffix(".tmp").replace(progress)


def serve(options: argparse.Namespace) -> None:
    """Run the learner until the target is reached and all replicas have been told."""
    learner = Learner(options)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body.get("steps"):
                learner.learn(body["who"], body["steps"])
            if body.get("result") is not None:
                learner.judge(body["result"])
            answer = json.dumps(learner.answer(body["who"])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(listen(PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        while not learner.done:
            learner.save()
            said = f"walks {sum(learner.walks.values())} of {len(learner.walks)} collectors"
            print(f"{said}, evaluation {learner.evaluation}", flush=True)
            time.sleep(options.save_seconds)
        time.sleep(options.linger)  # each replica asks again soon
    finally:
        learner.save()
    print(f"reached {learner.evaluation}; told {sorted(learner.told)}", flush=True)


def exchange(who: str, options: argparse.Namespace, **message: Any) -> dict[str, Any]:
    """Send a report to the learner and get the table. Repeat this until the learner
    responds.

    Raises:
        SystemExit: the learner did not respond in time.
    """
    learner = os.environ["DI_LEARNER_NODES"].split(",")[0]
    deadline = time.monotonic() + options.patience
    while time.monotonic() < deadline:
        host, _, port = resolve(f"{learner}:{PORT}").rpartition(":")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, int(port), timeout=5)
            with contextlib.closing(connection):
                connection.request("POST", "/", json.dumps({"who": who, **message}))
                answer: dict[str, Any] = json.loads(connection.getresponse().read())
                return answer
        time.sleep(0.2)
    sys.exit(f"the learner at {learner} does not answer")


def collect(who: str, options: argparse.Namespace) -> None:
    """Walk and report the steps to the learner until learning is done."""
    random = np.random.default_rng()
    answer = exchange(who, options)
    while not answer["done"]:
        steps = walk(np.asarray(answer["values"]), random, options.curiosity)
        time.sleep(options.pause)
        answer = exchange(who, options, steps=steps)


def evaluate(who: str, options: argparse.Namespace) -> None:
    """Walk without random steps and report the return, until learning is done."""
    random = np.random.default_rng(0)
    answer = exchange(who, options)
    while not answer["done"]:
        values = np.asarray(answer["values"])
        returns = [sum(step[2] for step in walk(values, random, curiosity=0.0)) for _ in range(5)]
        time.sleep(options.pause)
        answer = exchange(who, options, result=float(np.mean(returns)))


def main() -> None:
    """Run the role that the first argument names."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.task == "learner":
        serve(options)
    else:
        {"collector": collect, "evaluator": evaluate}[options.task](os.environ["HOSTNAME"], options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("learner", "collector", "evaluator"))
    parser.add_argument(
        "--folder", type=Path, required=True, help="of the learner's checkpoint and progress"
    )
    parser.add_argument(
        "--target", type=float, default=BEST_RETURN, help="return to reach (%(default)s)"
    )
    parser.add_argument(
        "--least-walks", type=int, default=0, metavar="N", help="to learn from before the end"
    )
    parser.add_argument(
        "--curiosity", type=float, default=0.1, help="share of random steps (%(default)s)"
    )
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="SECONDS", help="after each walk"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=0.5, metavar="SECONDS", help="between checkpoints"
    )
    parser.add_argument(
        "--linger", type=float, default=3.0, metavar="SECONDS", help="after the target is reached"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="with a learner that is away",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
