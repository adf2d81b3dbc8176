"""A checkpoint of parameter servers, read outside of its job, means what it meant in the job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import export_safetensors, open_model
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from tests.unit.training.test_tf_layout import ROWS, WIDTH, Servers, adapter, forget_layout, store

__all__ = ["adapter", "store"]

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]  # the import alone takes long

IDS = np.array([[0, 1, 2, 3], [17, 9_999, 20_001, ROWS - 1]])


def looked_up_by_mod(adapter: Any, _servers: int) -> Any:
    """TensorFlow's default, of ``tf.compat.v1.nn.embedding_lookup``."""
    return adapter.tf1.nn.embedding_lookup(table(adapter), IDS)


def looked_up_by_div(adapter: Any, _servers: int) -> Any:
    """The other strategy."""
    return adapter.tf1.nn.embedding_lookup(table(adapter), IDS, partition_strategy="div")


def looked_up_both_ways(adapter: Any, _servers: int) -> Any:
    """One table, looked up with the defaults of both versions of TensorFlow's API, which differ, and of
    sparse ids."""
    tf, tf1 = adapter.tf, adapter.tf1
    sparse = tf1.sparse.from_dense(IDS)
    one = table(adapter)
    means = [
        tf1.nn.embedding_lookup_sparse(one, sparse, None, combiner="mean"),
        tf.nn.embedding_lookup_sparse(one, sparse, None, combiner="mean"),
        tf1.nn.safe_embedding_lookup_sparse(one, sparse, None, combiner="mean"),
    ]
    return tf.concat([tf1.nn.embedding_lookup(one, IDS[0]), tf.nn.embedding_lookup(one, IDS[0]), *means], 0)


def used_densely(adapter: Any, _servers: int) -> Any:
    """Looked up, and multiplied as a whole."""
    one = table(adapter)
    whole = adapter.tf.matmul(adapter.tf.one_hot(IDS[0], ROWS), adapter.tf.convert_to_tensor(one))
    return adapter.tf.concat([whole, adapter.tf1.nn.embedding_lookup(one, IDS[0])], 0)


def table(adapter: Any, **kwargs: Any) -> Any:
    """A table of 640 kB, which the adapter cuts."""
    return adapter.tf1.get_variable("table", (ROWS, WIDTH), **kwargs)


BUILDS = [looked_up_by_mod, looked_up_by_div, looked_up_both_ways, used_densely]


@pytest.mark.parametrize("build", BUILDS)
def test_plain_graph_reads_the_same_rows(
    adapter: Any, store: CheckpointStore, build: Callable[[Any, int], Any]
) -> None:
    """The same program in a single process without this library, whose table is one variable, reads the
    checkpoint with TensorFlow's own Saver and predicts what the job predicted."""
    with Servers(adapter, store, 2, build) as servers:
        expected = servers.looked_up()
        ref = servers.save()
        assert servers.graph.layout["table"].parts == [3, 1]
    tf, tf1 = adapter.tf, adapter.tf1
    with tf.Graph().as_default(), tf1.Session() as session:
        rows = build(adapter, 0)
        tf1.train.Saver().restore(session, f"{ref.uri}/{adapter.MODEL_FILE}")
        assert session.run(rows).tolist() == expected


def cut_by_program(strategy: str) -> Callable[[Any, int], Any]:
    """A program with a partitioner and a strategy of its own, which it has in every process."""

    def build(adapter: Any, _servers: int) -> Any:
        cut = table(adapter, partitioner=adapter.tf1.fixed_size_partitioner(5))
        return adapter.tf1.nn.embedding_lookup(cut, IDS, partition_strategy=strategy)

    build.__name__ = f"cut_by_program_{strategy}"
    return build


def cut_by_servers(adapter: Any, servers: int) -> Any:
    """A program that cuts by the number of servers, of which there are none outside of the job."""
    partitioner = adapter.tf1.fixed_size_partitioner(servers) if servers else None
    return adapter.tf1.nn.embedding_lookup(table(adapter, partitioner=partitioner), IDS)


EVERY_BUILD = [*BUILDS, cut_by_program("mod"), cut_by_program("div"), cut_by_servers]


def model_of(adapter: Any, build: Callable[[Any, int], Any]) -> Callable[[], Any]:
    """The program's function that builds its model, with a slot of an optimizer for the table."""

    def made() -> Any:
        tf1 = adapter.tf1
        rows = tf1.identity(build(adapter, 0), name="rows")
        users = tf1.placeholder(tf1.int64, [None], name="users")
        tf1.cast(users, tf1.float32, name="not_asked")
        tf1.multiply(rows, tf1.cast(tf1.size(users), tf1.float32), name="scaled")
        clicked = tf1.placeholder(tf1.float32, [None])
        step = tf1.assign_add(tf1.train.get_global_step(), 1).op
        return adapter.Model(step, tf1.reduce_sum(rows), {"users": users, "clicked": clicked})

    return made


def in_tensorflow(servers: Servers) -> CheckpointRef:
    """Saved in TensorFlow's own format."""
    return servers.save()


def in_two_stages(servers: Servers) -> CheckpointRef:
    """Saved as the agent saves it, with ``async_save``."""
    state = servers.graph.state(servers.session)
    return servers.store.publish(7, lambda folder: tensors.save(folder, state), variables=state.layout)


@pytest.mark.parametrize("save", [in_tensorflow, in_two_stages])
@pytest.mark.parametrize("build", EVERY_BUILD)
def test_opened_model_predicts_what_the_job_predicted(
    adapter: Any,
    store: CheckpointStore,
    build: Callable[[Any, int], Any],
    save: Callable[[Servers], CheckpointRef],
    tmp_path: Path,
) -> None:
    """However a table is cut and looked up, and in whatever format it is saved: `open_model` with the
    program's function computes in one process what the job computed, and in numpy and in safetensors each
    id's row is in its place."""
    with Servers(adapter, store, 2, build) as servers:
        expected = servers.looked_up()
        ref = save(servers)
    with open_model(ref, model_of(adapter, build)) as model:
        assert model.run("rows:0").tolist() == expected
        assert model.run("scaled:0", users=[1, 1]).tolist() == (2 * np.array(expected)).tolist()
        assert model.checkpoint.step == ref.step
        ordered = model.tensors["table"]
    first = np.reshape(expected, (-1, WIDTH))[: len(IDS[0])].tolist()
    assert ordered[IDS[0]].tolist() == first
    assert open_model(ref).tensors["table"].tolist() == ordered.tolist()
    export_safetensors(ref, tmp_path / "model.safetensors")
    assert tensors.load(tmp_path / "model.safetensors").tensors["table"].tolist() == ordered.tolist()


@pytest.mark.parametrize("build", [looked_up_both_ways, used_densely, cut_by_program("mod")])
def test_saved_model_predicts_what_the_job_predicted(
    adapter: Any, store: CheckpointStore, build: Callable[[Any, int], Any], tmp_path: Path
) -> None:
    """The exported SavedModel predicts the same, and a reader needs neither this library nor the program."""
    with Servers(adapter, store, 2, build) as servers:
        expected = servers.looked_up()
        ref = servers.save()
    with open_model(ref, model_of(adapter, build)) as model:
        model.export_saved_model(tmp_path / "saved", {"rows": "rows:0", "scaled": "scaled:0"})
    assert served(adapter, tmp_path / "saved", users=[1, 1]) == (expected, (2 * np.array(expected)).tolist())


def served(adapter: Any, folder: Path, users: list[int]) -> tuple[Any, Any]:
    """What a SavedModel predicts, for a reader that knows nothing of this library. Its only input is the one
    on which the predictions depend."""
    serve = adapter.tf.saved_model.load(str(folder)).signatures["serving_default"]
    with adapter.tf.init_scope():
        predicted = serve(users=adapter.tf.constant(users, adapter.tf.int64))
        return predicted["rows"].numpy().tolist(), predicted["scaled"].numpy().tolist()


def test_order_that_is_not_known_is_refused(adapter: Any, store: CheckpointStore) -> None:
    """A checkpoint of a version that did not record the order of the rows is not read by name without the
    program, which knows it."""
    with Servers(adapter, store, 3, cut_by_servers) as servers:
        expected = servers.looked_up()
        ref = forget_layout(servers.save())
    with pytest.raises(CheckpointError, match=r"table is cut into 3 parts.*open_model\(checkpoint, build\)"):
        open_model(ref).tensors["table"]
    with open_model(ref, model_of(adapter, looked_up_by_mod)) as model:
        assert model.run("rows:0").tolist() == model.tensors["table"][IDS].tolist() == expected


def test_other_strategy_than_in_the_job_is_refused(adapter: Any, store: CheckpointStore) -> None:
    """A program that looks up a table that it cuts itself in another way than the job did would read other
    rows: its checkpoint is not opened, and not restored by a job."""
    mod, div = cut_by_program("mod"), cut_by_program("div")
    with Servers(adapter, store, 2, mod) as servers:
        ref = servers.save()
    with pytest.raises(CheckpointError, match="variable table: its rows are in the order 'mod'"):
        open_model(ref, model_of(adapter, div))
    with (
        Servers(adapter, store, 2, div) as others,
        pytest.raises(CheckpointError, match="in the order 'mod'"),
    ):
        others.restore(ref)


def test_table_that_a_program_looks_up_in_two_ways_has_no_order(adapter: Any, store: CheckpointStore) -> None:
    """A table that a program cuts itself and looks up with both strategies is not read by name."""

    def build(adapter: Any, _servers: int) -> Any:
        cut = table(adapter, partitioner=adapter.tf1.fixed_size_partitioner(5))
        adapter.tf1.nn.embedding_lookup(cut, IDS, partition_strategy="div")
        return adapter.tf1.nn.embedding_lookup(cut, IDS)

    with Servers(adapter, store, 2, build) as servers:
        expected = servers.looked_up()
        ref = servers.save()
    with pytest.raises(CheckpointError, match="ambiguous"):
        open_model(ref).tensors["table"]
    with open_model(ref, model_of(adapter, build)) as model:
        assert model.run("rows:0").tolist() == expected


def test_newest_checkpoint_of_a_folder_is_opened(
    adapter: Any, store: CheckpointStore, tmp_path: Path
) -> None:
    """The place may be that of one checkpoint or of all; slots of the optimizer are there by name, and errors
    name what is wrong."""
    with pytest.raises(CheckpointError, match="there is no complete checkpoint"):
        open_model(store.folder)
    with Servers(adapter, store, 2, looked_up_by_mod) as servers:
        ref = servers.save()
        newest = servers.save()
    assert open_model(str(store.folder)).checkpoint == newest
    assert open_model(ref.uri).checkpoint == ref
    assert set(open_model(ref).tensors) == {"table", "global_step"}
    with pytest.raises(KeyError):
        open_model(ref).tensors["other"]
    with open_model(ref, model_of(adapter, looked_up_by_mod)) as model:
        with pytest.raises(InvalidError, match="an output is no tensor of the graph"):
            model.export_saved_model(tmp_path / "saved", {"rows": "nothing:0"})
        with pytest.raises(InvalidError, match="exists already"):
            model.export_saved_model(tmp_path, {"rows": "rows:0"})
    own = store.publish(9, lambda folder: (folder / "model.npz").write_bytes(b"npz"))
    with pytest.raises(CheckpointError, match=r"holds no tensors but files of its program: model\.npz"):
        list(open_model(own).tensors)
    assert (open_model(own).folder / "model.npz").read_bytes() == b"npz"
