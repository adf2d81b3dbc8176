"""The TensorFlow adapter's decisions; that it trains is shown in ``tests/e2e/test_agent_tensorflow.py``."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.exceptions import CheckpointError, InvalidError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.nodes import NodeRef
from tests.unit.agent.fake_master import cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]  # the import alone takes long


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.agent import tensorflow

    return tensorflow


def saved(store: CheckpointStore, step: int) -> CheckpointRef:
    """A complete checkpoint of some files."""
    return store.publish(step, lambda folder: (folder / "model.ckpt.index").write_text("index"))


def job(restore: CheckpointRef | None = None, node: str = "worker") -> Any:
    """What the adapter asks of a job."""
    return SimpleNamespace(node=NodeRef(type=node, id=0), cluster=cluster(2, ps=1, restore=restore))


def restored(adapter: Any, error: Exception) -> Any:
    """A graph's restore with a saver that raises."""

    def restore(_session: Any, _path: str) -> None:
        raise error

    graph = adapter._Graph.__new__(adapter._Graph)
    graph._saver = SimpleNamespace(restore=restore)
    return graph


def test_checkpoint_of_another_model_is_named(adapter: Any, tmp_path: Path) -> None:
    """Whole files that hold other variables: the master hears that the checkpoint can't be restored, and why."""
    ref = saved(CheckpointStore(tmp_path), 10)
    error = adapter.tf.errors.NotFoundError(None, None, "Key w not found in checkpoint")
    told: list[tuple[CheckpointRef, CheckpointError]] = []

    def damaged(checkpoint: CheckpointRef, why: CheckpointError) -> None:
        told.append((checkpoint, why))

    worker = SimpleNamespace(start_from=lambda _store: ref, checkpoint_damaged=damaged)
    adapter._set_values(worker, restored(adapter, error), None, CheckpointStore(tmp_path), keep=True)

    ((checkpoint, why),) = told
    assert checkpoint == ref
    assert f"{ref.uri}: can't be restored into this model: Key w not found" in str(why)


def test_lost_server_while_restoring_is_no_damage(adapter: Any, tmp_path: Path) -> None:
    """The checkpoint is not to blame: the error goes through, as that of any step."""
    ref = saved(CheckpointStore(tmp_path), 10)
    error = adapter.tf.errors.UnavailableError(None, None, "socket closed")
    worker = SimpleNamespace(start_from=lambda _store: ref)
    with pytest.raises(adapter.tf.errors.UnavailableError):
        adapter._set_values(worker, restored(adapter, error), None, CheckpointStore(tmp_path), keep=True)


def test_evaluator_does_not_train(adapter: Any, tmp_path: Path) -> None:
    """An evaluator that runs the training program by mistake hears so at once."""
    build: Callable[[], Any] = lambda: pytest.fail("the model was built")
    with (
        pytest.raises(InvalidError, match="evaluator-0 does not train"),
        adapter.training(job(node="evaluator"), build, adapter.TrainingOptions(tmp_path)),
    ):
        pytest.fail("the block was entered")
