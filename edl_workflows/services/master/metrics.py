"""What a master tells everybody who reaches it, without the job's token: Prometheus metrics, and the figures
of `edl top`. Both are read from the state at each request."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.protocol.training import LiveFigures
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

    def collect(self) -> Iterator[Metric]:
        state, now = self._master.state, self._master.now()
        active, goodput, speed = state.versions.active, state.goodput, state.volatile.statistics.speed
        useful = goodput.parts(now).get(TimeCause.TRAINING, 0.0)
        for name, text, value in (
            ("edl_master_global_step", "Newest global step of the active version", state.steps.step),
            ("edl_master_steps_per_second", "Speed over the last minute", speed),
            ("edl_master_step_seconds", "Mean step over the last minute", 1 / speed if speed else 0.0),
            ("edl_master_goodput_ratio", "Useful over elapsed time", goodput.ratio(now)),
            ("edl_master_useful_seconds", "Training whose steps last", useful),
            ("edl_master_redone_seconds", "Training that was lost with its steps", goodput.redone),
            ("edl_master_elapsed_seconds", "Since the job began, unless suspended", goodput.elapsed(now)),
            ("edl_master_hanging", "1 while training stands still", bool(state.hangs.since)),
            (
                "edl_master_failed_saves",
                "Failed since the newest saved checkpoint",
                state.checkpoints.failing.row,
            ),
            ("edl_master_records_done", "Acknowledged records", views.records_done(state)),
            ("edl_master_cluster_version", "The version that trains", active.number if active else 0),
            ("edl_master_commits", "Writes of the state since this master started", self._master.commits),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        failed = state.checkpoints.failing.total
        yield CounterMetricFamily(
            "edl_master_save_failures", "Checkpoints that could not be saved", value=failed
        )
        yield self._divide_time()
        yield self._count_nodes()
        yield self._count_restarts()
        yield from self._measure_data()
        yield self._measure_stragglers()
        yield from self._measure_usage()

    def _divide_time(self) -> Metric:
        spent = GaugeMetricFamily(
            "edl_master_time_seconds", "Time since the job was created, by cause", labels=("cause",)
        )
        parts = self._master.state.goodput.parts(self._master.now())
        for cause in TimeCause:
            spent.add_metric((cause,), parts.get(cause, 0.0))
        return spent

    def _count_nodes(self) -> Metric:
        nodes = GaugeMetricFamily("edl_master_nodes", "Nodes by type and status", labels=("type", "status"))
        counted = Counter((node.type, str(node.status)) for node in self._master.state.nodes)
        for labels, count in sorted(counted.items()):
            nodes.add_metric(labels, count)
        return nodes

    def _count_restarts(self) -> Metric:
        restarts = CounterMetricFamily("edl_master_restarts", "Restarts by cause", labels=("cause",))
        for cause, count in sorted(self._master.state.restarts.counts.items()):
            restarts.add_metric((cause,), count)
        return restarts

    def _measure_data(self) -> Iterator[Metric]:
        done = GaugeMetricFamily(
            "edl_master_dataset_records_done", "Acknowledged records of all epochs", labels=("dataset",)
        )
        total = GaugeMetricFamily(
            "edl_master_dataset_records", "Records of all epochs, where there is an end", labels=("dataset",)
        )
        for progress in self._master.state.shards.all_progress():
            done.add_metric((progress.name,), progress.records_done)
            if progress.records_total is not None:
                total.add_metric((progress.name,), progress.records_total)
        yield done
        yield total

    def _measure_stragglers(self) -> Metric:
        slow = GaugeMetricFamily(
            "edl_master_straggler_ratio", "How many times slower than the median", labels=("node",)
        )
        for node, ratio in fault_steps.find_stragglers(self._master.state).items():
            slow.add_metric((node,), ratio)
        return slow

    def _measure_usage(self) -> Iterator[Metric]:
        cpu = GaugeMetricFamily("edl_master_node_cpu_cores", "CPU that a node uses", labels=("node",))
        memory = GaugeMetricFamily(
            "edl_master_node_memory_mebibytes", "Memory that a node uses", labels=("node",)
        )
        for node, usage in sorted(self._master.state.volatile.statistics.usage.items()):
            cpu.add_metric((node,), usage.cpu)
            memory.add_metric((node,), usage.memory)
        yield cpu
        yield memory
