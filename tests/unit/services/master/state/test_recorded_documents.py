"""A state that an earlier version stored is read, gone on from and stored again without a change.

The documents in `recorded` were written by an earlier version. None of them is ever made anew: a field that
is renamed or gets another default would break running jobs at an upgrade.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StoredState

RECORDED = Path(__file__).parent / "recorded"
NODES = parse_nodes("ps=2,worker=2,evaluator=1")


DOCUMENTS = ("broken_group.json", "every_field.json", "migration.json", "config_map.json")
"""`config_map.json` is a whole ConfigMap, without the checksum that later versions store."""


def read(name: str) -> Any:
    recorded = json.loads((RECORDED / name).read_text())
    return json.loads(recorded["data"][names.STATE_KEY]) if recorded.get("kind") == "ConfigMap" else recorded


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_recorded_document_is_stored_again_as_it_was(name: str) -> None:
    """The first document that a restarted master stores equals the one it has read."""
    document = StoredState.from_json(json.dumps(read(name)))
    state = JobState(JobSettings("job", "default", NODES), document)

    assert json.loads(document.to_json()) == read(name)
    assert json.loads(state.to_json()) == read(name)


def test_every_stored_field_is_recorded() -> None:
    """The recorded documents have every stored field; a new field must be added by hand."""
    stored = {field.name for field in fields(StoredState)} - {"format", "newer_fields"}

    assert stored == read("every_field.json").keys(), "add the new field to recorded/every_field.json by hand"


def test_what_is_not_stored_is_one_value() -> None:
    """Each attribute of the state is either a stored field or a field of `VolatileState`."""
    state = JobState(JobSettings("job", "default", NODES))
    stored = {field.name for field in fields(StoredState)}

    assert vars(state).keys() - stored == {"volatile", "settings", "watches_pods"}


def test_fields_that_were_left_out_keep_their_meaning() -> None:
    """Fields with their default value are not stored, so a changed default would change the meaning of stored
    states."""
    recorded = read("defaults.json")

    document = StoredState.from_json(json.dumps(recorded["stored"]))

    assert json.loads(TypeAdapter(StoredState).dump_json(document)) == recorded["means"], (
        "a new field, and its default, is added to `means` of recorded/defaults.json by hand; the rest stays"
    )


NEWER = "a_field_of_a_newer_version"
MAPS = {
    "counts", "sizes", "next_ids", "partitions", "partial", "retries", "datasets", "later", "notes", "failed",
    "groups", "old_counts", "old_sizes", "old_nodes", "replica_resource_specs", "resource", "workers",
    "spent", "passed", "first", "results", "reasons", "nodes",
}  # fmt: skip
"""Names of objects in the document whose keys are no names of fields."""
AMOUNTS = {"sizes", "old_sizes", "old_nodes"}
"""Maps of objects whose keys are names of devices."""


def objects(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each object with named fields."""
    if isinstance(value, dict):
        if not (MAPS & set(path[-1:]) or AMOUNTS & set(path[-2:-1])):
            yield path
        for key, inner in value.items():
            yield from objects(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*path, index))


def with_newer_fields(document: Any, paths: list[tuple[str | int, ...]]) -> Any:
    newer = copy.deepcopy(document)
    for path in paths:
        at = newer
        for key in path:
            at = at[key]
        at[NEWER] = {"with": [1, "value"]}
    return newer


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_master_goes_on_from_what_a_newer_version_stored(name: str) -> None:
    """A master that is put back to the version before ignores the fields that it does not know, in any object
    of the document. Those of the document itself it stores again, so that the newer version finds them."""
    recorded = read(name)
    newer = with_newer_fields(recorded, list(objects(recorded)))

    document = StoredState.from_json(json.dumps(newer))
    state = JobState(JobSettings("job", "default", NODES), document)

    assert json.loads(state.to_json()) == recorded | {NEWER: newer[NEWER]}
    assert json.loads(StoredState.from_json(state.to_json()).to_json()) == recorded | {NEWER: newer[NEWER]}


def test_a_state_of_another_format_is_refused() -> None:
    """A document of a format that this version does not read is refused by its number, whatever else is in
    it."""
    newer = read("migration.json") | {"format": 3, "nodes": "in another place"}

    with pytest.raises(ValueError, match="format: it is 3, this version reads 2"):
        StoredState.from_json(json.dumps(newer))


def test_a_wrong_value_is_refused_beside_unknown_fields() -> None:
    """Unknown fields excuse no field that is known and wrong."""
    with pytest.raises(ValueError, match=r"counts\.worker"):
        StoredState.from_json(json.dumps({"counts": {"worker": "many"}, NEWER: 1}))
