"""Brain's algorithms for workers, with upstream's names and constants; differences are noted."""

import math
from dataclasses import replace

from edl_workflows.core.scaling.dlrover.bounds import (
    bound_advice,
    count_fixed_trainers,
    first_size,
    job_problems,
)
from edl_workflows.core.scaling.dlrover.brain.fairness import fair_shares
from edl_workflows.core.scaling.dlrover.brain.request import (
    RECORDS,
    SHORT_SECONDS,
    BrainRequest,
    former_samples,
    one_worker_seconds,
)
from edl_workflows.core.scaling.dlrover.ps_stages import WorkerPhase
from edl_workflows.core.scaling.dlrover.resources import (
    AMOUNTS,
    PS,
    TRAINERS,
    WORKER,
    Advice,
    NodeSize,
    empty_advice,
    role_advice,
)
from edl_workflows.core.scaling.dlrover.sample_window import SampleWindow, sample_window
from edl_workflows.core.scaling.dlrover.samples import valid_samples

FIRST_CPU, FIRST_MEMORY, FIRST_MEMORY_FACTOR = 12.0, 16_384.0, 1.5
OOM_FACTOR, OOM_STEP = 1.2, 4e9 / 2**20
"""Upstream's step is 4e9 bytes."""
EXHAUSTED, OVERLOAD, DECREASE = 0.95, 0.8, 4
SLOWER = 0.1
"""If the speed drops by this fraction after a change of workers, the job became slower."""
FIRST_WORKERS, MAX_FIRST_WORKERS, MAX_STEP = 10, 32, 4
MEMORY_MARGIN, MAX_MEMORY_STEP, CPU_MARGIN = 0.2, 8_192.0, 1.0
_ROUNDING = 1e-9


def optimize_job_worker_create_resource(request: BrainRequest) -> Advice:
    """A new job's first worker.

    cores = ⌈the most cores that any worker of a completed job used⌉, at least 12; memory = 1.5 · the most
    memory that any of them used, at least 16 GiB. Amounts that the user specified do not change.
    """
    role = request.job.roles.get(WORKER)
    if wrong := job_problems(request.job):
        return empty_advice(*wrong)
    if role is None:
        return empty_advice("the job has no workers")
    used = [
        node
        for record in request.history
        if record.completed
        for sample in former_samples(record)
        for node in sample.of(*TRAINERS)
    ]
    cpu = max([FIRST_CPU, *(float(math.ceil(node.cpu)) for node in used)])
    memory = max([FIRST_MEMORY, *(float(math.ceil(FIRST_MEMORY_FACTOR * node.memory)) for node in used)])
    size = first_size(request.job, WORKER, NodeSize(cpu, memory))
    completed = sum(record.completed for record in request.history)
    reason = (
        f"{completed} completed jobs tell what a worker needs"
        if used
        else "no completed job tells what a worker needs"
    )
    return bound_advice(
        request.job, role_advice(WORKER, reason, 1 if role.count == 0 else None, size), tolerance=0.0
    )


def optimize_job_worker_create_oom_resource(request: BrainRequest) -> Advice:
    """Workers ran out of memory.

    They get the most that a worker of a former job used (1.2 times that if it ran out of memory), or 4 GB
    more than they have, but at most twice as much (upstream always adds 4 GB).
    """
    job = request.job
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    if not any(node.oom for node in job.of(WORKER)):
        return empty_advice("no worker ran out of memory")
    validation = valid_samples(job.samples)
    has = max((node.resource.memory or 0.0 for node in job.of(WORKER)), default=0.0)
    own = max(has, job.roles[WORKER].resource.memory or 0.0)
    if own == 0:
        own = max(
            (node.memory for sample in validation.samples[-1:] for node in sample.of(WORKER)), default=0.0
        )
    memory = max(own + min(own, OOM_STEP), *_former_memory(request), 0.0)
    if memory == 0:
        return empty_advice(
            "neither the workers' memory nor that of former jobs is known", *validation.problems
        )
    reason = f"a worker ran out of memory with {own:g} MiB"
    return bound_advice(
        job, role_advice(WORKER, reason, size=NodeSize(memory=float(math.ceil(memory)))), tolerance=0.0
    )


def optimize_job_worker_resource(request: BrainRequest) -> Advice:
    """As many workers as the parameter servers can serve.

    n is the present number of workers, u the largest fraction of its cores that a server used.

    1. If a server used 95 % or more in all of the 3 newest samples: n - 4, if at least one worker is left.
    2. If u < 80 %, and the last change of n did not slow the job down by a tenth: n' = ⌊0.8 / u · n⌋. Limits
       of n': in the phases ``initial`` and ``sample`` 10 workers if one worker would finish the job within
       half an hour, 32 if it would not, and n + 4 if this is unknown; in phase ``stable`` n + 4, and n if the
       job did not become faster.
    3. Otherwise n. New workers have ⌈the most used + 1⌉ cores and 1.2 · the most memory used (at most 8 GiB
       more).

    Upstream rounds n' up. Its last workers then exhaust a server, are removed, and are added again.
    """
    window = sample_window(request.job, RECORDS)
    if isinstance(window, Advice):
        return window
    used = window.utilisation()
    if used is None:
        return empty_advice("a parameter server has no cpu size: how busy it is can't be told", *window.notes)
    if used == 0 or window.speed == 0:
        return empty_advice(
            "no use of parameter servers or no step was measured yet", *window.notes, waiting=True
        )
    count, reason = _count(window, request, used)
    memory = window.most("memory", *TRAINERS)
    size = NodeSize(
        cpu=float(math.ceil(window.most("cpu", *TRAINERS) + CPU_MARGIN)),
        memory=float(math.ceil(memory + min(MEMORY_MARGIN * memory, MAX_MEMORY_STEP))) or None,
    )
    proposal = role_advice(WORKER, reason, count - count_fixed_trainers(request.job), size)
    return bound_advice(request.job, replace(proposal, notes=window.notes))


def optimize_job_fair_share(request: BrainRequest) -> Advice:
    """Reduce a job to its fair share of a cluster that is too small for all jobs (`fairness.fair_shares`).

    It only removes workers; other algorithms let a job grow within its share (see `algorithms.optimize_job`).
    """
    job = request.job
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    share = fair_share(request)
    if isinstance(share, str):
        return empty_advice(share)
    if WORKER not in job.roles or job.roles[WORKER].count <= share:
        return empty_advice(f"the job's fair share is {share} workers, and it has no more")
    peers = len(request.claims) - 1
    return bound_advice(
        job, role_advice(WORKER, f"its fair share beside {peers} other jobs is {share} workers", share)
    )


def fair_share(request: BrainRequest) -> int | str:
    """How many workers the job may have beside the others; or why that is unknown."""
    if not request.claims:
        return "no other jobs are known"
    for name in AMOUNTS:
        amount = request.capacity.get(name)
        if amount is not None and not (math.isfinite(amount) and amount > 0):
            return f"the cluster's {name} is {amount}: a fair share of it can't be told"
    shares = fair_shares(request.claims, request.capacity)
    if request.job.name in shares.workers:
        return shares.workers[request.job.name]
    return shares.problems.get(request.job.name, f"{request.job.name} has no claim")


def _former_memory(request: BrainRequest) -> list[float]:
    """The last memory use of each worker of former jobs, with a margin if it ran out of memory."""
    memory_uses = []
    for record in request.history:
        last = {node.name: node.memory for sample in former_samples(record) for node in sample.of(WORKER)}
        memory_uses += [memory * (OOM_FACTOR if name in record.oom else 1) for name, memory in last.items()]
    return memory_uses


def _count(window: SampleWindow, request: BrainRequest, used: float) -> tuple[int, str]:
    """The number of workers and chief together, and the reason."""
    now = window.trainers
    cpu = {node.name: window.ps_cpu(node) for node in window.job.of(PS)}
    exhausted = [
        name
        for name in cpu
        if all(n.cpu >= EXHAUSTED * cpu[name] for s in window.samples for n in s.of(PS) if n.name == name)
    ]
    reason = f"the busiest parameter server uses {used:.0%} of its cores with {now} workers"
    if exhausted:
        fewer = now - DECREASE if now > DECREASE else now
        return fewer, f"{', '.join(exhausted)} used {EXHAUSTED:.0%} of its cores or more"
    earlier = window.speed_before()
    if used >= OVERLOAD:
        return now, reason
    if earlier is not None and window.speed <= (1 - SLOWER) * earlier[1]:
        return now, f"{reason}, but the job became slower when its workers changed"
    served = max(now, math.floor(OVERLOAD / used * now * (1 + _ROUNDING)))
    if request.phase is WorkerPhase.STABLE:
        faster = earlier is None or window.speed > earlier[1]
        return (min(served, now + MAX_STEP) if faster else now), reason
    seconds = one_worker_seconds(window, request.training)
    if seconds is None:
        return min(served, now + MAX_STEP), reason
    most = FIRST_WORKERS if seconds <= SHORT_SECONDS else MAX_FIRST_WORKERS
    return max(now, min(served, most)), f"{reason}, one worker would need {seconds:.0f} s"
