"""Brain's algorithms for parameter servers, with upstream's names and constants; differences are noted.

Each is a function from a `BrainRequest` to `Advice` that has passed `bounds.bound_advice`.
"""

import math

from edl_workflows.core.scaling.dlrover.bounds import (
    SIZES,
    bound_advice,
    count_range,
    first_size,
    job_problems,
    size_range,
)
from edl_workflows.core.scaling.dlrover.brain.request import (
    RECORDS,
    SHORT_SECONDS,
    BrainRequest,
    former_samples,
    major_mean,
    one_worker_seconds,
)
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    Advice,
    NodeSize,
    OptimizerJob,
    empty_advice,
    merge_advice,
    role_advice,
)
from edl_workflows.core.scaling.dlrover.sample_window import SampleWindow, sample_window
from edl_workflows.core.scaling.dlrover.samples import JobSample, mean, valid_samples

HOT_CPU, HOT_MEMORY, HOT_MEMORY_STEP = 0.8, 0.9, 8_192.0
TARGET_WORKERS = 32
COLD_COUNT, COLD_SIZE = 4, NodeSize(12.0, 16_384.0)
MIN_CPU, CPU_MARGIN = 12.0, 4.0
TOTAL_CPU_MARGIN, MEMORY_MARGIN = 0.5, 0.2
CPU_PER_RECV_OP, MAX_RECV_OPS, MANY_RECV_CPU = 0.08, 150.0, 16.0
SHORT_WORKERS, LONG_WORKERS = 10, 20
MAX_PS = 15
UNBALANCED = 0.2
IDLE, OVERLOAD, FULL_CPU = 0.4, 0.8, 25.6
MIN_REMAINING = 3_600.0


def optimize_job_hot_ps_resource(request: BrainRequest) -> Advice:
    """Hot parameter servers grow: mean CPU use above 80 %, or memory above 90 % in each of 3 samples.

    Cores: if one server is hot, all get ⌈mean use · 32 / workers⌉ if that is more than they have, scaled
    down by one ratio for all if a hot server would exceed its bound. Memory: 8 GiB more, but at most twice
    as much (upstream also adds 8 GiB to a server of 512 MiB).
    """
    window = sample_window(request.job, RECORDS)
    if isinstance(window, Advice):
        return window
    cpu, memory = _hot_cpu(window), _hot_memory(window)
    none = NodeSize()
    names = sorted({*cpu.node_resources, *memory.node_resources})
    sizes = {n: memory.node_resources.get(n, none).over(cpu.node_resources.get(n, none)) for n in names}
    reasons = {
        n: "; ".join(advice.reasons[n] for advice in (cpu, memory) if n in advice.reasons) for n in names
    }
    notes = window.notes if names else ("no parameter server is hot", *window.notes)
    return bound_advice(request.job, Advice({}, sizes, reasons, notes))


def optimize_job_ps_cold_create_resource(request: BrainRequest) -> Advice:
    """A new job without former jobs: 4 parameter servers of 12 cores and 16 GiB."""
    return _created(request.job, COLD_COUNT, COLD_SIZE, "no former job tells what this one needs")


def optimize_job_ps_create_resource(request: BrainRequest) -> Advice:
    """A new job with former jobs of its scenario.

    cores = the highest mean use of a server + 4, at least 12; count = 1.5 · U / cores, where U is the mean
    over jobs, without outliers, of the cores that all servers of a job used together; memory = 1.2 · the most
    used.
    """
    samples = [job_samples for record in request.history if (job_samples := former_samples(record))]
    totals = [major_mean([sample.cpu(PS) for sample in job_samples]) for job_samples in samples]
    totals = [total for total in totals if total > 0]
    most_memory = max(
        (node.memory for job_samples in samples for sample in job_samples for node in sample.of(PS)),
        default=0.0,
    )
    if not totals or most_memory == 0:
        return empty_advice("no former job tells what parameter servers use")
    cpu = max(MIN_CPU, max(_most_mean_cpu(job_samples) for job_samples in samples) + CPU_MARGIN)
    total = major_mean(totals) * (1 + TOTAL_CPU_MARGIN)
    count = min(math.ceil(total / cpu), MAX_PS)
    all_memory = max(sample.memory(PS) for job_samples in samples for sample in job_samples)
    memory = (1 + MEMORY_MARGIN) * max(most_memory, all_memory / count)
    size = NodeSize(float(math.ceil(max(cpu, total / count))), float(math.ceil(memory)))
    reason = f"in {len(totals)} former jobs parameter servers used {major_mean(totals):.1f} cores together"
    return _created(request.job, count, size, reason)


def optimize_job_ps_init_adjust_resource(request: BrainRequest) -> Advice:
    """Parameter servers for the expected number of workers, once there are statistics of the first few.

    cores = ⌈0.08 · receiving operations of one server⌉ + 4 (16 if there are more than 150), at least ⌈most
    used⌉ + 4. W = 10 workers for a short job, else 20, but no more than ⌈r · n⌉, where r is the factor by
    which the load could grow if it were spread over 15 servers, limited by the part of the load that can't be
    moved away from the hottest server. count = ⌈W / n · most used together / cores⌉; memory = 1.2 · the most
    used. (Upstream gives no advice if the speed is unknown.)
    """
    window = sample_window(request.job)
    if isinstance(window, Advice):
        return window
    used = window.mean_cpu(PS)
    hottest, together = max(used.values()), max(sample.cpu(PS) for sample in window.samples)
    if together == 0 or hottest == 0:
        return empty_advice("no use of parameter servers was measured yet", *window.notes, waiting=True)
    cpu = max(_cpu_of_operations(request, len(used)), math.ceil(hottest) + CPU_MARGIN)
    free = cpu / (hottest * len(used) / MAX_PS)
    if len(used) > 1:
        rest = hottest - (math.fsum(used.values()) - hottest) / (len(used) - 1)
        free = min(free, cpu / rest) if rest > 0 else free
    seconds = one_worker_seconds(window, request.training)
    target = SHORT_WORKERS if seconds is not None and seconds <= SHORT_SECONDS else LONG_WORKERS
    workers = min(target, math.ceil(free * window.trainers))
    count = int(count_range(request.job, PS).clamp(math.ceil(workers / window.trainers * together / cpu)))
    if count == len(used):
        return empty_advice(f"{count} parameter servers are enough for {workers} workers", *window.notes)
    part = max(sample.memory(PS) for sample in window.samples) / count
    memory = (1 + MEMORY_MARGIN) * max(window.most("memory", PS), part)
    size = NodeSize(float(cpu), float(math.ceil(memory)) if memory else None)
    reason = (
        f"{window.trainers} workers make parameter servers use {together:.1f} cores, {workers} are expected"
    )
    return bound_advice(request.job, _with_notes(role_advice(PS, reason, count, size), window))


def optimize_job_ps_oom_resource(request: BrainRequest) -> Advice:
    """A parameter server ran out of memory.

    If one held much more than the others (a fifth of its memory more than the mean), each gets twice the
    memory. If all held about the same, there will be twice as many servers or, if so many are not allowed,
    each gets twice the memory.
    """
    job = request.job
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    if not any(node.oom for node in job.of(PS)):
        return empty_advice("no parameter server ran out of memory")
    servers = frozenset(node.name for node in job.of(PS))
    samples = [sample for sample in valid_samples(job.samples).samples if sample.names(PS) == servers]
    held = [node.memory for node in samples[-1].of(PS)] if samples else []
    largest = max((node.resource.memory or 0.0 for node in job.of(PS)), default=0.0)
    most = max([largest, job.roles[PS].resource.memory or 0.0, *held])
    unbalanced = bool(held) and max(held) > 0 and (max(held) - mean(held)) / max(held) > UNBALANCED
    doubled_count, may_double = 2 * job.roles[PS].count, 2 * job.roles[PS].count <= count_range(job, PS).high
    allowed = size_range(job, PS, "memory", largest).high
    if may_double and (most >= allowed or (held and not unbalanced)):
        reason = (
            "one ran out of memory, and all hold about the same"
            if held
            else "one ran out of the most memory there is"
        )
        return bound_advice(job, role_advice(PS, reason, doubled_count), tolerance=0.0)
    reason = (
        "one ran out of memory, and holds more than the others" if unbalanced else "one ran out of memory"
    )
    return bound_advice(job, role_advice(PS, reason, size=NodeSize(memory=2 * most)), tolerance=0.0)


def optimize_job_ps_resource_util(request: BrainRequest) -> Advice:
    """Idle parameter servers give cores back if others are overloaded and the job takes another hour.

    If there are at least 32 workers and a server uses more than 80 % of its cores, or if a server uses 25.6
    cores, each server that used less than 40 % gets ⌈most used⌉ + 4 cores and 1.2 · the memory used, if that
    is less than it has (upstream may also give it more).
    """
    window = sample_window(request.job, RECORDS)
    if isinstance(window, Advice):
        return window
    steps, speed = request.training.steps, window.speed
    if steps is None or speed == 0:
        return empty_advice("how long the job will go on is not known", *window.notes)
    remaining = (steps - window.samples[-1].step) / speed
    if remaining < MIN_REMAINING:
        return empty_advice(f"the job ends in about {max(0.0, remaining):.0f} s", *window.notes)
    used = window.mean_cpu(PS)
    busiest = max(
        (used[n.name] / cpu for n in request.job.of(PS) if (cpu := window.ps_cpu(n)) > 0), default=0.0
    )
    if not (window.trainers >= TARGET_WORKERS and busiest > OVERLOAD) and max(used.values()) < FULL_CPU:
        return empty_advice("no parameter server is at its end", *window.notes)
    advice = _returned(window)
    if advice.empty:
        return empty_advice("no parameter server is idle", *window.notes)
    return bound_advice(request.job, _with_notes(advice, window))


def _hot_cpu(window: SampleWindow) -> Advice:
    job, used = window.job, window.mean_cpu(PS)
    sizes = {node.name: window.ps_cpu(node) for node in job.of(PS)}
    hot = [name for name, cpu in sizes.items() if cpu > 0 and used[name] / cpu > HOT_CPU]
    if not hot:
        return empty_advice()
    most = {name: size_range(job, PS, "cpu", sizes[name]).high for name in hot}
    ratio = min(TARGET_WORKERS / window.trainers, *(most[name] / used[name] for name in hot))
    desired_cores = {name: math.ceil(used[name] * ratio) for name in sizes}
    grown = {name: NodeSize(cpu=float(cpu)) for name, cpu in desired_cores.items() if cpu > sizes[name]}
    reason = (
        f"{', '.join(hot)} used more than {HOT_CPU:.0%} of its cores; all get {ratio:.2g} times what they use"
    )
    return Advice({}, grown, dict.fromkeys(grown, reason))


def _hot_memory(window: SampleWindow) -> Advice:
    sizes: dict[str, NodeSize] = {}
    for node in window.job.of(PS):
        has = node.resource.memory or 0.0
        used = [
            usage.memory for sample in window.samples for usage in sample.nodes if usage.name == node.name
        ]
        if has > 0 and min(used) > HOT_MEMORY * has:
            sizes[node.name] = NodeSize(memory=has + min(has, HOT_MEMORY_STEP))
    reason = f"it used more than {HOT_MEMORY:.0%} of its memory in the {RECORDS} newest samples"
    return Advice({}, sizes, dict.fromkeys(sizes, reason))


def _returned(window: SampleWindow) -> Advice:
    sizes: dict[str, NodeSize] = {}
    for node in window.job.of(PS):
        used = [usage for sample in window.samples for usage in sample.nodes if usage.name == node.name]
        has, cpu = node.resource, max(usage.cpu for usage in used)
        if has.cpu and cpu / has.cpu < IDLE:
            desired_cores = math.ceil(cpu) + CPU_MARGIN
            memory = math.ceil((1 + MEMORY_MARGIN) * max(usage.memory for usage in used))
            sizes[node.name] = NodeSize(
                cpu=desired_cores if desired_cores < has.cpu else None,
                memory=float(memory) if 0 < memory < (has.memory or 0.0) else None,
            )
    reason = f"it used less than {IDLE:.0%} of its cores while others are at their end"
    return Advice({}, sizes, dict.fromkeys(sizes, reason))


def _created(job: OptimizerJob, count: int, size: NodeSize, reason: str) -> Advice:
    """Advice for a new job that keeps what the user gave, and leaves half of the limits to workers."""
    role = job.roles.get(PS)
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    if role is None:
        return empty_advice("the job has no parameter servers")
    open_size = first_size(job, PS, size)
    fresh = open_size.over(role.resource)
    room = [job.limits.of(a) / 2 / value for a in SIZES if (value := fresh.amount(a) or 0.0) > 0]
    most = max(1, math.floor(min(room, default=count)))
    return bound_advice(
        job, role_advice(PS, reason, min(count, most) if role.count == 0 else None, open_size), tolerance=0.0
    )


def _most_mean_cpu(samples: tuple[JobSample, ...]) -> float:
    used: dict[str, list[float]] = {}
    for sample in samples:
        for node in sample.of(PS):
            used.setdefault(node.name, []).append(node.cpu)
    return max((mean(values) for values in used.values()), default=0.0)


def _cpu_of_operations(request: BrainRequest, servers: int) -> float:
    operations = request.training.recv_ops / servers
    if operations <= 0:
        return 0.0
    return (
        math.ceil(CPU_PER_RECV_OP * operations) + CPU_MARGIN if operations <= MAX_RECV_OPS else MANY_RECV_CPU
    )


def _with_notes(advice: Advice, window: SampleWindow) -> Advice:
    return merge_advice(advice, empty_advice(*window.notes))
