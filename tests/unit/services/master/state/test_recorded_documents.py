"""A state that an earlier version stored is read, gone on from and stored again without a change.

The documents in `recorded` were written by an earlier version. None of them is ever made anew: a field that
is renamed or gets another default would break running jobs at an upgrade.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StoredState

RECORDED = Path(__file__).parent / "recorded"
NODES = parse_nodes("ps=2,worker=2,evaluator=1")


def read(name: str) -> Any:
    return json.loads((RECORDED / name).read_text())


@pytest.mark.parametrize("name", ["broken_group.json", "every_field.json", "migration.json"])
def test_a_recorded_document_is_stored_again_as_it_was(name: str) -> None:
    """The first document that a restarted master stores equals the one it has read."""
    document = StoredState.from_json(json.dumps(read(name)))
    state = JobState(JobSettings("job", "default", NODES), document)

    assert json.loads(document.to_json()) == read(name)
    assert json.loads(state.to_json()) == read(name)


def test_every_stored_field_is_recorded() -> None:
    """The recorded documents have every stored field; a new field must be added by hand."""
    stored = {field.name for field in fields(StoredState)} - {"format"}

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
