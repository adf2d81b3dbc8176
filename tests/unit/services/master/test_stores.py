"""What every store of the master's state promises, with the embedded API server where it needs one."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError, UnavailableError
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master import brain
from edl_workflows.services.master.brain import BrainConnection
from edl_workflows.services.master.server import load_state
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.stores import config_maps
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from edl_workflows.services.master.stores.file import FileStore
from edl_workflows.services.master.stores.port import StateStore
from edl_workflows.services.master.stores.volume import VolumeStore
from tests import local_cluster
from tests.unit.services.brain import support
from tests.unit.services.brain.support import Api
from tests.unit.services.master import store_places
from tests.unit.services.master.served_master import GatedStore
from tests.unit.services.master.store_places import (
    LAST,
    NEW,
    OLD,
    BrainStores,
    StorePlace,
    brain_place,
    config_map_place,
    file_place,
    make_owner,
    state_map,
    stored_config_maps,
    volume_place,
)

shared, brain_stores = support.shared, store_places.brain_stores
RECORDED = Path(__file__).parent / "state" / "recorded" / "config_map.json"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running.client()


FENCING = ("config map", "config maps", "volume", "brain")
"""Places that several masters of a job may write to. A standalone job has one master only, in a file."""


@pytest.fixture(params=[*FENCING, "file"])
def place(
    request: pytest.FixtureRequest,
    shared: Api,
    brain_stores: BrainStores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StorePlace:
    if request.param == "config maps":
        monkeypatch.setattr(config_maps, "PART_BYTES", 30)
    monkeypatch.setattr(VolumeStore, "capacity", 1000)
    monkeypatch.setattr(FileStore, "capacity", 1000)
    if request.param == "volume":
        return volume_place(tmp_path)
    if request.param == "file":
        return file_place(tmp_path)
    if request.param == "brain":
        return brain_place(shared, brain_stores, request.node.name)
    return config_map_place(request.getfixturevalue("cluster"), request.node.name)


def test_a_new_master_finds_the_newest_state(place: StorePlace) -> None:
    """A store finds nothing for a new job, and later what the store before it saved last, byte for byte."""
    first = place.open()
    assert first.load() is None
    first.save(OLD)
    first.save(NEW)
    second = place.open()
    assert second.load() == NEW
    second.save(LAST)
    assert place.open().load() == LAST


def test_the_fake_of_other_tests_is_a_store() -> None:
    """The store of tests without a cluster does what is common to all."""
    store = GatedStore()
    assert store.load() is None
    store.save(OLD)
    store.save(NEW)
    assert store.load() == NEW


def test_a_damaged_state_is_never_used(place: StorePlace) -> None:
    """If a byte of the newest snapshot has changed, the one before is used where it is kept; otherwise the
    error names the place and says what to do."""
    store = place.open()
    store.load()
    store.save(OLD)
    store.save(NEW)
    place.damage()

    if place.keeps_before:
        following = place.open()
        assert following.load() == OLD
        following.save(LAST)
        following.save(NEW)
        place.damage()
        assert place.open().load() == LAST
    else:
        with pytest.raises(InvalidError, match="checksum: put that back") as refused:
            place.open().load()
        assert place.open().place in str(refused.value)


def test_a_snapshot_of_another_format_is_refused(place: StorePlace) -> None:
    """A format that this version can't read is named, and the snapshot before is not used instead."""
    store = place.open()
    store.load()
    store.save(OLD)
    store.save(NEW)
    place.renumber()

    with pytest.raises(InvalidError, match="has format 7, and this version of the master reads 1"):
        place.open().load()


def test_a_state_that_is_too_large_is_refused(place: StorePlace) -> None:
    """The error says how much fits; the state before stays."""
    store = place.open()
    store.load()
    store.save(OLD)
    with pytest.raises(InvalidError, match="bytes; at most"):
        store.save(b"x" * (store.capacity + 1))
    assert place.open().load() == OLD


class Calls:
    """Counts the calls of a store to the outside, and does something before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at: int | None = None
        self.action: Callable[[], None] = lambda: None
        for name in ("get", "create", "patch", "delete"):
            self._count(monkeypatch, client, name)
        self._count(monkeypatch, os, "fsync")
        for name in ("touch", "replace", "unlink", "read_bytes", "iterdir"):
            self._count(monkeypatch, Path, name)
        self._count(monkeypatch, BrainConnection, "post")
        self._count(monkeypatch, brain, "_read_body")  # Brain has stored it, and the answer is lost

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        call = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.action()
            return call(*args, **options)

        monkeypatch.setattr(module, name, counted)

    def before(self, number: int, action: Callable[[], None]) -> None:
        self.count, self.at, self.action = 0, number, action


def fail() -> None:
    raise UnavailableError("killed here")


def test_a_master_killed_while_it_stores_leaves_a_whole_state(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever point of a write a master ends, the next one finds the state before or the new one, and a
    write that is tried again succeeds."""
    calls = Calls(monkeypatch)
    store = place.open()
    store.load()
    store.save(OLD)
    for number in range(1, 100):
        calls.before(number, fail)
        try:
            store.save(NEW)
        except UnavailableError:
            calls.at = None
            assert place.open().load() in (OLD, NEW)
            store = place.open()
            store.load()
            store.save(NEW)
            store.save(OLD)
        else:
            assert number > 1
            return
    raise AssertionError("a write never ends")


@pytest.mark.parametrize("place", FENCING, indirect=True)
def test_a_second_master_fences_the_first_at_any_point(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever point of the first master's write another one takes over and writes: the first then fails,
    and what the other one wrote stays whole."""
    calls = Calls(monkeypatch)
    for number in range(1, 100):
        first, second = place.open(), place.open()
        first.load()
        first.save(OLD)

        def take_over(second: StateStore = second) -> None:
            calls.at = None
            assert second.load() in (OLD, NEW)
            second.save(LAST)

        calls.before(number, take_over)
        try:
            first.save(NEW)
        except ConflictError:
            assert place.open().load() == LAST
        else:
            if calls.at is not None:
                return
            assert place.open().load() == LAST  # it took over after the first one had written
            with pytest.raises(ConflictError):
                first.save(NEW)
    raise AssertionError("a write never ends")


def test_a_config_map_of_the_version_before_is_read(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """A master continues from a recorded ConfigMap without a checksum, and the version before, which writes
    the document only, continues from its state, and back."""
    job = state_map(cluster, request.node.name)
    name = names.state_config_map_name(job)
    recorded = json.loads(RECORDED.read_text())
    document = recorded["data"][names.STATE_KEY].encode()
    annotations = {"annotations": recorded["metadata"]["annotations"]}
    client.patch(cluster, resources.CONFIG_MAPS, name, {"metadata": annotations, "data": recorded["data"]})

    store = ConfigMapStore(cluster, job)
    assert store.load() == document
    store.save(NEW)
    assert stored_config_maps(cluster, job)[name][names.STATE_KEY].encode() == NEW
    written = {"metadata": annotations, "data": {names.STATE_KEY: document.decode()}}
    client.patch(cluster, resources.CONFIG_MAPS, name, written)

    assert ConfigMapStore(cluster, job).load() == document


def test_the_version_before_refuses_a_state_in_parts(
    cluster: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads `state` only. That is no JSON and not empty, so that it does not begin the job anew."""
    monkeypatch.setattr(config_maps, "PART_BYTES", 30)
    job = state_map(cluster, request.node.name)
    store = ConfigMapStore(cluster, job)
    store.load()
    store.save(OLD)

    state = stored_config_maps(cluster, job)[names.state_config_map_name(job)][names.STATE_KEY]
    assert state
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(state)


def test_parts_exist_as_long_as_they_are_needed(
    cluster: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large state and the one before it are in parts below 1 MiB, which have the owner of the state, also
    one that a former job of this name left. Parts that neither has are deleted, and all of them when the
    state is small again."""
    former, owner = (
        make_owner(cluster, f"{word}-{abs(hash(request.node.name))}") for word in ("former", "owner")
    )
    job = state_map(cluster, request.node.name, [owner])
    state = names.state_config_map_name(job)
    large, larger = (json.dumps({"text": "€" * (size // 3)}, ensure_ascii=False).encode() for size in SIZES)
    metadata = {"name": f"{state}-a0", "ownerReferences": [former]}
    client.create(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    store = ConfigMapStore(cluster, job)
    store.load()
    store.save(larger)
    store.save(large)

    parts = stored_config_maps(cluster, job)
    assert parts.keys() == {state, *(f"{state}-{part}" for part in ("a0", "a1", "a2", "b0", "b1"))}
    assert all(len(data[names.STATE_KEY].encode()) <= 900_000 for data in parts.values())
    part = client.get(cluster, resources.CONFIG_MAPS, f"{state}-a0")
    assert part["metadata"]["ownerReferences"] == [{key: owner[key] for key in owner if key != "controller"}]
    store = ConfigMapStore(cluster, job)
    assert store.load() == large
    store.save(large)
    assert f"{state}-a2" not in stored_config_maps(cluster, job)
    store.save(OLD)
    assert stored_config_maps(cluster, job).keys() == {state}
    assert ConfigMapStore(cluster, job).load() == OLD


SIZES = (1_500_000, 2_500_000)


def test_a_master_may_do_what_its_store_does() -> None:
    """The Role names the state and each of its parts; only creating can't be restricted to names."""
    rules = [rule for rule in pods.master_rules("job") if rule["resources"] == ["configmaps"]]
    parts = names.state_part_names("job")
    rights = {
        (verb, name) for rule in rules for verb in rule["verbs"] for name in rule.get("resourceNames", "*")
    }

    state = names.state_config_map_name("job")
    assert rights == {
        *((verb, name) for verb in ("get", "patch") for name in (state, *parts)),
        *(("delete", name) for name in parts),
        ("create", "*"),
    }


def test_the_state_moves_to_a_volume_and_stays_there(tmp_path: Path) -> None:
    """A job whose masters get a volume continues from the ConfigMap's state. From then on a master without
    the volume, or with another one, is refused, and does not begin the job anew."""
    config_map = GatedStore()
    config_map.save(OLD)
    store = VolumeStore(tmp_path / "a" / "state", config_map)
    assert store.load() == OLD
    store.save(NEW)

    assert VolumeStore(tmp_path / "a" / "state", config_map).load() == NEW
    shutil.rmtree(tmp_path / "a")
    for folder in ("a", "b"):
        with pytest.raises(
            InvalidError, match=r"the state is in .*/a/state\.\*, and none .*: mount the volume"
        ):
            VolumeStore(tmp_path / folder / "state", config_map).load()
    with pytest.raises(InvalidError, match=r"format: it is that of files .*/a/state\.\*"):
        load_state(JobSettings("job", "default", parse_nodes("worker=1")), config_map, watches_pods=True)


def test_a_state_that_was_begun_anew_replaces_that_of_a_volume(tmp_path: Path) -> None:
    """A job that was begun anew without its volume, by emptying the ConfigMap, and that gets the volume back
    continues from the ConfigMap, not from the older state on the volume."""
    config_map = GatedStore()
    store = VolumeStore(tmp_path / "state", config_map)
    store.load()
    store.save(OLD)
    config_map.save(NEW)

    assert VolumeStore(tmp_path / "state", config_map).load() == NEW
    assert VolumeStore(tmp_path / "state", config_map).load() == NEW


def test_a_volume_keeps_two_states(tmp_path: Path) -> None:
    """Older files are deleted."""
    store = VolumeStore(tmp_path / "state", GatedStore())
    store.load()
    for document in (OLD, NEW, LAST):
        store.save(document)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.1.2", "state.1.3"]


@pytest.mark.parametrize("make", [FileStore, lambda path: VolumeStore(path, GatedStore())])
def test_what_the_file_system_refuses_is_unavailable(
    make: Callable[[Path], StateStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full, or a folder that is gone, is an error that names the place and that the master
    tries again; the state before stays."""
    store = make(tmp_path / "folder" / "state")
    (tmp_path / "folder").mkdir()
    store.load()
    store.save(OLD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse_full)
        with pytest.raises(UnavailableError, match="No space left") as refused:
            store.save(NEW)
    assert store.place in str(refused.value)
    assert make(tmp_path / "folder" / "state").load() == OLD

    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "folder").touch()
    for call in (store.load, lambda: store.save(NEW)):
        with pytest.raises(UnavailableError, match=str(tmp_path)):
            call()


def refuse_full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_another_version_wrote_is_read(tmp_path: Path) -> None:
    """The version before, which writes no checksum, continues from the file, and this version from its
    state, also if a person has edited it."""
    file = tmp_path / "state.json"
    store = FileStore(file)
    store.save(OLD)
    assert file.read_bytes() == OLD
    fresh = tmp_path / "state.new"  # as the version before does
    fresh.write_bytes(NEW)
    fresh.replace(file)
    assert FileStore(file).load() == NEW
    file.write_bytes(LAST)
    assert FileStore(file).load() == LAST
