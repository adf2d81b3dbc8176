"""The HTTP API: permissions, storage of reports, and invalid input."""

import time
import uuid
from typing import Any

import pytest

from edl_workflows.services.brain import guard
from tests.unit.services.brain import support
from tests.unit.services.brain.support import OPERATOR, OTHER, TEAM, Api, facts_json, sample_json

api, shared = support.api, support.shared

NOW = time.time()
QUESTION = {"job": facts_json(), "stage": "job_stage_create"}


def test_what_was_acknowledged_is_told(api: Api) -> None:
    """A reported sample is visible as soon as the report is acknowledged; the same report again changes
    nothing."""
    for _ in range(2):
        answer = api.report(
            sample_json(NOW, step=7),
            ooms=[{"node": "mnist-edljob-worker-1", "time": NOW}],
            end={"time": NOW, "completed": True},
        )
        assert (answer.status_code, answer.json()) == (200, {"accepted": 1, "refused": []})

    told = api.get("jobs/uid-1/metrics").json()
    assert told["samples"] == [sample_json(NOW, step=7)]
    assert told["ooms"] == [{"node": "mnist-edljob-worker-1", "time": NOW}]
    assert told["end"]["completed"] is True
    assert told["job"]["name"] == "mnist"


def test_a_plan_is_answered_and_kept_with_its_reasons(api: Api) -> None:
    """A new job gets its first nodes. The plan is stored once, however often it was requested."""
    fresh = facts_json(roles={"ps": {"count": 0}, "worker": {"count": 0}})
    for _ in range(2):
        plan = api.post("optimize", QUESTION | {"job": fresh}).json()
        assert plan["groups"].keys() == {"ps", "worker"}
        assert plan["groups"]["worker"]["count"] == 1
        assert set(plan["reasons"]) == {"ps", "worker"}

    plans = api.get("plans").json()
    assert plans["total"] == 1
    assert plans["plans"][0]["job"] == "mnist"
    assert "worker: 1 nodes" in " ".join(plans["plans"][0]["changes"])


def test_plans_follow_from_what_was_reported(api: Api) -> None:
    """A master that has just started gets a plan from the samples in the store."""
    for i in range(5):
        api.report(sample_json(NOW - 75 + 15 * i, step=i))
    nodes = [
        {"name": name, "role": kind, "id": number, "resource": {"cpu": 4, "memory": 8_192}}
        for name, kind, number in (
            ("mnist-edljob-ps-0", "ps", 0),
            ("mnist-edljob-worker-0", "worker", 0),
            ("mnist-edljob-worker-1", "worker", 1),
        )
    ]

    plan = api.post("optimize", QUESTION | {"stage": "job_stage_worker_initial", "nodes": nodes}).json()
    assert plan["groups"]["worker"]["count"] > 2
    assert not plan["waiting"]


class TestTenants:
    """A tenant reads and writes only its own jobs; an operator all jobs."""

    @pytest.mark.parametrize("token", ["", "wrong", TEAM[:-1], OTHER])
    def test_others_can_t_write(self, shared: Api, token: str) -> None:
        """Reports and requests for plans are rejected without a token, with an unknown token and with that of
        another tenant."""
        job = facts_json("never-written")
        status = 403 if token == OTHER else 401
        stranger = shared.as_(token)
        assert stranger.report(sample_json(NOW), job=job).status_code == status
        assert stranger.post("optimize", QUESTION | {"job": job}).status_code == status
        assert shared.as_(OPERATOR).get("jobs/never-written").status_code == 404

    def test_others_can_t_read(self, api: Api) -> None:
        """Jobs of other tenants are not found."""
        api.report(sample_json(NOW))
        api.post("optimize", QUESTION | {"job": facts_json(roles={"worker": {"count": 0}})})
        other = api.as_(OTHER)
        assert other.get("jobs/uid-1").status_code == 404
        assert other.get("jobs/uid-1/metrics").status_code == 404
        assert other.get("jobs").json()["jobs"] == []
        assert other.get("plans").json()["plans"] == []
        for seeing in (api, api.as_(OPERATOR)):
            assert seeing.get("jobs/uid-1").status_code == 200
            assert seeing.get("jobs").json()["total"] == 1
            assert seeing.get("plans").json()["total"] == 1

    def test_a_stolen_uid_is_another_job(self, api: Api) -> None:
        """A tenant that uses the uid of another tenant's job writes and reads a job in its own namespace."""
        api.report(sample_json(NOW, step=1))
        api.as_(OTHER).report(sample_json(NOW, step=2), job=facts_json(namespace="other"))
        steps = {
            token: [one["step"] for one in api.as_(token).get("jobs/uid-1/metrics").json()["samples"]]
            for token in (TEAM, OTHER)
        }
        assert steps == {TEAM: [1], OTHER: [2]}

    def test_history_stays_in_its_namespace(self, api: Api) -> None:
        """Jobs of the same name of other tenants have no influence on a plan."""
        heavy = [
            sample_json(NOW - i, nodes=[{"name": "w", "role": "worker", "cpu": 9, "memory": 60_000}])
            for i in range(5)
        ]
        theirs = facts_json("uid-9", namespace="other")
        api.as_(OTHER).report(*heavy, job=theirs, end={"time": NOW, "completed": True})
        fresh = {"worker": {"count": 0}, "ps": {"count": 0}}

        ours = api.post("optimize", QUESTION | {"job": facts_json(roles=fresh)}).json()
        own = facts_json("uid-10", namespace="other", roles=fresh)
        third = api.as_(OTHER).post("optimize", QUESTION | {"job": own}).json()
        assert third["groups"]["worker"]["resource"]["memory"] > 60_000
        assert ours["groups"]["worker"]["resource"]["memory"] < 60_000

    def test_a_token_is_not_repeated(self, api: Api) -> None:
        """An error does not contain the token that was sent."""
        assert "secret-7" not in api.as_("secret-7").get("jobs").text


BAD_SAMPLES = {
    "not a number": {"speed": float("nan")},
    "infinite": {"time": float("inf")},
    "negative": {"step": -1},
    "absurd": {"speed": 1e300},
    "endless step": {"step": 10**400},
    "node of infinite memory": {"nodes": [{"name": "n", "role": "ps", "cpu": 1, "memory": float("inf")}]},
    "negative cores": {"nodes": [{"name": "n", "role": "ps", "cpu": -1, "memory": 1}]},
    "a node twice": {"nodes": [{"name": "n", "role": "ps", "cpu": 1, "memory": 1}] * 2},
    "from the future": {"time": NOW + 86_400},
    "before time": {"time": -5.0},
}


@pytest.mark.parametrize("bad", BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_a_sample_that_can_t_be_believed_is_left_out(shared: Api, bad: dict[str, Any]) -> None:
    """A sample that can't be true is rejected, and the receipt says so. Credible samples beside it are
    stored."""
    uid = str(uuid.uuid4())
    answer = shared.report(sample_json(NOW), sample_json(NOW - 1) | bad, job=facts_json(uid))
    assert answer.status_code == 200, answer.text
    assert answer.json()["accepted"] == 1
    assert len(answer.json()["refused"]) == 1
    assert len(shared.get(f"jobs/{uid}/metrics").json()["samples"]) == 1


def test_samples_that_contradict_each_other_are_left_out(api: Api) -> None:
    """If a message has two samples for the same moment, both are rejected."""
    answer = api.report(sample_json(NOW, step=1), sample_json(NOW, step=2)).json()
    assert answer["accepted"] == 0
    assert "contradict" in answer["refused"][0]


BAD_REPORTS: dict[str, Any] = {
    "no JSON": b"{",
    "empty": b"",
    "bytes": b"\xff\xfe\x00",
    "a list": [],
    "no job": {"samples": []},
    "negative limit": {"job": facts_json(limits={"cpu": -1, "memory": 1, "gpu": 0})},
    "infinite limit": {"job": facts_json(limits={"cpu": float("inf"), "memory": 1, "gpu": 0})},
    "limit that is no number": {"job": facts_json(limits={"cpu": float("nan"), "memory": 1, "gpu": 0})},
    "absurd limit": {"job": facts_json(limits={"cpu": 1e300, "memory": 1, "gpu": 0})},
    "absurd count": {"job": facts_json(roles={"worker": {"count": 10**9}})},
    "half a node": {"job": facts_json(roles={"worker": {"count": 1.5}})},
    "a path as uid": {"job": facts_json("../x")},
    "a long uid": {"job": facts_json("u" * 1000)},
    "NUL in a name": {"job": facts_json(name="a\0b")},
    "NUL in the scenario": {"job": facts_json(scenario="a\0b")},
    "half a character": b'{"job": {"uid": "\\ud800"}}',
    "too many samples": {"job": facts_json(), "samples": [sample_json(NOW)] * 501},
    "deep": b'{"job":' * 5_000,
}


@pytest.mark.parametrize("body", BAD_REPORTS.values(), ids=BAD_REPORTS)
def test_a_wrong_report_is_refused(shared: Api, body: Any) -> None:
    """The response says what is wrong, and nothing is stored."""
    before = shared.as_(OPERATOR).get("jobs").json()["total"]
    answer = shared.post("metrics", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]
    assert shared.as_(OPERATOR).get("jobs").json()["total"] == before


BAD_QUESTIONS: dict[str, dict[str, Any]] = {
    "unknown stage": {"stage": "job_stage_x"},
    "node of an unknown size": {"nodes": [{"name": "n", "role": "ps", "id": 0, "resource": {"cpu": "many"}}]},
    "node with a negative id": {"nodes": [{"name": "n", "role": "ps", "id": -1}]},
}


@pytest.mark.parametrize("more", BAD_QUESTIONS.values(), ids=BAD_QUESTIONS)
def test_a_wrong_question_is_refused(shared: Api, more: dict[str, Any]) -> None:
    """A malformed request for a plan is rejected like a malformed report."""
    assert shared.post("optimize", QUESTION | more).status_code == 422


STRANGE_QUESTIONS: dict[str, dict[str, Any]] = {
    "no roles": {"job": facts_json(roles={})},
    "nothing allowed": {"job": facts_json(limits={"cpu": 0, "memory": 0, "gpu": 0})},
    "impossible bounds": {
        "job": facts_json(roles={"worker": {"count": 1, "bounds": {"count": {"low": 9, "high": 2}}}})
    },
    "two nodes of one name": {"nodes": [{"name": "n", "role": "ps", "id": 0}] * 2},
    "a node of no role": {"nodes": [{"name": "n", "role": "what", "id": 0}]},
}


@pytest.mark.parametrize("stage", ["create", "worker_initial", "ps_initial", "running"])
@pytest.mark.parametrize("more", STRANGE_QUESTIONS.values(), ids=STRANGE_QUESTIONS)
def test_a_job_that_makes_no_sense_gets_no_plan(shared: Api, stage: str, more: dict[str, Any]) -> None:
    """A job with contradictory values gets no plan, and the response says why."""
    answer = shared.post("optimize", QUESTION | {"stage": f"job_stage_{stage}"} | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["groups"] == {}
    assert answer.json()["notes"]


@pytest.fixture
def _small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_BODY", 1_000)


@pytest.mark.usefixtures("_small_bodies")
def test_a_body_is_bounded(api: Api) -> None:
    """A body of 2,000 bytes is rejected, with and without a Content-Length."""
    assert api.post("metrics", b"x" * 2_000).status_code == 413
    headers = {"Authorization": f"Bearer {TEAM}"}
    chunks = (b"x" * 100 for _ in range(20))
    assert api.http.post(f"{api.url}/v1/metrics", content=chunks, headers=headers).status_code == 413


def test_a_store_that_is_away_is_said(api: Api) -> None:
    """If the store is unavailable, requests get 503 with Retry-After, and the server continues."""
    api.report(sample_json(NOW))
    store = api.server.store
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE sample RENAME TO away")
    answer = api.report(sample_json(NOW + 1))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert api.get("jobs/uid-1/metrics").status_code == 503
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO sample")
    assert api.report(sample_json(NOW + 1)).json()["accepted"] == 1


def test_a_corrupt_row_does_not_matter(api: Api) -> None:
    """Damaged rows fail neither lists and descriptions of jobs nor plans."""
    api.report(sample_json(NOW), sample_json(NOW - 15))
    api.report(sample_json(NOW), job=facts_json("uid-2"), end={"time": NOW, "completed": True})
    with api.server.store.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE sample SET nodes = '[{\"name\": 1' WHERE uid = 'uid-2' OR time < 1e99"
        )
        connection.exec_driver_sql("UPDATE job SET facts = 'x', seen = '[]' WHERE uid = 'uid-2'")
    assert api.get("jobs").json()["total"] == 2
    assert api.get("jobs/uid-2").status_code == 200
    assert api.get("jobs/uid-2/metrics").status_code == 404
    for stage in ("create", "running"):
        answer = api.post("optimize", QUESTION | {"stage": f"job_stage_{stage}"})
        assert answer.status_code == 200, answer.text
