"""From which checkpoint a training process starts, and what the master hears of damaged ones."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.core.protocol.training import CheckpointDamage, CheckpointRestore
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.restoring import CheckpointRestorer
from edl_workflows.training.checkpoints.snapshots import claim_folder
from edl_workflows.training.checkpoints.tensors import State, StateBlock, save
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, cluster, eventually
from tests.unit.training.test_snapshots import copied


@pytest.fixture
def job(master: FakeMaster, environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A process of version 1, which does not wait for long when it can't start."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    with Job(environment, 1, MasterClient(master.url, TOKEN)) as connected:
        yield connected


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """The job's checkpoints."""
    return CheckpointStore(tmp_path)


def saved(store: CheckpointStore, step: int, *, torn: bool = False) -> CheckpointRef:
    """A checkpoint of one file."""
    ref = store.publish(step, lambda folder: (folder / "model").write_text("weights"))
    if torn:
        (Path(ref.uri) / "model").write_text("w")
    return ref


def test_masters_checkpoint_wins_over_a_newer_one(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """Model and data position belong together, so a process starts where the master says."""
    named = saved(store, 10)
    saved(store, 20)
    master.say(active=cluster(1, restore=named))
    assert job.start_from(store) == named
    assert not master.got(CheckpointDamage)


@pytest.mark.parametrize("configured", [False, True])
def test_the_user_reads_where_training_continues(
    master: FakeMaster,
    job: Job,
    store: CheckpointStore,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    configured: bool,
) -> None:
    """The log has one line with the step, whether the program has set logging up or not."""
    caplog.set_level("INFO" if configured else "WARNING", "edl_workflows")
    named = saved(store, 10)
    master.say(active=cluster(1, restore=named))
    job.start_from(store)
    line = f"training continues at step 10, from {named.uri}"
    assert capsys.readouterr().err == ("" if configured else f"edl: {line}\n")
    assert [text for text in caplog.messages if "continues" in text] == ([line] if configured else [])


def test_newest_checkpoint_of_the_folder_without_the_masters_word(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """A job that is submitted again with the same folder continues from its newest checkpoint; with an empty
    folder it starts from the beginning."""
    master.say(active=cluster(1))
    assert job.start_from(store) is None
    newest = saved(store, 20)
    assert job.start_from(store) == newest


def test_the_master_hears_what_the_chief_found(master: FakeMaster, job: Job, store: CheckpointStore) -> None:
    """A checkpoint that the chief found by itself is reported with the data position of its manifest. A
    checkpoint that the master named is not reported."""
    position = {"datasets": {"train": {"epoch": 2}}}
    found = store.publish(7, lambda folder: (folder / "model").write_text("weights"), position=position)
    master.say(active=cluster(1, restore=found))
    assert job.start_from(store) == found
    assert not master.got(CheckpointRestore)

    master.say(active=cluster(1))
    eventually(lambda: job.cluster.restore is None)
    assert job.start_from(store) == found
    (told,) = master.got(CheckpointRestore)
    assert (told.uri, told.step, told.position) == (found.uri, 7, position)


def test_another_worker_tells_nothing(master: FakeMaster, job: Job, store: CheckpointStore) -> None:
    """Workers other than the chief may read the checkpoint, but only the chief reports which one the job
    starts from."""
    found = saved(store, 20)
    master.say(active=cluster(1, chief=3))
    assert job.start_from(store) == found
    assert not master.got(CheckpointRestore)


def test_a_data_position_that_the_master_can_not_read_is_damage(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """If the master can't read the data position, the process reports the checkpoint as damaged and ends:
    people decide whether to train with another data position."""
    found = saved(store, 20)
    master.refuses_positions = True
    master.say(active=cluster(1))
    with pytest.raises(SystemExit) as ended:
        job.start_from(store)
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE
    (damage,) = master.got(CheckpointDamage, uri=found.uri, instead=None)
    assert "MANIFEST.json" in damage.error
    assert "the data position is damaged" in damage.error


def test_a_process_whose_version_was_left_starts_from_nothing(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """If the version has changed, the master does not accept the report of the found checkpoint, and the
    process ends: the next version has another data position."""
    saved(store, 20)
    master.say(active=cluster(1))
    assert job.cluster.version == 1
    master.knows_node = False
    with pytest.raises(SystemExit):
        job.start_from(store)


def test_damaged_ones_are_passed_over_and_the_master_hears_of_them(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """The newest complete checkpoint is used. The master is told which file of which checkpoint is damaged,
    and what was used instead."""
    whole, torn = saved(store, 10), saved(store, 20, torn=True)
    master.say(active=cluster(1))

    assert job.start_from(store) == whole
    (damage,) = master.got(CheckpointDamage)
    assert (damage.uri, damage.instead) == (torn.uri, whole)
    assert f"{torn.uri}/model: torn" in damage.error


def named_torn(store: CheckpointStore) -> tuple[CheckpointRef | None, str]:
    saved(store, 5)
    named = saved(store, 10, torn=True)
    return named, named.uri


def all_torn(store: CheckpointStore) -> tuple[CheckpointRef | None, str]:
    saved(store, 5, torn=True)
    saved(store, 10, torn=True)
    return None, str(store.folder)


@pytest.mark.parametrize("make", [named_torn, all_torn])
def test_process_that_can_not_start_says_why_and_ends(
    master: FakeMaster,
    job: Job,
    store: CheckpointStore,
    make: Callable[[CheckpointStore], tuple[CheckpointRef | None, str]],
) -> None:
    """Another checkpoint than the one that the master named belongs to another data position, and without any
    checkpoint training would start from the beginning; people decide on both. The process reports the
    damage and ends."""
    named, uri = make(store)
    master.say(active=cluster(1, restore=named))

    with pytest.raises(SystemExit) as ended:
        job.start_from(store)

    assert ended.value.code == CLUSTER_LOST_EXIT_CODE
    (damage,) = master.got(CheckpointDamage)
    assert (damage.uri, damage.instead) == (uri, None)
    assert "model: torn: 1 bytes" in damage.error


def test_whole_checkpoint_of_another_model_is_reported_likewise(master: FakeMaster, job: Job) -> None:
    """A checkpoint that only the framework finds unusable is reported as damaged, too."""
    master.say(active=cluster(1))
    with pytest.raises(SystemExit):
        job.checkpoint_damaged(CheckpointRef(uri="/c/1", step=1), CheckpointError("/c/1: no variable w"))
    assert master.got(CheckpointDamage, uri="/c/1", error="/c/1: no variable w")


def test_refused_report_does_not_hold_the_process(
    master: FakeMaster, job: Job, store: CheckpointStore
) -> None:
    """If the master has moved on to another version, it rejects the report, and the process ends all the
    same."""
    master.say(active=cluster(1, restore=saved(store, 1, torn=True)))
    assert job.cluster.version == 1
    master.knows_node = False
    with pytest.raises(SystemExit):
        job.start_from(store)
    assert not master.got(CheckpointDamage)


@pytest.mark.parametrize("place", ["own", "of_peer"])
def test_nearest_copy_is_read(
    place: str, master: FakeMaster, environment: NodeEnvironment, store: CheckpointStore, tmp_path: Path
) -> None:
    """The checkpoint that the master names is read from this node's memory if a copy is there, its own or
    another node's; a copy of another checkpoint, or one that could not be persisted, is not taken for it."""
    memory = claim_folder(tmp_path / "memory")
    folder = memory if place == "own" else memory.of_peer
    folder.folder.mkdir(exist_ok=True)
    block = StateBlock(State.of(10, {"w": np.full(3, 10)}))
    held = bytearray(block.size)
    block.write(memoryview(held))
    kept = copied(folder, bytes(held), 10, place=store.place, stage="saved")
    failed = copied(folder, bytes(held), 11, place=store.place, stage="failed")
    assert kept is not None
    assert failed is not None
    with MasterClient(master.url, TOKEN) as client:
        restoring = CheckpointRestorer(client, environment.node, 1, memory)

        assert restoring.find(kept.ref, store) == kept.ref  # nothing of it stands on storage
        with restoring.state(kept.ref, store) as loaded:
            assert loaded.tensors["w"].tolist() == [10, 10, 10]
        assert not restoring.holds(CheckpointRef(uri=kept.ref.uri, step=9))
        with pytest.raises(CheckpointError):
            restoring.find(failed.ref, store)


def test_checkpoint_whose_types_need_a_package_that_is_not_there_is_not_reported(
    master: FakeMaster, job: Job, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact checkpoint is never reported as damaged because this image lacks a library: the process fails
    and says what to install, and the master keeps the checkpoint."""
    state = State.of(10, {"w": np.zeros(3, ml_dtypes.bfloat16)})
    ref = store.publish(10, lambda folder: save(folder, state))
    master.say(active=cluster(1, restore=ref))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    assert job.start_from(store) == ref
    with pytest.raises(InvalidError, match="pip install"), job.state(ref, store):
        pytest.fail("it was read")
    assert not master.got(CheckpointDamage)


def test_copy_that_is_no_state_is_passed_over_for_storage(
    master: FakeMaster, environment: NodeEnvironment, store: CheckpointStore, tmp_path: Path
) -> None:
    """A copy from another node that is not a valid state is skipped. The checkpoint is read from storage and
    verified by its checksums."""
    memory = claim_folder(tmp_path / "memory")
    memory.of_peer.folder.mkdir()
    ref = store.publish(10, lambda folder: save(folder, State.of(10, {"w": np.full(3, 10)})))
    place, _, name = ref.uri.rpartition("/")
    copied(memory.of_peer, b"nonsense", 10, place=place, name=name)
    with MasterClient(master.url, TOKEN) as client:
        restoring = CheckpointRestorer(client, environment.node, 1, memory)
        assert restoring.find(ref, store) == ref
        with restoring.state(ref, store) as loaded:
            assert loaded.tensors["w"].tolist() == [10, 10, 10]

        (Path(ref.uri) / STATE_FILE).write_bytes(b"changed")
        with pytest.raises(CheckpointError, match="torn"), restoring.state(ref, store):
            pytest.fail("it was taken for a state")
