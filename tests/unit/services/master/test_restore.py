"""What a master does about a stored state that is not as it left it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.datasets import DatasetParams, LeaseRequest
from edl_workflows.core.protocol.nodes import NodeRef, ProcessReport, ProcessState, Registration
from edl_workflows.services.master.server import load_state
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.transitions import settle_job
from edl_workflows.services.master.stores.file import FileStore

SETTINGS = JobSettings("mnist", "default", parse_nodes("worker=1"))
NODE = NodeRef(type="worker", id=0)
Place = tuple[str | int, ...]
DATASET: Place = ("shards", "datasets", 0)
SEQUENCE: Place = (*DATASET, "position", "sequences", 0)


def stored() -> dict[str, Any]:
    """The state of a job that trains and has leased shards."""
    state = JobState(SETTINGS)
    settle_job(state, 1.0)
    messages.register_node(state, Registration(node=NODE, rank=0, incarnation="a"), 2.0)
    settle_job(state, 2.0)
    messages.record_process_report(state, ProcessReport(node=NODE, version=1, state=ProcessState.READY))
    settle_job(state, 3.0)
    state.shards.register(DatasetParams(name="train", size=100, shard_size=10))
    state.shards.lease("train", LeaseRequest(node=NODE, max_shards=4), 4.0)
    document: dict[str, Any] = json.loads(state.to_json())
    return document


def edited(path: Place, value: Any) -> bytes:
    """That state with one field changed by hand."""
    document = copy.deepcopy(stored())
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(document).encode()


def test_an_untouched_state_is_taken_on(tmp_path: Path) -> None:
    """A state that was not edited is accepted. The cases below differ from it in one field."""
    (tmp_path / "state.json").write_bytes(json.dumps(stored()).encode())

    state = load_state(SETTINGS, FileStore(tmp_path / "state.json"), watches_pods=False)

    assert json.loads(state.to_json()) == stored()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(b"{", "the document: Invalid JSON", id="cut off"),
        pytest.param(b"\xff\xfe", "the document: Invalid JSON", id="not UTF-8"),
        pytest.param(b"[]", "the document: Input should be an object", id="a list"),
        pytest.param(b"{}", "counts: Field required", id="empty object"),
        pytest.param(edited(("format",), 99), "format: it is 99, this version reads", id="newer format"),
        pytest.param(edited(("counts",), {"worker": "x"}), "counts.worker: ", id="count is text"),
        pytest.param(edited(("counts",), {"worker": 10**6}), "counts.worker: .* 10000", id="endless count"),
        pytest.param(edited(("nodes", 0, "type"), "driver"), "nodes.0.type: ", id="unknown node type"),
        pytest.param(edited(("nodes", 0, "id"), -1), "nodes.0.id: ", id="negative node id"),
        pytest.param(
            edited((*SEQUENCE, "cursor"), 99), "cursor 99 of epoch 1: there are 10", id="cursor beyond"
        ),
        pytest.param(
            edited((*SEQUENCE, "cursor"), 2), "outstanding: shards at or above", id="cursor moved back"
        ),
        pytest.param(
            edited((*SEQUENCE, "outstanding"), [[3, 1]]), "3 to 1 is not an interval", id="interval reversed"
        ),
        pytest.param(
            edited((*SEQUENCE, "outstanding"), [[0, 1]]),
            "lease 1, epoch 1: .* no outstanding",
            id="lease of done",
        ),
        pytest.param(
            edited((*DATASET, "leases", 0, "shards"), [[7, "", [[0, 1]]]]), "epoch 7", id="lease of no epoch"
        ),
        pytest.param(
            edited((*DATASET, "leases", 0, "shards"), [[1, "x", [[0, 1]]]]),
            "lease 1",
            id="lease of no partition",
        ),
        pytest.param(edited((*DATASET, "params", "size"), 0), "size: ", id="data set without records"),
    ],
)
def test_a_state_that_was_edited_is_refused_with_place_field_and_remedy(
    text: bytes, says: str, tmp_path: Path
) -> None:
    """The error says where the state is stored, which field is wrong, and what to do. The master does not
    start."""
    file = tmp_path / "state.json"
    file.write_bytes(text)

    with pytest.raises(InvalidError, match=says) as refused:
        load_state(SETTINGS, FileStore(file), watches_pods=False)

    message = str(refused.value)
    assert message.startswith(f"{file}: job mnist can't go on from this state (")
    assert "empty it to begin the job anew" in message
    assert len(message) < 500 + len(str(file))
    assert file.read_bytes() == text
