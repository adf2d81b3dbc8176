"""Pollux's optimizer against its limits: ``python tests/benchmarks/bench_pollux.py [--generations 300]``.

Each case is a cluster of nodes with 4 GPUs and two cycles: a cold start; then a quarter of the jobs has ended
and as many new ones have come. The time is this process's CPU time for speed-up tables and
`optimize_allocations` together, the least of three runs. The limits are the project's; the paper's artifact
takes 26-29 s for 160 jobs on 64 nodes, and 2.7-3.2 s for 40 on 16.

Quality is the objective itself (the higher, the better; with the paper's fairness it is negative) beside

- the bound: what no answer can be worth more than, by the multiplier of the relaxed problem (`Values.bound`);
- a genetic algorithm as the paper describes it, of 100 answers over so many generations: from scratch, and
  from our answer, to see whether a long search betters it.

The jobs are those of AdaptDL's tests, each with parameters off by random factors: times by 0.5-2, norm by
0.3-3, noise by 0.3-30; initial batch 128, at most 1280, 64-256 at once, at most 8 or 64 replicas.
"""

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.scaling.policy import JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.goodput import BatchLimits, GoodputModel, GradParams, PerfParams
from edl_workflows.core.scaling.pollux.model import PolluxJob
from edl_workflows.core.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.core.scaling.pollux.search import SearchProblem
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable
from tests.pollux_worth import allocation_worth, search_problem

GPUS = 4
POPULATION = 100
PERF = (0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317)
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A cluster; `limit` is in seconds, 0 for none."""

    jobs: int
    nodes: int
    replicas: int
    limit: float


CASES = (
    Case(160, 64, 64, 1.3),
    Case(40, 16, 64, 0.15),
    Case(40, 16, 8, 0.15),
    Case(100, 16, 64, 0.0),
    Case(16, 16, 64, 0.0),
    Case(8, 16, 64, 0.0),
)


def models(case: Case, seed: int) -> dict[str, tuple[GoodputModel, float]]:
    """Job → model and age."""
    random = Random(seed)
    found: dict[str, tuple[GoodputModel, float]] = {}
    for number in range(case.jobs):
        slow = random.uniform(0.5, 2)
        grad = GradParams(0.00136 * random.uniform(0.3, 3), 0.000502 * random.uniform(0.3, 30))
        perf = PerfParams(*(value * slow for value in PERF), gamma=1.14)  # type: ignore[misc]
        model = GoodputModel(perf, grad, BatchLimits(128, 1280, (64, 256)))
        found[f"job-{seed}-{number:03}"] = model, random.uniform(60, 7200)
    return found


def jobs_of(known: Mapping[str, tuple[GoodputModel, float]], replicas: int) -> list[PolluxJob]:
    """The jobs, with their tables made."""
    return [
        PolluxJob(JobInfo(key, {"gpu": 1}, max_replicas=replicas, age=age), SpeedupTable.of(model, replicas))
        for key, (model, age) in known.items()
    ]


class Genetic:
    """The reference: answers as jobs × nodes, changed at random, repaired, the better half kept.

    Args:
        question: what is put to the optimizer.
        seed: of the random numbers.
    """

    def __init__(self, question: SearchProblem, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        values, self._question = question.values, question
        self._tables = np.stack([values.local, values.spread])
        self._tables[:, :, 0] = values.nothing
        self._most = np.array([shape.most for shape in question.shapes])
        self._capacity = question.free[:, 0].astype(np.int64)
        self._base = np.zeros((len(question.shapes), len(question.free)), dtype=np.int64)
        for row, place in enumerate(question.held):
            for node, count in place.counts if place is not None else ():
                self._base[row, node] = count

    def best(self, start: Ints | None, generations: int) -> float:
        """The worth of the best answer after so many generations."""
        states = np.repeat((self._base if start is None else start)[None], POPULATION, axis=0)
        scores = self._scores(states)
        for _ in range(generations):
            children = self._repaired(self._mutated(self._crossed(states)))
            states, scores = (
                np.concatenate([states, children]),
                np.concatenate([scores, self._scores(children)]),
            )
            kept = np.argsort(-scores, kind="stable")[:POPULATION]
            states, scores = states[kept], scores[kept]
        return float(scores[0])

    def _scores(self, states: Ints) -> Floats:
        counts, spread = states.sum(axis=2), (states > 0).sum(axis=2) > 1
        rows = np.arange(states.shape[1])
        found = self._tables[spread.astype(int), rows, counts]
        same = (states == self._base).all(axis=2) & (counts > 0)
        total: Floats = np.where(same, self._question.values.kept, found).sum(axis=1)
        return total

    def _crossed(self, states: Ints) -> Ints:
        """Each child has the first jobs of one answer, the others of another; the better are chosen more
        often."""
        parents = (self._random.random((2, POPULATION)) ** 2 * POPULATION).astype(int)
        points = self._random.integers(0, states.shape[1] + 1, (POPULATION, 1, 1))
        first = np.arange(states.shape[1])[None, :, None] < points
        children: Ints = np.where(first, states[parents[0]], states[parents[1]])
        return children

    def _mutated(self, states: Ints) -> Ints:
        """Jobs fall back to what they hold, places are given up, others get another number."""
        random, shape = self._random, states.shape
        back = random.random(shape[:2])[..., None] < 0.02
        states = np.where(back, self._base, states)
        lost = (random.random(shape[:2])[..., None] < 0.05) & (random.random(shape) < 0.3)
        states = np.where(lost, 0, states)
        free = self._capacity - states.sum(axis=1, keepdims=True)
        changed = random.random(shape) < 1.5 / shape[1] * np.where(free > 0, 1.0, 0.1)
        mutated: Ints = np.where(changed, random.integers(0, self._capacity.max() + 1, shape), states)
        return mutated

    def _repaired(self, states: Ints) -> Ints:
        """No more than a job may have, one spanning job on a node, no more than a node has; earlier jobs go
        first, in an order of chance."""
        order = np.argsort(self._random.random(states.shape[:2]), axis=1)[..., None]
        states = np.take_along_axis(states, order, axis=1)
        most = self._most[order[..., 0]][..., None]
        states = np.diff(np.minimum(states.cumsum(axis=2), most), axis=2, prepend=0)
        for _ in range(2):  # what the second rule takes off may be all that a job has on other nodes
            spans = ((states > 0).sum(axis=2) > 1)[..., None] & (states > 0)
            states = np.where(spans & (spans.cumsum(axis=1) > 1), 0, states)
        states = np.diff(np.minimum(states.cumsum(axis=1), self._capacity), axis=1, prepend=0)
        repaired = np.empty_like(states)
        np.put_along_axis(repaired, order, states, axis=1)
        return repaired


def state_of(question: SearchProblem, nodes: Sequence[NodeInfo], answer: Mapping[str, Sequence[str]]) -> Ints:
    """An answer as jobs × nodes."""
    numbers = {node.key: number for number, node in enumerate(sorted(nodes, key=lambda node: node.key))}
    state = np.zeros((len(question.shapes), len(nodes)), dtype=np.int64)
    for row, shape in enumerate(question.shapes):
        for node, count in Counter(answer[shape.job.info.key]).items():
            state[row, numbers[node]] = count
    return state


def run(case: Case, generations: int) -> bool:
    """Print both cycles of a case; whether the limit was kept."""
    nodes = [NodeInfo(f"node-{number:02}", {"gpu": GPUS}) for number in range(case.nodes)]
    known, held, kept = models(case, 1), dict[str, list[str]](), True
    for cycle in ("cold", "warm"):
        times = []
        for _ in range(3):
            began = time.process_time()
            jobs = jobs_of(known, case.replicas)
            answer = optimize_allocations(jobs, nodes, held)
            times.append(time.process_time() - began)
        question = search_problem(jobs, nodes, held)
        ours, bound = allocation_worth(jobs, nodes, held, answer), question.bound
        genetic = Genetic(question)
        scratch = genetic.best(None, generations)
        seeded = genetic.best(state_of(question, nodes, answer), generations)
        used = sum(len(places) for places in answer.values())
        met = not case.limit or min(times) <= case.limit
        kept &= met
        print(
            f"{case.jobs:4} jobs {case.nodes:3} x {GPUS} {cycle} max {case.replicas:2}  {min(times):6.3f} s"
            f" (limit {case.limit or '-'}{'' if met else ', MISSED'})  GPUs {used}/{case.nodes * GPUS}"
            f"  worth {ours:.2f}  bound {bound:.2f}  genetic {scratch:.2f}, from ours {seeded:.2f}",
            flush=True,
        )
        new = models(case, 2)
        ended = list(known)[: case.jobs // 4]
        fresh = {key: (model, 0.0) for key, (model, _) in list(new.items())[: len(ended)]}
        known = {key: value for key, value in known.items() if key not in ended} | fresh
        held = {key: places for key, places in answer.items() if key in known}
    return kept


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=300, help="of the genetic algorithm")
    arguments = parser.parse_args()
    missed = sum(not run(case, arguments.generations) for case in CASES)
    if missed:
        raise SystemExit(f"{missed} of {len(CASES)} limits were missed")


if __name__ == "__main__":
    main()
