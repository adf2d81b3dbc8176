"""How a graph's variables are cut: the same from the first checkpoint on, however many parameter servers
there are."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import VariableLayout, describe_difference
from tests.unit.training.fake_master import cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]  # the import alone takes long

ROWS, WIDTH = 40_000, 4
"""640 kB: three parts by size."""
IDS = np.array([0, 1, 2, 3, 17, 9_999, 20_001, ROWS - 1])


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.training.frameworks import tensorflow

    return tensorflow


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """An empty folder."""
    return CheckpointStore(tmp_path)


class Servers:
    """A model on so many parameter servers, which in this test are devices of one process."""

    def __init__(
        self,
        adapter: Any,
        store: CheckpointStore,
        count: int,
        build: Callable[[Any, int], Any] | None = None,
        partitions: int = 0,
    ) -> None:
        self.adapter, self.store = adapter, store
        self.job: Any = SimpleNamespace(node=NodeRef(type="worker", id=0), rank=0, holds=lambda _ref: False)

        def model() -> Any:
            rows = (build or looked_up)(adapter, count)
            self.rows = rows
            step = adapter.tf1.train.get_global_step()
            return adapter.Model(adapter.tf1.assign_add(step, 1).op, adapter.tf1.reduce_sum(rows), {})

        layout = adapter._layout_to_keep(store)
        self.graph = adapter._Graph(self.job, cluster(1, ps=count), model, partitions, layout)

    def __enter__(self) -> Self:
        # The graph's devices are those of a cluster; this session has one device, and takes it for all of
        # them.
        for operation in self.graph.graph.get_operations():
            operation._set_device("")
        self.context = self.graph.graph.as_default()  # as in a training program, which has no eager execution
        self.context.__enter__()
        self.session = self.adapter.tf1.Session(graph=self.graph.graph)
        self.session.run(self.graph.initialise)
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.context.__exit__(None, None, None)

    def save(self) -> CheckpointRef:
        """Save in TensorFlow's own format."""
        ref: CheckpointRef = self.graph.save(self.session, self.store)
        return ref

    def restore(self, ref: CheckpointRef) -> None:
        """Restore."""
        self.graph.restore(self.session, ref, self.job, self.store)

    def looked_up(self) -> list[list[float]]:
        """What the model finds for some ids."""
        found: list[list[float]] = self.session.run(self.rows).tolist()
        return found


def looked_up(adapter: Any, _servers: int) -> Any:
    """A table, looked up as TensorFlow does it by default."""
    table = adapter.tf1.get_variable("table", (ROWS, WIDTH))
    return adapter.tf1.nn.embedding_lookup(table, IDS)


def cut_by_servers(adapter: Any, servers: int) -> Any:
    """The same with a partitioner of the program's own, which asks how many servers there are."""
    partitioner = adapter.tf1.fixed_size_partitioner(servers)
    table = adapter.tf1.get_variable("table", (ROWS, WIDTH), partitioner=partitioner)
    return adapter.tf1.nn.embedding_lookup(table, IDS)


def table_a_server(adapter: Any, servers: int) -> Any:
    """Tables that the program itself makes, one for each server."""
    rows = -(-ROWS // servers)
    tables = [adapter.tf1.get_variable(f"table_{i}", (rows, WIDTH)) for i in range(servers)]
    return adapter.tf1.nn.embedding_lookup(tables, IDS)


@pytest.mark.parametrize("build", [looked_up, cut_by_servers])
def test_lookups_find_the_same_rows_however_many_servers_there_are(
    adapter: Any, store: CheckpointStore, build: Callable[[Any, int], Any]
) -> None:
    """Embeddings that are restored on 1, 2, 3 and 2 servers in turn give the same lookups."""
    with Servers(adapter, store, 1, build) as first:
        expected = first.looked_up()
        ref = first.save()
    for count in (2, 3, 2):
        with Servers(adapter, store, count, build) as servers:
            servers.restore(ref)
            assert servers.looked_up() == expected
            ref = servers.save()


def test_parts_are_spread_over_all_servers(adapter: Any, store: CheckpointStore) -> None:
    """The parts of a large table are spread over all servers. A small variable is not partitioned."""

    def build(adapter: Any, servers: int) -> Any:
        adapter.tf1.get_variable("small", (100, 4))
        return looked_up(adapter, servers)

    graph = Servers(adapter, store, 3, build).graph
    assert graph.layout["table"].parts == [3, 1]
    assert graph.layout["small"].parts == [1, 1]
    variables = graph.graph.get_collection("variables")
    devices = {variable.device for variable in variables if variable.op.name.startswith("table")}
    assert len(devices) == 3


def test_checkpoint_of_an_earlier_version_keeps_its_cut(adapter: Any, store: CheckpointStore) -> None:
    """Earlier versions partitioned each variable by the number of servers, looked it up with the program's
    strategy, and recorded neither. The partitions are read from TensorFlow's index, and lookups give the same
    values."""
    with Servers(adapter, store, 2, cut_by_servers) as former:
        expected = former.looked_up()
        ref = forget_layout(former.save())
    with Servers(adapter, store, 3) as servers:
        assert servers.graph.layout["table"].parts == [2, 1]
        servers.restore(ref)
        assert servers.looked_up() == expected


def test_former_two_stage_checkpoint_is_refused_until_its_cut_is_said(
    adapter: Any, store: CheckpointStore
) -> None:
    """A checkpoint in safetensors' format of an earlier version does not say how its variables were
    partitioned. It is rejected, and the error says what to set."""
    with Servers(adapter, store, 2, cut_by_servers) as former:
        expected = former.looked_up()
        state = former.graph.state(former.session)
        ref = store.publish(3, lambda folder: adapter_save(folder, state))
    with (
        Servers(adapter, store, 3) as servers,
        pytest.raises(CheckpointError, match=r"set TrainingOptions\(partitions=…\)"),
    ):
        servers.restore(ref)
    with Servers(adapter, store, 3, partitions=2) as servers:
        servers.job.state = servers_state(store)
        servers.restore(ref)
        assert servers.looked_up() == expected


@pytest.mark.parametrize("servers", [1, 3])
def test_table_a_server_is_refused(adapter: Any, store: CheckpointStore, servers: int) -> None:
    """A program that creates one variable for each server has another model with another number of servers.
    Its checkpoint is not restored with more or fewer servers, and the error names the variable."""
    with Servers(adapter, store, 2, table_a_server) as former:
        ref = former.save()
    with (
        Servers(adapter, store, servers, table_a_server) as others,
        pytest.raises(CheckpointError, match="can't be restored into this model: variable table_"),
    ):
        others.restore(ref)


def test_differences_are_named() -> None:
    """The first variable that differs is named, with its difference."""
    table = VariableLayout(shape=[10, 2], parts=[2, 1])
    assert describe_difference({"a": table}, {"a": table}) == ""
    assert describe_difference({"a": table}, {}) == "variable a: the checkpoint has it, the model does not"
    assert describe_difference({}, {"a": table}) == "variable a: the model has it, the checkpoint does not"
    wider = VariableLayout(shape=[10, 3], parts=[2, 1])
    assert "its shape is (10, 2) in the checkpoint and (10, 3) in the model" in describe_difference(
        {"a": table}, {"a": wider}
    )
    finer = VariableLayout(shape=[10, 2], parts=[3, 1])
    assert "it is cut into 2 x 1 parts in the checkpoint and 3 x 1 in the model" in describe_difference(
        {"a": table}, {"a": finer}
    )
    assert describe_difference({"a": VariableLayout()}, {"a": table}) == ""


@pytest.mark.parametrize("content", [b"", b"no table", b"\x00" * 48, bytes(range(256))])
def test_damaged_index_is_named(adapter: Any, tmp_path: Path, content: bytes) -> None:
    """A file that is not the index of a TensorFlow checkpoint raises CheckpointError with its path, whatever
    it contains."""
    from edl_workflows.training.frameworks.tf1.tf_layout import read_layout

    file = tmp_path / "model.ckpt.index"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not the index of a TensorFlow checkpoint"):
        read_layout(file)


@pytest.mark.parametrize(
    ("what", "in_two_stages", "lost"),
    [
        ("variable", False, ""),
        ("hidden variable", False, "VarHandleOp hidden is not saved with the checkpoints"),
        ("table", False, ""),
        (
            "table",
            True,
            "MutableHashTableV2 ids is not saved with the checkpoints, and would be lost; with async_save",
        ),
        ("table that is not saved", False, "MutableHashTableV2 ids is not saved"),
    ],
)  # fmt: skip
def test_state_outside_of_the_checkpoints_is_found(
    adapter: Any, what: str, in_two_stages: bool, lost: str
) -> None:
    """State that no checkpoint holds would be lost with its server. It is named before anyone plans a change
    of servers."""
    from edl_workflows.training.frameworks.tf1.tf_layout import unsaved_state

    tf, tf1 = adapter.tf, adapter.tf1
    with tf.Graph().as_default() as graph:
        tf1.get_variable("table", (10, 2))
        if what == "hidden variable":
            tf1.get_variable("hidden", (10, 2), collections=["mine"])
        if what.startswith("table"):
            tf.lookup.experimental.MutableHashTable(
                tf.string, tf.int64, -1, name="ids", checkpoint=what == "table"
            )
        found = unsaved_state(graph, in_two_stages=in_two_stages)
    assert found.startswith(lost)
    assert bool(found) == bool(lost)


def forget_layout(ref: CheckpointRef) -> CheckpointRef:
    """A checkpoint as a version saved it that recorded no layout."""
    manifest = Path(ref.uri) / "MANIFEST.json"
    content = json.loads(manifest.read_text())
    del content["variables"]
    manifest.write_text(json.dumps(content))
    return ref


def adapter_save(folder: Path, state: Any) -> None:
    """Write a state as the second stage does."""
    tensors.save(folder, state)


def servers_state(store: CheckpointStore) -> Callable[..., Any]:
    """`Job.state` of a job without shared memory."""

    @contextlib.contextmanager
    def state(ref: CheckpointRef, _store: CheckpointStore) -> Iterator[Any]:
        yield tensors.load(store.local(ref) / "state.safetensors")

    return state


def test_variables_on_one_server_are_named(adapter: Any) -> None:
    """Variables that are large enough to be cut, but were not made with `get_variable`, are named with their
    size, without the slots of their optimizer; so are tables whose rows are not in the order of the ids."""
    from edl_workflows.training.frameworks.tf1.tf_graph import ModelGraph
    from edl_workflows.training.frameworks.tf1.tf_partitions import (
        Partitions,
        partition_by_size,
        warn_of_layout,
    )

    tf, tf1 = adapter.tf, adapter.tf1

    def build() -> Any:
        table = tf1.get_variable("table", (ROWS, WIDTH))
        own = tf1.get_variable("own", (ROWS, WIDTH), partitioner=tf1.fixed_size_partitioner(2))
        plain = tf1.Variable(tf.zeros((2 * ROWS, WIDTH)), name="plain")
        tf1.Variable(tf.zeros((100, WIDTH)), name="small")
        layer = tf.keras.layers.Embedding(ROWS, WIDTH, name="layer")
        rows = [tf1.nn.embedding_lookup(variable, IDS) for variable in (table, own, plain)]
        loss = tf1.reduce_sum(tf.add_n(rows)) + tf1.reduce_sum(layer(IDS))
        return adapter.Model(tf1.train.AdagradOptimizer(1.0).minimize(loss), loss, {})

    graph = ModelGraph(build, Partitions(partition_by_size(16), None))
    spread, ordered = warn_of_layout(graph.graph, graph.layout)
    assert spread == (
        "on one parameter server each, however many there are: plain (1.2 MiB), layer/embeddings (0.6 MiB); "
        "only variables of tf.compat.v1.get_variable are spread, not those of tf.Variable or of Keras layers"
    )
    assert ordered == (
        "the program sets a partitioner and looks up with partition_strategy 'mod': own; their rows are "
        "not in the order of the ids in the checkpoints: read these with open_model of edl_workflows.training"
    )


def test_fingerprints_are_those_of_the_model_wherever_it_is(adapter: Any, store: CheckpointStore) -> None:
    """The sample of the variables is the same on 1, 2 and 3 servers, and another if one of its rows is, in a
    table or in the optimizer's slot for it."""

    def build(adapter: Any, servers: int) -> Any:
        rows = looked_up(adapter, servers)
        loss = adapter.tf1.reduce_sum(rows)
        adapter.tf1.train.AdagradOptimizer(1.0).minimize(loss)
        slots = [v for v in adapter.tf1.global_variables() if "Adagrad" in v.op.name]
        self.changes = [slots[0][0:1].assign(slots[0][0:1] + 1.0).op]
        return rows

    self = SimpleNamespace(changes=[])
    with Servers(adapter, store, 1, build) as first:
        expected = first.graph.fingerprints(first.session)
        assert {"table", "table/Adagrad", "global_step"} == expected.keys()
        ref = first.save()
    for count in (2, 3):
        with Servers(adapter, store, count, build) as servers:
            assert servers.graph.fingerprints(servers.session) != expected
            servers.restore(ref)
            assert servers.graph.fingerprints(servers.session) == expected
            servers.session.run(self.changes)
            changed = servers.graph.fingerprints(servers.session)
            assert [name for name in expected if changed[name] != expected[name]] == ["table/Adagrad"]
