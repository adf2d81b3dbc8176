"""Advice for a job with parameter servers from its own statistics (DLRover's LocalOptimizer, single-job
mode).

Each public function gives the advice of one stage of `ps_stages`. Thresholds and formulae are upstream's
unless noted; all advice has passed `bounds.bound_advice`.
"""

import math
from dataclasses import dataclass, replace

from edl_workflows.core.scaling.dlrover.bounds import (
    bound_advice,
    count_fixed_trainers,
    count_range,
    first_size,
    size_range,
)
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    TRAINERS,
    WORKER,
    Advice,
    NodeSize,
    OptimizerJob,
    empty_advice,
    merge_advice,
    role_advice,
)
from edl_workflows.core.scaling.dlrover.sample_window import SampleWindow, sample_window
from edl_workflows.core.scaling.dlrover.samples import mean

HOT = 0.9
"""A parameter server whose mean use of its cores reaches this fraction is hot."""
OVERLOAD = 0.9
"""The fraction of its cores that the busiest parameter server may use after workers are added."""
SATURATED = 0.95
"""Above this fraction, the use of parameter servers does not show how much they need."""
SPEED_RATIO = 0.2
"""The least speed of an added worker, as a fraction of the speed of each worker before."""
FIRST_SIZE = NodeSize(16.0, 8_192.0)
"""The largest size of a node in a new job."""
PS_MEMORY_MARGIN, WORKER_MEMORY_MARGIN = 0.2, 0.5
MIN_WORKER_CPU, MIN_WORKER_MEMORY = 1.0, 1_024.0
EXPECTED_WORKERS = 20
"""Expected if the user gives no number (upstream's Brain: ``optimize_job_ps_init_adjust_resource``)."""
_SLACK = 1e-9
"""Rounding errors make a quotient smaller than the exact whole number by less than this fraction."""


def advise_new_job(job: OptimizerJob) -> Advice:
    """Stage CREATE: one node of each role, each with a fifth of the job's limits L.

    cpu = min(⌈L.cpu/5⌉, 16), memory = min(⌈L.memory/5⌉, 8192 MiB); below one core, L.cpu/5. Counts above 0
    and amounts that the user gave don't change. (Upstream's memory is 0 by a mistake of units, and it
    overwrites a worker's size.)
    """
    advice = Advice()
    for name in (PS, WORKER):
        role = job.roles.get(name)
        if role is None:
            continue
        size = first_size(job, name, FIRST_SIZE)
        count = 1 if role.count == 0 else None
        unknown = "the manifest leaves it open and nothing is measured yet"
        reason = f"{unknown}; the job's limit is {job.limits.cpu:g} cores"
        advice = merge_advice(advice, role_advice(name, reason, count, size))
    return bound_advice(job, advice, tolerance=0.0)


def advise_workers(job: OptimizerJob) -> Advice:
    """Stages WORKER_INITIAL and RUNNING: as many workers as the parameter servers can serve.

    n' = ⌊n · 0.9 / u⌋, where u is the largest fraction of its cores that a parameter server used; cores =
    max(mean use, 1), memory = max(1.5 · most used, 1024 MiB). The number of workers never decreases. There is
    no advice if u is 0 or above 0.95, if no steps are made, or if the last added workers gained less than a
    fifth of the speed of each worker before: ((v1 - v0) / (n1 - n0)) / (v0 / n0) < 0.2.
    """
    window = sample_window(job)
    return window if isinstance(window, Advice) else bound_advice(job, _workers(window))


def advise_initial_servers(job: OptimizerJob) -> Advice:
    """Stage PS_INITIAL: parameter servers for as many workers as the job's limits allow.

    One worker uses w cores itself and p cores of the parameter servers. W = L.cpu / (p + w) workers, but no
    more than the user allows; count = ⌈W · p / c⌉ servers of c cores, where c is the largest present size;
    memory = 1.2 · the most that any server used or, if there will be fewer servers, 1.2 · its share of all
    memory used.

    With a tiny load, W would be too large (60 with upstream), so two caps apply: w is at least one core, or
    the worker's size if that is less; and if the user gives no number of workers, W is at most 20, as
    upstream's Brain assumes, or the present number of workers.
    """
    window = sample_window(job)
    return window if isinstance(window, Advice) else bound_advice(job, _ps_initial(window))


def advise_hot_servers(job: OptimizerJob) -> Advice:
    """Stage RUNNING: if a parameter server is hot, all get cores for as many workers as the limits allow.

    f = max(1, ⌊L.cpu / (p + w)⌋ / n), but no hot server gets more than 32 cores (or the user's bound). Each
    server whose mean use · f exceeds its cores is migrated to a node with that many cores. Memory does not
    change (upstream sets it to 0).
    """
    window = sample_window(job)
    return window if isinstance(window, Advice) else bound_advice(job, _hot_ps(window))


def advise_running_job(job: OptimizerJob, *, ps_may_change: bool = True) -> Advice:
    """Stage RUNNING: hot parameter servers first; if none changes, workers.

    Args:
        job: the present job.
        ps_may_change: False for a while after parameter servers changed.
    """
    first = (
        advise_hot_servers(job)
        if ps_may_change
        else empty_advice("parameter servers changed a short time ago")
    )
    if not first.empty or first.waiting:
        return first
    second = advise_workers(job)
    return replace(second, notes=tuple(dict.fromkeys(first.notes + second.notes)))


@dataclass(frozen=True)
class ProcessNeed:
    """The cores that one worker uses itself, and the cores that it causes all parameter servers together to
    use."""

    worker_cpu: float
    ps_cpu: float

    @property
    def cpu(self) -> float:
        return self.worker_cpu + self.ps_cpu


def process_need(window: SampleWindow) -> ProcessNeed:
    used = [node.cpu for sample in window.samples for node in sample.of(*TRAINERS)]
    return ProcessNeed(mean(used), mean([sample.cpu(PS) for sample in window.samples]) / window.trainers)


def speed_ratio(window: SampleWindow) -> float:
    """The speed gained by each last added worker, relative to the speed per worker before; 1 if unknown."""
    earlier = window.speed_before()
    if earlier is None or earlier[1] <= 0:
        return 1.0
    count, speed = earlier
    return (window.speed - speed) / (window.trainers - count) / (speed / count)


def _workers(window: SampleWindow) -> Advice:
    used = window.utilisation()
    if used is None:
        return empty_advice("a parameter server has no cpu size: how busy it is can't be told", *window.notes)
    if used == 0 or window.speed == 0:
        return empty_advice(
            "no use of parameter servers or no step was measured yet", *window.notes, waiting=True
        )
    if used > SATURATED:
        return empty_advice(
            f"parameter servers use {used:.0%} of their cores: workers would wait", *window.notes
        )
    ratio = speed_ratio(window)
    if ratio < SPEED_RATIO:
        gained = f"the workers added last brought {ratio:.0%} of what each brought before"
        note = f"{gained}; {SPEED_RATIO:.0%} is the least"
        return empty_advice(note, *window.notes)
    count = max(window.trainers, math.floor(window.trainers * OVERLOAD / used * (1 + _SLACK)))
    need = process_need(window)
    memory = (1 + WORKER_MEMORY_MARGIN) * window.most("memory", *TRAINERS)
    size = NodeSize(
        cpu=round(max(need.worker_cpu, MIN_WORKER_CPU), 1),
        memory=float(math.ceil(max(memory, MIN_WORKER_MEMORY))),
    )
    reason = (
        f"the busiest parameter server uses {used:.0%} of its cores with {window.trainers} workers, "
        f"{OVERLOAD:.0%} is aimed at; a worker uses {need.worker_cpu:.1f} cores"
    )
    workers = count - count_fixed_trainers(window.job)
    return replace(role_advice(WORKER, reason, workers, size), notes=window.notes)


def _ps_initial(window: SampleWindow) -> Advice:
    job, need = window.job, process_need(window)
    cpu = max(window.ps_cpu(node) for node in job.of(PS))
    if need.ps_cpu == 0:
        return empty_advice("no use of parameter servers was measured yet", *window.notes, waiting=True)
    if cpu == 0:
        return empty_advice("the parameter servers have no cpu size", *window.notes)
    worker = max(need.worker_cpu, min(MIN_WORKER_CPU, job.roles[WORKER].resource.cpu or MIN_WORKER_CPU))
    workers = min(job.limits.cpu / (need.ps_cpu + worker), _most_workers(job) + count_fixed_trainers(job))
    desired_count = math.ceil(workers * need.ps_cpu / cpu * (1 - _SLACK))
    count = int(count_range(job, PS).clamp(desired_count))
    if count == job.roles[PS].count:
        return empty_advice(f"{count} parameter servers are enough for {workers:.0f} workers", *window.notes)
    part = max(sample.memory(PS) for sample in window.samples) / count
    memory = (1 + PS_MEMORY_MARGIN) * max(window.most("memory", PS), part)
    reason = (
        f"a worker uses {need.worker_cpu:.1f} cores and makes parameter servers use {need.ps_cpu:.1f}; "
        f"{workers:.0f} workers have room"
    )
    size = NodeSize(cpu=cpu, memory=float(math.ceil(memory)) if memory else None)
    return replace(role_advice(PS, reason, count, size), notes=window.notes)


def _most_workers(job: OptimizerJob) -> float:
    role, allowed = job.roles[WORKER], count_range(job, WORKER).high
    if not role.auto_scale:
        return role.count
    return allowed if role.bounds.count else min(allowed, max(EXPECTED_WORKERS, role.count))


def _hot_ps(window: SampleWindow) -> Advice:
    job, used = window.job, window.mean_cpu(PS)
    sizes = {node.name: window.ps_cpu(node) for node in job.of(PS)}
    hot = [name for name, cpu in sizes.items() if cpu > 0 and used[name] / cpu >= HOT]
    if not hot:
        return empty_advice("no parameter server is hot", *window.notes)
    need = process_need(window)
    factor = max(1.0, math.floor(job.limits.cpu / need.cpu) / window.trainers)
    factor = min(factor, *(size_range(job, PS, "cpu", sizes[name]).high / used[name] for name in hot))
    reason = (
        f"{', '.join(hot)} used {max(used[name] / sizes[name] for name in hot):.0%} of its cores on average, "
        f"{HOT:.0%} is hot; all parameter servers get {factor:.2g} times what they use"
    )
    desired_cores = {name: round(used[name] * factor, 1) for name in sizes}
    grown = {name: NodeSize(cpu=cpu) for name, cpu in desired_cores.items() if cpu > sizes[name]}
    advice = Advice({}, grown, dict.fromkeys(grown, reason), window.notes)
    return (
        advice
        if grown
        else replace(advice, notes=(*window.notes, f"{', '.join(hot)} is hot, but limits allow no more"))
    )
