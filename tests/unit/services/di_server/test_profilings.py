"""What programs report of their training."""

import json
import threading
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.di_server.profilings import MAX_BYTES, MAX_LEVELS, merge_profilings
from tests.unit.services.di_server.support import ADMIN, HTTP, Api, create, data, job, refusal

pytestmark = pytest.mark.slow


def post(api: Api, body: bytes) -> Any:
    url = f"{api.url}/v2alpha1/{api.path('profilings')}"
    return HTTP.post(url, content=body, headers={"Authorization": f"Bearer {ADMIN}"})


def test_reports_are_kept_in_the_status(api: Api, cluster: Cluster) -> None:
    """Reports are merged; null removes a key, and upstream's form with `data` means the same. Nothing else in
    the status changes."""
    create(cluster, token="t")
    api.seen()
    before = client.get(cluster, DI_JOBS, "walk")["status"]
    assert data(api.ask("POST", api.path("profilings"), json={"speed": 2.5, "old": 1})) is None
    assert (
        data(api.ask("POST", api.path("profilings"), json={"data": {"old": None, "a": {"b": [1]}}})) is None
    )
    assert job(cluster).status.profilings == {"speed": 2.5, "a": {"b": [1]}}
    after = client.get(cluster, DI_JOBS, "walk")["status"]
    assert {key: value for key, value in after.items() if key != "profilings"} == before


def test_the_same_report_writes_nothing(api: Api, cluster: Cluster) -> None:
    """A report that changes nothing writes nothing, so that a program may report as often as it likes."""
    create(cluster)
    api.seen()
    data(api.ask("POST", api.path("profilings"), json={"speed": 1}))
    version = client.get(cluster, DI_JOBS, "walk")["metadata"]["resourceVersion"]
    data(api.ask("POST", api.path("profilings"), json={"speed": 1}))
    assert client.get(cluster, DI_JOBS, "walk")["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"speed": NaN}', "no JSON"),
        (b'{"speed": 1e999}', "not a JSON number"),
        (b'{"n": 9223372036854775808}', "below 2^63"),
        (b'{"n": [-99999999999999999999999]}', "below 2^63"),
        (b'{"t": "\xff"}', "no JSON"),
        (b'{"t": "\\ud800"}', "no JSON"),
        (b'{"a": ' + b"[" * MAX_LEVELS + b"]" * MAX_LEVELS + b"}", "nested deeper"),
        (b'{"a": ' + b"[" * 50_000, "no JSON"),
        (json.dumps({"a": "x" * MAX_BYTES}).encode(), "at most 65536"),
    ],
    ids=range(13),
)
def test_what_can_t_be_kept_is_refused(api: Api, cluster: Cluster, body: bytes, said: str) -> None:
    """A report that can't be stored gets 422 with the reason."""
    create(cluster)
    api.seen()
    assert said in refusal(post(api, body), 422)
    assert job(cluster).status.profilings == {}


def test_reports_at_once_keep_to_the_limit(api: Api, cluster: Cluster) -> None:
    """Concurrent reports count together towards the limit: none is lost, and those beyond it are rejected."""
    create(cluster)
    api.seen()
    answers: dict[int, int] = {}

    def report(index: int) -> None:
        body = {f"k{index}": "x" * (MAX_BYTES // 4)}
        answers[index] = api.ask("POST", api.path("profilings"), json=body).status_code

    threads = [threading.Thread(target=report, args=(index,)) for index in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [200] * 3 + [422] * 7
    kept = job(cluster).status.profilings
    assert kept.keys() == {f"k{index}" for index, status in answers.items() if status == 200}


def test_a_report_from_what_was_seen_earlier_is_checked_anew(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that another server stored in the meantime counts towards the limit, too."""
    create(cluster)
    api.seen()
    patch = client.patch
    others = iter([{"profilings": {"theirs": "x" * (MAX_BYTES // 2)}}])

    def late(*arguments: Any, **more: Any) -> Any:
        for status in others:
            client.patch_status(cluster, DI_JOBS, "walk", status)
        return patch(*arguments, **more)

    monkeypatch.setattr(client, "patch", late)
    body = {"ours": "x" * (MAX_BYTES // 2)}
    assert "at most 65536" in refusal(api.ask("POST", api.path("profilings"), json=body), 422)
    assert job(cluster).status.profilings.keys() == {"theirs"}


def test_reports_don_t_add_up_beyond_the_limit() -> None:
    """The limit applies to the merged result, so that a report which makes it smaller is always accepted."""
    half = {"a": "x" * (MAX_BYTES // 2)}
    assert merge_profilings(half, {"a": None, "b": half["a"]}) == {"b": half["a"]}
    with pytest.raises(InvalidError, match="at most 65536"):
        merge_profilings(half, {"b": half["a"]})
