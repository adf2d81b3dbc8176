"""Builders of jobs and plans for tests of the kinds."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cases.kind import Manifest
from tests.cases.kinds.elastic_job import make_elastic_job
from tests.jobs_namespace import JobsNamespace


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
    """See `make_elastic_job`."""
    return make_elastic_job


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
    world.add(make_elastic_job())
    world.settle()
    world.set_pod("elasticjob-digits-dlrover-master-0", "Running")
    world.settle()
    return world
