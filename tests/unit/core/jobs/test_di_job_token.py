"""A DIJob's token: how its programs show the DI server whose they are."""

import base64
import datetime as dt
from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs.actions import Actions, Observed
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.kind import DI_JOB

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TASK = {"type": "learner", "template": {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}}


def job(**status: Any) -> dict[str, Any]:
    """A job of one replica."""
    return {
        "apiVersion": "diengine.opendilab.org/v2alpha1",
        "kind": "DIJob",
        "metadata": {"name": "walk", "namespace": "default", "uid": "u1", "generation": 1},
        "spec": {"tasks": [TASK]},
        "status": status,
    }


def decided(manifest: dict[str, Any], token: str, *objects: Mapping[str, Any]) -> Actions:
    """The decision, with a fresh token at hand."""
    found: dict[str, list[Any]] = {}
    for obj in objects:
        found.setdefault(obj["kind"], []).append(obj)
    return DI_JOB.decide(manifest, Observed(NOW, found, new_token=token))


def test_the_token_is_made_before_the_pods_that_have_it() -> None:
    """The Secret is created before the pods, every container has its token, and the status has only its
    digest."""
    actions = decided(job(), "secret-1")
    assert [manifest["kind"] for manifest in actions.create] == ["Secret", "Service", "Pod"]
    secret, _, pod = actions.create
    assert base64.b64decode(secret["data"]["token"]) == b"secret-1"
    reference = {"secretKeyRef": {"name": "walk-di-token", "key": "token"}}
    assert {"name": "DI_TOKEN", "valueFrom": reference} in pod["spec"]["containers"][0]["env"]
    assert actions.status is not None
    assert actions.status["tokenDigest"] == pods.token_digest("secret-1")
    assert "secret-1" not in str(actions.status)


def test_the_token_stays() -> None:
    """A job that has its Secret creates no other, and the token digest in its status does not change."""
    first = decided(job(), "secret-1")
    assert first.status is not None
    again = decided(job(**first.status), "secret-2", *first.create)
    assert not again.create
    assert "tokenDigest" not in (again.status or {})


def test_a_lost_token_is_made_anew() -> None:
    """A deleted Secret is replaced, and the digest in the status changes with it."""
    first = decided(job(), "secret-1")
    assert first.status is not None
    again = decided(job(**first.status), "secret-2", *first.create[1:])
    assert [manifest["kind"] for manifest in again.create] == ["Secret"]
    assert (again.status or {})["tokenDigest"] == pods.token_digest("secret-2")
