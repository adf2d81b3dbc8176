"""What a master tells everybody who reaches it, without the job's token: Prometheus metrics, and the figures
of `edl top`. Both are read from the state at each request."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.monitoring import master as declared
from edl_workflows.core.monitoring.durations import DurationCounts
from edl_workflows.core.protocol.training import LiveFigures
from edl_workflows.runtime.process.metrics import (
    make_counter_family,
    make_gauge_family,
    make_histogram_family,
)
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.nodes import fault_steps


def render_metrics(master: Master) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Reader(master))
    return generate_latest(registry)


def measure_job(master: Master) -> LiveFigures:
    """The job's figures now."""
    state, now = master.state, master.now()
    statistics = state.volatile.statistics
    usage = statistics.usage.values()
    return LiveFigures(
        time=now,
        step=state.steps.step,
        speed=statistics.speed,
        records=views.records_done(state),
        records_per_second=statistics.records_per_second,
        records_total=views.records_total(state),
        goodput=state.goodput.ratio(now),
        memory=sum(node.memory for node in usage) if usage else None,
        metrics=statistics.metrics,
    )


class _Reader(Collector):
    def __init__(self, master: Master) -> None:
        self._master = master

    def collect(self) -> Iterator[MetricFamily]:
        state, now = self._master.state, self._master.now()
        active, goodput, speed = state.versions.active, state.goodput, state.volatile.statistics.speed
        useful = goodput.parts(now).get(TimeCause.TRAINING, 0.0)
        for metric, value in (
            (declared.STEP, state.steps.step),
            (declared.SPEED, speed),
            (declared.STEP_SECONDS, 1 / speed if speed else 0.0),
            (declared.GOODPUT, goodput.ratio(now)),
            (declared.USEFUL, useful),
            (declared.REDONE, goodput.redone),
            (declared.ELAPSED, goodput.elapsed(now)),
            (declared.HANGING, bool(state.hangs.since)),
            (declared.FAILED_SAVES, state.checkpoints.failing.row),
            (declared.RECORDS_DONE, views.records_done(state)),
            (declared.VERSION, active.number if active else 0),
            (declared.COMMITS, self._master.commits),
        ):
            family = make_gauge_family(metric)
            family.add_metric((), float(value))
            yield family
        failures = make_counter_family(declared.SAVE_FAILURES)
        failures.add_metric((), state.checkpoints.failing.total)
        yield failures
        yield self._divide_time()
        yield self._count_nodes()
        yield self._count_restarts()
        yield from self._count_pauses()
        yield from self._measure_data()
        yield self._measure_stragglers()
        yield from self._measure_usage()

    def _divide_time(self) -> MetricFamily:
        spent = make_gauge_family(declared.TIME)
        parts = self._master.state.goodput.parts(self._master.now())
        for cause in TimeCause:
            spent.add_metric((cause,), parts.get(cause, 0.0))
        return spent

    def _count_nodes(self) -> MetricFamily:
        nodes = make_gauge_family(declared.NODES)
        counted = Counter((node.type, str(node.status)) for node in self._master.state.nodes)
        for labels, count in sorted(counted.items()):
            nodes.add_metric(labels, count)
        return nodes

    def _count_restarts(self) -> MetricFamily:
        restarts = make_counter_family(declared.RESTARTS)
        for cause, count in sorted(self._master.state.restarts.counts.items()):
            restarts.add_metric((cause,), count)
        return restarts

    def _count_pauses(self) -> Iterator[MetricFamily]:
        pauses = self._master.state.volatile.statistics.pauses
        faults: dict[tuple[str, ...], DurationCounts] = {
            ("hang",): pauses.hangs,
            ("absence",): pauses.absences,
        }
        yield make_histogram_family(declared.STALL_SECONDS, {(): pauses.stalls})
        yield make_histogram_family(declared.DETECTION_SECONDS, faults)
        yield make_histogram_family(declared.RESTORE_SECONDS, {(): pauses.restores})
        yield make_histogram_family(declared.BLOCKING_SECONDS, {(): pauses.blocking})

    def _measure_data(self) -> Iterator[MetricFamily]:
        done = make_gauge_family(declared.DATASET_DONE)
        total = make_gauge_family(declared.DATASET_RECORDS)
        for progress in self._master.state.shards.all_progress():
            done.add_metric((progress.name,), progress.records_done)
            if progress.records_total is not None:
                total.add_metric((progress.name,), progress.records_total)
        yield done
        yield total

    def _measure_stragglers(self) -> MetricFamily:
        slow = make_gauge_family(declared.STRAGGLERS)
        for node, ratio in fault_steps.find_stragglers(self._master.state).items():
            slow.add_metric((node,), ratio)
        return slow

    def _measure_usage(self) -> Iterator[MetricFamily]:
        cpu = make_gauge_family(declared.NODE_CPU)
        memory = make_gauge_family(declared.NODE_MEMORY)
        for node, usage in sorted(self._master.state.volatile.statistics.usage.items()):
            cpu.add_metric((node,), usage.cpu)
            memory.add_metric((node,), usage.memory)
        yield cpu
        yield memory
