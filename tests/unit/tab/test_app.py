"""The tab's endpoints without Airflow's database: what is refused before anything is asked."""

import asyncio

import httpx
import pytest

from edl_workflows.tab.app import make_app


@pytest.mark.parametrize("declared", ["", "text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_a_decision_must_be_declared_as_json(declared: str) -> None:
    """A page of any origin can make the browser send a form, a text or a body without a type together with
    the user's cookie, so these are refused; FastAPI before 0.132 reads a body without a type as JSON."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.post(
                "/dags/training/decisions?run_id=run",
                content=b'{"action": "approve", "kind": "ElasticJob", "namespace": "n", "name": "j"}',
                headers={"Content-Type": declared} if declared else {},
            )

    assert asyncio.run(send()).status_code == 415
