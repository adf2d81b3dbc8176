"""The TensorFlow adapter's decisions; that it trains is shown in ``tests/e2e/test_agent_tensorflow.py``."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from tests.unit.training.fake_master import cluster

# The import alone takes long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.training.frameworks import tensorflow

    return tensorflow


def saved(store: CheckpointStore, step: int) -> CheckpointRef:
    """A complete checkpoint of some files."""
    return store.publish(step, lambda folder: (folder / "model.ckpt.index").write_text("index"), variables={})


def job(restore: CheckpointRef | None = None, node: str = "worker") -> Any:
    """What the adapter asks of a job."""
    return SimpleNamespace(node=NodeRef(type=node, id=0), cluster=cluster(2, ps=1, restore=restore))


def restored(adapter: Any, error: Exception) -> Any:
    """A graph's restore with a saver that raises."""

    def restore(_session: Any, _path: str) -> None:
        raise error

    graph = adapter._Graph.__new__(adapter._Graph)
    graph.graph = adapter.tf.Graph()
    graph.saver = SimpleNamespace(restore=restore)
    graph.layout = {}
    return graph


def test_checkpoint_of_another_model_is_named(adapter: Any, tmp_path: Path) -> None:
    """A complete checkpoint with other variables is reported to the master as not restorable, with the
    reason."""
    ref = saved(CheckpointStore(tmp_path), 10)
    error = adapter.tf.errors.NotFoundError(None, None, "Key w not found in checkpoint")
    told: list[tuple[CheckpointRef, CheckpointError]] = []

    def damaged(checkpoint: CheckpointRef, why: CheckpointError) -> None:
        told.append((checkpoint, why))

    worker = SimpleNamespace(
        start_from=lambda _store: ref,
        checkpoint_damaged=damaged,
        holds=lambda _ref: False,
        model_check=SimpleNamespace(confirm=lambda _evaluate, _fingerprint: ""),
    )
    adapter._set_values(worker, restored(adapter, error), None, CheckpointStore(tmp_path), keep=True)

    ((checkpoint, why),) = told
    assert checkpoint == ref
    assert f"{ref.uri}: can't be restored into this model: Key w not found" in str(why)


def graph_of(adapter: Any, parts: int, start: float, rows: int = 7) -> Any:
    """A graph with a matrix that is split into so many parts, a scalar and a global step."""
    tf, tf1 = adapter.tf, adapter.tf1
    graph = tf.Graph()
    with graph.as_default(), tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(parts)):
        matrix = tf1.get_variable("matrix", (rows, 3), initializer=tf1.constant_initializer(start))
        tf1.Variable(start, name="scale")
        step = tf1.train.get_or_create_global_step()
        counted = tf1.assign_add(step, 5)
        moved = [part.assign_add(tf.ones_like(part) * (i + 1)) for i, part in enumerate(matrix)]
    return SimpleNamespace(graph=graph, moved=[counted, *moved], variables=graph.get_collection("variables"))


def opened(adapter: Any, made: Any) -> Any:
    """A session in which the variables have their first values."""
    with made.graph.as_default():
        initialise = adapter.tf1.global_variables_initializer()
    made.graph.finalize()
    session = adapter.tf1.Session(graph=made.graph)
    session.run(initialise)
    return session


def values_of(session: Any, variables: list[Any]) -> dict[str, Any]:
    """The tensors that a state holds."""
    from edl_workflows.training.checkpoints.tensors import StateBlock, read_state
    from edl_workflows.training.frameworks.tf1.tf_state import GraphVariables

    block = StateBlock(GraphVariables(variables).state(session, 5))
    memory = bytearray(block.size)
    block.write(memoryview(memory))
    return dict(read_state(memoryview(memory), "memory").tensors)


def test_state_is_restored_with_another_number_of_servers(adapter: Any) -> None:
    """A variable that was partitioned over two servers is one tensor in the state, and is restored on three
    servers."""
    from edl_workflows.training.frameworks.tf1.tf_state import GraphVariables

    before, after = graph_of(adapter, 2, 1.5), graph_of(adapter, 3, 0.0)
    with opened(adapter, before) as session:
        session.run(before.moved)
        saved = values_of(session, before.variables)
    assert {"matrix", "scale", "global_step"} == set(saved)
    assert saved["matrix"][:, 0].tolist() == [2.5] * 4 + [3.5] * 3
    assert saved["global_step"] == 5

    with opened(adapter, after) as session:
        GraphVariables(after.variables).restore(session, saved, "here")
        restored = values_of(session, after.variables)
    assert {name: tensor.tolist() for name, tensor in saved.items()} == {
        name: tensor.tolist() for name, tensor in restored.items()
    }


def test_state_of_another_model_changes_nothing(adapter: Any) -> None:
    """A shape that differs, or a variable that is missing, is named before any variable is set."""
    from edl_workflows.training.frameworks.tf1.tf_state import GraphVariables

    mine, other = graph_of(adapter, 2, 1.0), graph_of(adapter, 2, 9.0, rows=8)
    with opened(adapter, other) as session:
        saved = values_of(session, other.variables)
    with opened(adapter, mine) as session:
        with pytest.raises(
            CheckpointError, match=r"variable matrix is float32 of shape \(7, 3\), in the checkpoint"
        ):
            GraphVariables(mine.variables).restore(session, saved, "here")
        del saved["matrix"]
        with pytest.raises(CheckpointError, match="in the checkpoint none"):
            GraphVariables(mine.variables).restore(session, saved, "here")
        assert values_of(session, mine.variables)["scale"] == 1.0


def test_lost_server_while_restoring_is_no_damage(adapter: Any, tmp_path: Path) -> None:
    """If a server is lost during a restore, the checkpoint is not reported as damaged, and the error reaches
    the caller like that of any step."""
    ref = saved(CheckpointStore(tmp_path), 10)
    error = adapter.tf.errors.UnavailableError(None, None, "socket closed")
    worker = SimpleNamespace(start_from=lambda _store: ref, holds=lambda _ref: False)
    with pytest.raises(adapter.tf.errors.UnavailableError):
        adapter._set_values(worker, restored(adapter, error), None, CheckpointStore(tmp_path), keep=True)


def test_evaluator_does_not_train(adapter: Any, tmp_path: Path) -> None:
    """An evaluator that runs the training program by mistake gets an error before the model is built."""
    build: Callable[[], Any] = lambda: pytest.fail("the model was built")
    with (
        pytest.raises(InvalidError, match="evaluator-0 does not train"),
        adapter.training(job(node="evaluator"), build, adapter.TrainingOptions(tmp_path)),
    ):
        pytest.fail("the block was entered")
