"""The master's Prometheus metrics, read from the state when somebody asks."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edl_workflows.master.master import Master
from edl_workflows.master.state import views


def exposition(master: Master) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Reader(master))
    return generate_latest(registry)


class _Reader(Collector):
    def __init__(self, master: Master) -> None:
        self._master = master

    def collect(self) -> Iterator[Metric]:
        state = self._master.state
        active = state.versions.active
        for name, text, value in (
            ("edl_master_global_step", "Newest global step of the active version", state.steps.step),
            ("edl_master_steps_per_second", "Speed over the last minute", state.statistics.speed),
            ("edl_master_records_done", "Acknowledged records", views.records_done(state)),
            ("edl_master_cluster_version", "The version that trains", active.number if active else 0),
            ("edl_master_commits", "Writes of the state since this master started", self._master.commits),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        yield self._nodes()
        yield from self._usage()

    def _nodes(self) -> Metric:
        nodes = GaugeMetricFamily("edl_master_nodes", "Nodes by type and status", labels=("type", "status"))
        counted = Counter((node.type, str(node.status)) for node in self._master.state.nodes)
        for labels, count in sorted(counted.items()):
            nodes.add_metric(labels, count)
        return nodes

    def _usage(self) -> Iterator[Metric]:
        cpu = GaugeMetricFamily("edl_master_node_cpu_cores", "CPU that a node uses", labels=("node",))
        memory = GaugeMetricFamily(
            "edl_master_node_memory_mebibytes", "Memory that a node uses", labels=("node",)
        )
        for node, usage in sorted(self._master.state.statistics.usage.items()):
            cpu.add_metric((node,), usage.cpu)
            memory.add_metric((node,), usage.memory)
        yield cpu
        yield memory
