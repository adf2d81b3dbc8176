"""Builders of jobs and plans for tests of the kinds."""

from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.jobs.testing import JobsNamespace

Manifest = dict[str, Any]


def make_template() -> Manifest:
    """The template of a training pod."""
    container = {
        "name": "main",
        "image": "train:1",
        "command": ["edl", "agent", "run", "--", "python", "train.py"],
    }
    return {"spec": {"containers": [container]}}


def make_job(**spec: Any) -> Manifest:
    """A job of 2 parameter servers and 1 worker."""
    base = {
        "replicaSpecs": {
            "ps": {"replicas": 2, "template": make_template()},
            "worker": {"replicas": 1, "template": make_template()},
        }
    }
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "namespace": "default"},
        "spec": base | spec,
    }


def make_plan(name: str = "plan", *, auto: bool = False, **spec: Any) -> Manifest:
    """A plan for that job."""
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"scale-type": "auto" if auto else "manual", "elasticjob.dlrover/name": "digits"},
        },
        "spec": {"ownerJob": "digits"} | spec,
    }


@pytest.fixture
def job() -> Callable[..., Manifest]:
    """See `make_job`."""
    return make_job


@pytest.fixture
def plan() -> Callable[..., Manifest]:
    """See `make_plan`."""
    return make_plan


@pytest.fixture
def world() -> JobsNamespace:
    """An empty namespace."""
    return JobsNamespace()


@pytest.fixture
def running(world: JobsNamespace) -> JobsNamespace:
    """A namespace with a job whose master runs."""
    world.add(make_job())
    world.settle()
    world.set_pod("elasticjob-digits-dlrover-master-0", "Running")
    world.settle()
    return world
