"""The calls of one tenant leave room for those of others."""

import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.services.brain import limits
from edl_workflows.services.brain.auth import Tenant
from edl_workflows.services.brain.limits import TenantLimits
from edl_workflows.services.brain.store.records import JobKey
from tests.unit.services.brain import support
from tests.unit.services.brain.support import OPERATOR, OTHER, Api, facts_json

api = support.api
TENANT, NEIGHBOUR = Tenant("team", frozenset({"team"})), Tenant("other", frozenset({"other"}))
JOB = JobKey("team", "uid-1")


class Clock:
    """A clock that only changes when it is set."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def test_a_tenant_that_asks_too_often_waits_alone() -> None:
    """The calls of a tenant that asks too often are rejected for a while. Calls of other tenants and of
    operators are not."""
    clock = Clock()
    counted = TenantLimits(clock, calls_per_second=10)
    for _ in range(200):
        counted.take(TENANT, JOB)
    with pytest.raises(UnavailableError, match="team sends more than 10 requests a second"):
        counted.take(TENANT, JOB)
    counted.take(NEIGHBOUR, JobKey("other", "uid-1"))
    counted.take(Tenant("ops"), JOB)
    clock.now += 1 / 10
    counted.take(TENANT, JOB)


def test_a_tenant_that_reports_about_too_many_jobs_waits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """New jobs beyond the limit are rejected, known ones continue, and a day later new ones are accepted
    again."""
    monkeypatch.setattr(limits, "MAX_JOBS", 2)
    clock = Clock()
    counted = TenantLimits(clock)
    for uid in ("a", "b"):
        counted.take(TENANT, JobKey("team", uid))
    with pytest.raises(UnavailableError, match="2 jobs within a day"):
        counted.take(TENANT, JobKey("team", "c"))
    counted.take(TENANT, JobKey("team", "a"))
    clock.now += limits.JOB_SECONDS + 1
    counted.take(TENANT, JobKey("team", "c"))


def test_the_api_keeps_to_the_limits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and requests beyond the limit get 503 with Retry-After, and are not stored."""
    monkeypatch.setattr(limits, "MAX_JOBS", 1)
    assert api.report().status_code == 200
    second = facts_json("uid-2")
    for refused in (
        api.report(job=second),
        api.post("optimize", {"job": second, "stage": "job_stage_create"}),
    ):
        assert refused.status_code == 503
        assert "Retry-After" in refused.headers
        assert "within a day" in refused.json()["error"]
    assert api.as_(OPERATOR).get("jobs/uid-2").status_code == 404
    assert api.as_(OTHER).report(job=facts_json("uid-3", namespace="other")).status_code == 200


def test_three_thousand_jobs_of_one_tenant_are_served() -> None:
    """No call of 3,000 jobs is rejected for ten minutes, although each reports every 15 seconds and requests
    a plan every 30, all in the same second."""
    clock = Clock()
    counted = TenantLimits(clock)
    for second in range(0, 600, 15):
        clock.now = float(second)
        for number in range(3_000):
            for _ in range(2 if second % 30 == 0 else 1):
                counted.take(TENANT, JobKey("team", f"uid-{number}"))


@pytest.mark.parametrize("path", ["jobs", "jobs/uid-1", "jobs/uid-1/metrics", "plans", "cluster"])
def test_reading_is_limited_too(path: str, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that reads too often gets 503 with Retry-After; operators do not."""
    api.report()
    monkeypatch.setattr(TenantLimits, "take", _refuse_tenants)
    refused = api.get(path)
    assert refused.status_code == 503
    assert "Retry-After" in refused.headers
    assert api.as_(OPERATOR).get(path).status_code == 200


def _refuse_tenants(_limits: TenantLimits, tenant: Tenant, _job: JobKey | None = None) -> None:
    if tenant.namespaces is not None:
        raise UnavailableError("the tenant asks too much")
