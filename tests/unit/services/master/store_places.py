"""The places of a master's state, for the tests of all stores: how a store of each is opened, and how what is
stored there is damaged."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.brain import JobStateKey
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.services.brain.store import database
from edl_workflows.services.brain.store.tables import SNAPSHOT
from edl_workflows.services.master.brain import BrainAccess, BrainConnection
from edl_workflows.services.master.stores import config_maps
from edl_workflows.services.master.stores.brain import BrainStateStore
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from edl_workflows.services.master.stores.file import FileStore
from edl_workflows.services.master.stores.port import HEAD_FORMAT, StateStore
from edl_workflows.services.master.stores.volume import VolumeStore
from tests.unit.services.brain.support import Api
from tests.unit.services.master.served_master import GatedStore

OLD, NEW, LAST = (
    f'{{"state": "{word}", "of": "ä ö ü € 😀 {word}"}}'.encode() for word in ("old", "new", "last")
)


@dataclass
class StorePlace:
    """One place of a state.

    Attributes:
        open: a store of it, as each new master opens one.
        damage: changes one byte of the newest snapshot.
        renumber: gives the newest snapshot another format.
        keeps_before: whether the snapshot before is kept.
    """

    open: Callable[[], StateStore]
    damage: Callable[[], None]
    renumber: Callable[[], None]
    keeps_before: bool


def state_map(cluster: Cluster, test: str, owners: list[dict[str, Any]] | None = None) -> str:
    """Create a job's empty state ConfigMap. Return the job's name."""
    job = f"job-{abs(hash(test)) % 10**8}"
    metadata = {"name": names.state_config_map_name(job), "ownerReferences": owners or []}
    client.create(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    return job


def make_owner(cluster: Cluster, name: str) -> dict[str, Any]:
    """Create a Secret. Return a reference to it as a controller."""
    secret = client.create(cluster, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
    uid = secret["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid, "controller": True}


def stored_config_maps(cluster: Cluster, job: str) -> dict[str, dict[str, str]]:
    """The data of a job's ConfigMaps by name."""
    scope = Scope(resources.CONFIG_MAPS, cluster.namespace)
    return {
        config_map["metadata"]["name"]: config_map.get("data") or {}
        for config_map in client.list_objects(cluster, scope).items
        if config_map["metadata"]["name"].startswith(names.state_config_map_name(job))
    }


def config_map_place(cluster: Cluster, test: str) -> StorePlace:
    job = state_map(cluster, test)
    name = names.state_config_map_name(job)

    def change(where: str, key: str, before: str, after: str) -> None:
        text = stored_config_maps(cluster, job)[where][key]
        assert before in text
        body = {"data": {key: text.replace(before, after, 1)}}
        client.patch(cluster, resources.CONFIG_MAPS, where, body)

    def damage() -> None:
        head = json.loads(stored_config_maps(cluster, job)[name][names.STATE_HEAD_KEY])
        change((head["parts"] or [name])[-1], names.STATE_KEY, "}", "]")

    def renumber() -> None:
        change(name, names.STATE_HEAD_KEY, f'"format":{HEAD_FORMAT}', '"format":7')

    in_parts = len(OLD) > config_maps.PART_BYTES
    return StorePlace(lambda: ConfigMapStore(cluster, job), damage, renumber, in_parts)


def volume_place(folder: Path) -> StorePlace:
    default = GatedStore()

    def change(before: bytes, after: bytes) -> None:
        newest = max(folder.glob("state.*.*"), key=lambda path: tuple(map(int, path.name.split(".")[1:])))
        while not newest.stat().st_size:  # it takes a term
            newest.unlink()
            newest = max(folder.glob("state.*.*"), key=lambda path: tuple(map(int, path.name.split(".")[1:])))
        newest.write_bytes(newest.read_bytes().replace(before, after, 1))

    return StorePlace(
        lambda: VolumeStore(folder / "state", default),
        lambda: change("€".encode(), b"e"),
        lambda: change(f'"format":{HEAD_FORMAT}'.encode(), b'"format":7'),
        keeps_before=True,
    )


def file_place(folder: Path) -> StorePlace:
    document, head = folder / "state.json", folder / "state.json.head"

    def damage() -> None:
        with document.open("r+b") as file:
            before = file.read()
            modified = document.stat().st_mtime_ns
            file.seek(0)
            file.write(before.replace(b"}", b"]", 1))
        os.utime(document, ns=(modified, modified))  # a disk that loses a bit changes no times

    def renumber() -> None:
        head.write_text(head.read_text().replace(f'"format":{HEAD_FORMAT}', '"format":7'))

    return StorePlace(lambda: FileStore(document), damage, renumber, keeps_before=False)


def state_key(test: str) -> JobStateKey:
    """A job of a test's own."""
    return JobStateKey(uid=f"uid-{abs(hash(test)) % 10**8}", namespace="team", name="mnist")


@dataclass
class BrainStores:
    """Opens stores in Brains, and closes their connections.

    Attributes:
        connections: of the stores.
    """

    connections: list[BrainConnection] = field(default_factory=list)

    def open(self, api: Api, job: JobStateKey, default: StateStore | None = None) -> BrainStateStore:
        """A store in this Brain, with the client's token."""
        connection = BrainConnection(BrainAccess(api.url, lambda: api.token))
        self.connections.append(connection)
        return BrainStateStore(connection, job, default or GatedStore())


@pytest.fixture
def brain_stores() -> Iterator[BrainStores]:
    stores = BrainStores()
    yield stores
    for connection in stores.connections:
        connection.close()


def brain_place(api: Api, stores: BrainStores, test: str) -> StorePlace:
    default, job = GatedStore(), state_key(test)

    def change(column: str, before: str, after: str) -> None:
        own = (SNAPSHOT.c.uid == job.uid, SNAPSHOT.c.namespace == job.namespace)
        order = (SNAPSHOT.c.term.desc(), SNAPSHOT.c.number.desc())
        with database.write_transaction(api.server.store.engine) as connection:
            newest = connection.execute(select(SNAPSHOT).where(*own).order_by(*order)).first()
            assert newest is not None
            assert before in newest._mapping[column]
            version = (SNAPSHOT.c.term == newest.term, SNAPSHOT.c.number == newest.number)
            text = newest._mapping[column].replace(before, after, 1)
            connection.execute(update(SNAPSHOT).where(*own, *version).values({column: text}))

    return StorePlace(
        lambda: stores.open(api, job, default),
        lambda: change("document", "€", "e"),
        lambda: change("head", f'"format":{HEAD_FORMAT}', '"format":7'),
        keeps_before=True,
    )
