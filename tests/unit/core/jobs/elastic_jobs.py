"""What the tests of ElasticJobs ask a namespace for."""

from collections.abc import Callable
from typing import Any

from tests.jobs_namespace import JobsNamespace

MASTER = "elasticjob-digits-dlrover-master-0"
SECOND = "elasticjob-digits-dlrover-master-1"
"""The pod of the master that replaces the first."""
Make = Callable[..., dict[str, Any]]


def status(world: JobsNamespace) -> dict[str, Any]:
    found: dict[str, Any] = world.objects["ElasticJob", "digits"]["status"]
    return found


def condition(world: JobsNamespace, kind: str) -> str:
    found = [c["status"] for c in status(world)["conditions"] if c["type"] == kind]
    return found[0] if found else "absent"


def create_nodes(world: JobsNamespace, plan: Make, *names: str) -> None:
    """Let an auto plan make these nodes, and let them run."""
    metas = []
    for name in names:
        kind, _, number = name.rpartition("-")
        metas.append(
            {"name": f"digits-edljob-{name}", "type": kind, "id": int(number), "rankIndex": int(number)}
        )
    world.add(plan(f"digits-scaleplan-{len(world.objects)}", auto=True, createPods=metas))
    world.settle()
    for name in names:
        world.set_pod(f"digits-edljob-{name}", "Running")
    world.settle()
