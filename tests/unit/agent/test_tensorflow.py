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


def test_masters_checkpoint_wins_over_a_newer_one(adapter: Any, tmp_path: Path) -> None:
    """Model and data position belong together, so the chief starts where the master says."""
    store = CheckpointStore(tmp_path)
    named = saved(store, 10)
    saved(store, 20)
    assert adapter._start_from(job(named), store) == named


def test_newest_checkpoint_of_the_folder_without_the_masters_word(adapter: Any, tmp_path: Path) -> None:
    """A job that is submitted again with the same folder goes on from there; with an empty one it begins anew."""
    store = CheckpointStore(tmp_path)
    assert adapter._start_from(job(), store) is None
    newest = saved(store, 20)
    assert adapter._start_from(job(), store) == newest


def test_torn_checkpoint_that_the_master_names_is_an_error(adapter: Any, tmp_path: Path) -> None:
    """Any other checkpoint would belong to another data position: the error says which file is torn."""
    store = CheckpointStore(tmp_path)
    saved(store, 5)
    named = saved(store, 10)
    (Path(named.uri) / "model.ckpt.index").write_text("in")
    with pytest.raises(CheckpointError, match=r"model\.ckpt\.index: torn: 2 bytes"):
        adapter._start_from(job(named), store)


def test_evaluator_does_not_train(adapter: Any, tmp_path: Path) -> None:
    """An evaluator that runs the training program by mistake hears so at once."""
    build: Callable[[], Any] = lambda: pytest.fail("the model was built")
    with (
        pytest.raises(InvalidError, match="evaluator-0 does not train"),
        adapter.training(job(node="evaluator"), build, adapter.TrainingOptions(tmp_path)),
    ):
        pytest.fail("the block was entered")
