"""Model and data position belong together: whatever a version starts from, the data is there too."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetParams,
    LeaseReply,
    LeaseRequest,
    ReleasedShard,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd, CheckpointRestore
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import model_messages, views
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from tests.unit.services.master.simulated_job import DATA, SimulatedJob

CHIEF = NodeRef(type="worker", id=0)
SHARDS = 60


def submitted(nodes: str = "ps=1,worker=2", shards: int = SHARDS) -> SimulatedJob:
    """A job that has just begun to train."""
    settings = JobSettings("job", "default", parse_nodes(nodes), timeouts=Timeouts(verdict=0.0))
    job = SimulatedJob(settings, shards)
    for _ in range(20):
        if job.state.versions.active is not None:
            break
        job.calm(1)
    assert not job.state.versions.trained
    return job


def training(nodes: str = "ps=1,worker=2") -> SimulatedJob:
    """A job that has trained a part of its data."""
    job = submitted(nodes)
    job.calm(3)
    assert 0 < done(job) < SHARDS
    return job


def done(job: SimulatedJob) -> int:
    """Records that the master counts as done."""
    return job.state.shards.progress(DATA).records_done


def active(job: SimulatedJob) -> int:
    """The active version."""
    assert job.state.versions.active is not None
    return job.state.versions.active.number


def restored(uri: str = "/c/1", step: int = 8, **fields: Any) -> CheckpointRestore:
    """What the chief says."""
    return CheckpointRestore(node=CHIEF, version=1, uri=uri, step=step, **fields)


def to_next_version(job: SimulatedJob) -> int:
    """The parameter server dies; the next version begins, and its chief has loaded the model."""
    before = active(job)
    job.kill(("ps", job.state.versions.active.members[0]))  # type: ignore[union-attr]
    for _ in range(60):
        for _ in job.everything():
            if active(job) != before and active(job) in job.models:
                return active(job)
    raise AssertionError("no version follows")


@pytest.mark.parametrize("crashes", [False, True])
def test_a_first_checkpoint_that_nobody_told_of_takes_the_data_along(crashes: bool) -> None:
    """A server is lost after a checkpoint was published but before the master heard of it. The next version
    starts from that checkpoint and its data position, and so does the one after another loss, even with a
    new master. No record is lost or trained twice."""
    job = training()
    job.save_periodically(told=False)
    (saved,) = job.saved.values()
    job.calm(2)
    assert done(job) > len(saved)

    for _ in range(2):
        if crashes:
            job.crash()
        number = to_next_version(job)
        assert job.state.shards.position().datasets[DATA].records_done >= len(saved)
        assert len(job.models[number]) == done(job), "model and data are of one moment"
        job.commit()
        if crashes:
            job.crash()

    job.calm(100)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[active(job)] == set(range(SHARDS))


def test_late_news_of_a_checkpoint_that_the_job_goes_on_from_is_welcome() -> None:
    """A late report of the checkpoint that the job continues from is accepted, so that its writer does not
    remove it."""
    job = training()
    ticket = model_messages.begin_checkpoint(job.state, CheckpointBegin(node=CHIEF, version=1), job.now)
    job.save_periodically(told=False)
    (uri,) = job.saved
    to_next_version(job)
    before = job.state.checkpoints
    model_messages.end_checkpoint(job.state, ticket.id, CheckpointEnd(node=CHIEF, uri=uri, step=8), job.now)
    assert job.state.checkpoints == before


def position_of(job: SimulatedJob) -> dict[str, Any]:
    """As in a manifest."""
    return job.state.shards.position().model_dump(mode="json", exclude_defaults=True)


def leases_of(job: SimulatedJob, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first records of all shards that the job is given from now on, as often as each is given."""
    shards, found = job.state.shards, list[int]()
    lease = shards.lease

    def recorded(name: str, request: LeaseRequest, now: float) -> LeaseReply:
        reply = lease(name, request, now)
        found.extend(shard.start for shard in reply.shards)
        return reply

    monkeypatch.setattr(shards, "lease", recorded)
    return found


def test_a_job_that_is_submitted_again_trains_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is submitted again starts from the newest checkpoint of its folder, which the status shows.
    It is given only the data that the checkpoint does not contain, and ends with all data trained."""
    before = training()
    before.save_periodically()
    (uri,) = before.saved
    again = submitted()
    again.saved, again.manifests = before.saved, before.manifests
    assert done(again) == 0
    leased = leases_of(again, monkeypatch)
    again.act(("worker", 0))
    status = views.job_status(again.state, again.now)
    assert status["checkpoint"]["uri"] == uri
    assert status["warnings"] == []
    again.calm(100)

    assert again.state.outcome is not None
    assert again.state.outcome.succeeded
    assert again.models[active(again)] == set(range(SHARDS))
    assert sorted(leased) == sorted(set(range(SHARDS)) - before.saved[uri])


def test_data_that_is_registered_later_is_where_the_model_is() -> None:
    """Programs register their data after they have restored the model. A checkpoint in between keeps the data
    position, and so does another master."""
    before = training()
    position = position_of(before)
    again = submitted(shards=0)
    model_messages.record_restored_checkpoint(again.state, restored(position=position), again.now)
    assert position_of(again) == position
    again.commit()
    again.crash()
    again.state.shards.register(DatasetParams(name=DATA, size=SHARDS, shard_size=1))
    assert done(again) == done(before)
    assert position_of(again) == position


NOT_THE_ONE = (
    "differs from the one in /c/1, from which the model was restored: its size, shards or order were others"
)
CONSUMED = "was consumed in /c/1, from which the model was restored: nothing of it is left to train"


@pytest.mark.parametrize(
    ("params", "records", "note"),
    [
        pytest.param({"num_epochs": 3}, 20, "", id="more epochs"),
        pytest.param({"timeout_s": 5.0, "max_retries": 9}, 20, CONSUMED, id="finished"),
        pytest.param({"size": 30}, 0, NOT_THE_ONE, id="more records"),
        pytest.param({"shuffle": True}, 0, NOT_THE_ONE, id="another order"),
        pytest.param({"name": "other"}, 0, "", id="another data set"),
        pytest.param({"task_type": "evaluation"}, 0, "", id="no training data"),
    ],
)
@pytest.mark.parametrize("first", ["restored", "registered"])
def test_what_becomes_of_the_data_of_a_finished_job(
    first: str, params: dict[str, Any], records: int, note: str
) -> None:
    """A finished job that is submitted again without a change has nothing to train, and the status says so
    and what to do. More epochs are trained; changed data is trained from its beginning, and the status
    says so."""
    job = submitted(shards=0)
    told = {"name": "data", "size": 20, "shard_size": 20}
    again = DatasetParams.model_validate({**told, **params})
    earlier = submitted(shards=0).state.shards
    earlier.register(DatasetParams.model_validate(told))
    lease = earlier.position_for(CHIEF, {}, 0.0)
    assert lease.datasets["data"].records_done == 0
    digest = lease.datasets["data"].digest
    position = {"datasets": {"data": {"epoch": 1, "records_done": 20, "digest": digest}}}

    if first == "registered":
        job.state.shards.register(again)
    model_messages.record_restored_checkpoint(job.state, restored(position=position), job.now)
    job.state.shards.register(again)

    assert job.state.shards.progress(again.name).records_done == records
    warnings = views.job_status(job.state, job.now)["warnings"]
    assert [note in warning for warning in warnings] == [True] * bool(note)
    # What a version goes back to that was lost is the same.
    job.state.shards.rollback(job.state.checkpoints.saved[-1].position)
    assert job.state.shards.progress(again.name).records_done == records


def test_a_manifest_without_a_position_is_told_of() -> None:
    """A checkpoint without a data position trains all data on top of the restored model, and the status warns
    of it."""
    job = submitted()
    model_messages.record_restored_checkpoint(job.state, restored(), job.now)
    assert done(job) == 0
    (warning,) = views.job_status(job.state, job.now)["warnings"]
    assert (
        "the manifest of /c/1, from which the model was restored, has no data position: all of it is trained"
        in warning
    )


def test_what_failed_before_is_tried_again() -> None:
    """A shard that has used up its retries fails the job once, not each time that the job is submitted."""
    job = submitted()
    sequence = {"cursor": 1, "outstanding": [[0, 1]], "retries": {"0": 3}}
    model_messages.record_restored_checkpoint(job.state, with_sequence(job, sequence), job.now)
    assert job.state.shards.position().datasets[DATA].sequences[0].retries == {}


def with_sequence(job: SimulatedJob, sequence: dict[str, Any]) -> CheckpointRestore:
    """What the chief says of a position in the first epoch."""
    digest = job.state.shards.position().datasets[DATA].digest
    position = {"datasets": {DATA: {"epoch": 1, "digest": digest, "sequences": [sequence]}}}
    return restored(position=position)


@pytest.mark.parametrize("sequence", [{"cursor": 10**9}, {"cursor": 10**9, "outstanding": [[0, 10**9]]}])
def test_a_position_beyond_the_data_is_not_taken(sequence: dict[str, Any]) -> None:
    """If the position is beyond the data, the data starts from its beginning, and a warning says why."""
    job = submitted()
    model_messages.record_restored_checkpoint(job.state, with_sequence(job, sequence), job.now)
    (warning,) = views.job_status(job.state, job.now)["warnings"]
    assert "all of it is trained" in warning
    assert job.state.shards.position().datasets[DATA].epoch == 0


def test_a_damaged_position_is_refused() -> None:
    """A damaged data position is rejected as a whole, so that the chief reports its checkpoint as damaged."""
    job = submitted()
    with pytest.raises(InvalidError, match=r"the data position is damaged: datasets\.train\.sequences\.0"):
        model_messages.record_restored_checkpoint(
            job.state, with_sequence(job, {"cursor": 5, "outstanding": [[0, 9]]}), job.now
        )
    assert job.state.checkpoints.newest is None


def test_only_the_chief_of_the_version_says_so_and_only_before_it_trains() -> None:
    """A report of the restored checkpoint counts only if it comes from the chief of the active version before
    that version trains. Any other changes neither model nor data."""
    job = submitted()
    with pytest.raises(ConflictError, match="worker-1 is not the chief"):
        model_messages.record_restored_checkpoint(
            job.state, restored().model_copy(update={"node": NodeRef(type="worker", id=1)}), job.now
        )
    with pytest.raises(ConflictError, match="version 2 is not the active one"):
        model_messages.record_restored_checkpoint(
            job.state, restored().model_copy(update={"version": 2}), job.now
        )
    job.calm(3)
    before, records = job.state.checkpoints, done(job)
    model_messages.record_restored_checkpoint(job.state, restored(), job.now)
    assert (job.state.checkpoints, done(job)) == (before, records)


def test_what_the_chief_has_trained_beyond_its_acknowledgements_is_in_the_checkpoint() -> None:
    """Shards that the chief has trained completely count as done at once. For the shard it is working on,
    only the checkpoint's data position holds the records done: the chief keeps the shard, and it counts
    once."""
    job = submitted(shards=0)
    shards = job.state.shards
    shards.register(DatasetParams(name=DATA, size=100, shard_size=10))
    lease = {"node": CHIEF, "version": 1, "max_shards": 3}
    first, second, _ = shards.lease(DATA, LeaseRequest.model_validate(lease), job.now).shards
    begun = ReleasedShard(**second.model_dump(include={"epoch", "ordinal", "lease"}), records_done=4)
    said = {DATA: {"done": [first.model_dump()], "begun": begun.model_dump()}}
    begin = CheckpointBegin.model_validate({"node": CHIEF, "version": 1, "consumed": said})
    ticket = model_messages.begin_checkpoint(job.state, begin, job.now)

    assert ticket.position.datasets[DATA].records_done == 14
    assert done(job) == 10
    answer = shards.acknowledge(DATA, AckRequest(node=CHIEF, done=[first, second]), job.now)
    assert (answer.duplicates, answer.accepted, done(job)) == (1, 1, 20)
    shards.rollback(ticket.position)
    rest = shards.lease(DATA, LeaseRequest.model_validate({**lease, "max_shards": 20}), job.now).shards
    assert sum(shard.end - shard.start for shard in rest) == 86
    assert (14, 20) in [(shard.start, shard.end) for shard in rest]


def test_a_checkpoint_that_ends_while_the_job_is_suspended_is_in_its_status() -> None:
    """Members save when they are told to stop. The master stops last, so its status shows that checkpoint."""
    job = training()
    ticket = model_messages.begin_checkpoint(job.state, CheckpointBegin(node=CHIEF, version=1), job.now)
    job.state.settings = replace(job.settings, suspend=True)
    job.settle()
    model_messages.end_checkpoint(
        job.state, ticket.id, CheckpointEnd(node=CHIEF, uri="/c/9", step=9), job.now
    )
    for pod in job.pods.values():
        job.kill((pod.type, pod.id), 143)
    job.observe()
    job.commit()
    assert views.job_status(job.state, job.now)["checkpoint"]["uri"] == "/c/9"
    job.crash()
    assert views.job_status(job.state, job.now)["checkpoint"]["uri"] == "/c/9"
