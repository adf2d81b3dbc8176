"""Digests of what the simulator computes: ``python -m tests.unit.simulator.fixed_day`` prints them as
JSON, with names of policies only theirs.

The input is a small day of jobs that train three applications on a cluster with failures and a service. It is
made with whole numbers, sums, products and quotients alone, so that it is itself the same on every machine.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

from edl_workflows.core.scaling.pollux.goodput import BatchLimits, GoodputModel, GradParams
from edl_workflows.core.scaling.pollux.goodput_fit import FitCache, StepMeasurement, fit_step_times
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable
from edl_workflows.simulator import paddle
from edl_workflows.simulator.application import Application, ValidationTrace
from edl_workflows.simulator.capacity import CapacityChange, draw_failures, service_changes
from edl_workflows.simulator.cluster import SimulationSettings
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from edl_workflows.simulator.study import Study, Workload
from edl_workflows.simulator.throughput import Placement, StepTime, ThroughputTable
from edl_workflows.simulator.workload import WorkloadJob

EPOCHS = 3
PLACEMENTS: tuple[Placement, ...] = ((1,), (2,), (3,), (4,), (1, 1), (2, 2), (3, 3), (4, 4), (4, 4, 4))
APPLICATIONS: Mapping[str, tuple[int, float]] = {
    "digits": (32, 0.11),
    "speech": (8, 0.83),
    "faces": (64, 2.9),
}
"""Name → the smallest batch, and seconds of a step of it."""


def simulate(*policies: str) -> dict[str, str]:
    """The digest of the day with each of these policies."""
    fits, applications = FitCache(), _applications()
    settings = SimulationSettings(nodes=3, interference=0.1, changes=_changes())
    workload = Workload("day", "day", _jobs(), applications, {"digits": 4})
    return {policy: _digest(Study(workload, policy, 0, settings).run(fits)) for policy in policies}


def digests() -> dict[str, str]:
    """The digest of each computation, by name."""
    found = simulate(*sorted(entry.name for entry in SCHEDULERS))
    found["paddle"] = _digest(paddle.run_case(paddle.PaddleCase(4, None, ((0, 300), (40, 100)), seconds=100)))
    found["failures"] = _digest(_changes())
    found["fits"] = _digest(_fits(_applications()))
    return found


def _fits(applications: Mapping[str, Application]) -> list[object]:
    """Parameters and speed-up tables of each application, from measurements with an error of up to 3 %."""
    found: list[object] = []
    for name, (batch, _) in APPLICATIONS.items():
        measured = []
        for number, placement in enumerate(PLACEMENTS):
            step = applications[name].step_time(placement, batch)
            seconds = step.total * (1 + (number * 7 % 5 - 2) / 70)
            measured.append(
                StepMeasurement(len(placement), sum(placement), batch, seconds, step.total - step.sync)
            )
        perf = fit_step_times(measured)
        model = GoodputModel(
            perf, GradParams(0.00136, 0.0502), BatchLimits(batch, 16 * batch, (batch, batch))
        )
        found += [perf, SpeedupTable.of(model, 16)]
    return found


def _applications() -> dict[str, Application]:
    return {name: _application(name, batch, pace) for name, (batch, pace) in APPLICATIONS.items()}


def _application(name: str, batch: int, pace: float) -> Application:
    """An application whose noise grows with each epoch. A pass and an exchange have a constant and a growing
    part each."""
    sizes = [batch * 2**power for power in range(5)]
    progress = [900.0 * (epoch + 1) / (1 + epoch / 40) for epoch in range(EPOCHS)]
    noise = [3.0 + 2.7 * epoch for epoch in range(EPOCHS)]
    validation = {
        size: ValidationTrace(progress, [done * batch / size for done in progress], [1.0] * EPOCHS, noise)
        for size in sizes
    }
    steps: dict[Placement, dict[int, StepTime]] = {}
    for placement in PLACEMENTS:
        beyond = sum(placement) - 1
        sync = pace * (0.03 * beyond + 0.2 * (len(placement) - 1)) / (1 + beyond / 9)
        steps[placement] = {
            size: StepTime(pace * (0.3 + 0.7 * size / batch) + sync, sync)
            for size in (batch // 2, batch, 2 * batch, 4 * batch)
        }
    table = ThroughputTable.of(steps, {(4, 16): steps[4, 4, 4]})
    return Application(name, validation, table, min_local_bsz=batch // 2, max_local_bsz=4 * batch)


def _jobs() -> list[WorkloadJob]:
    names = list(APPLICATIONS)
    return [
        WorkloadJob(
            f"job-{number:02}",
            number * number * 97 % 2003 + number / 7,
            names[number * 5 % 7 % 3],
            1 + number % 4,
            APPLICATIONS[names[number * 5 % 7 % 3]][0] * (1 + number % 4),
        )
        for number in range(10)
    ]


def _changes() -> list[CapacityChange]:
    nodes = SimulationSettings(nodes=3).capacity()
    found = draw_failures(nodes, mean_time_between=4000.0, repair_time=333.0, until=9000.0, seed=3)
    return found + service_changes("web", nodes, [(500.0, 5), (2500.0, 0)])


def _digest(result: object) -> str:
    """A digest of all values, with floats to the last bit, but without the names of classes and fields."""
    return hashlib.sha256(repr(_plain(result)).encode()).hexdigest()[:16]


def _plain(value: object) -> object:
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


if __name__ == "__main__":
    print(json.dumps(simulate(*sys.argv[1:]) if sys.argv[1:] else digests()))
