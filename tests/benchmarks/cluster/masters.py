"""Stands in for the masters of many jobs whose pods run nothing: as each master pod runs, asks for its job's
nodes.

A master's first act is an auto ScalePlan with the pods of its job; so much is done here, once a job, as a
user of its own::

    python -m tests.benchmarks.cluster.masters KUBECONFIG
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import PODS, Scope
from edl_workflows.runtime.kube.watch import EventType

ROLES = {"ps": 1, "worker": 2}
"""With the master four pods a job, as many as a TFJob of one parameter server and three workers has."""


def plan(job: str) -> dict[str, Any]:
    """What the job's master asks for."""
    pods = [
        {"name": names.node_name(job, role, index), "id": index, "type": role, "rankIndex": index}
        for role, count in ROLES.items()
        for index in range(count)
    ]
    labels = {names.JOB_LABEL: job, names.SCALE_TYPE_LABEL: names.SCALE_AUTO}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": f"{job}-plan-1", "labels": labels},
        "spec": {"ownerJob": job, "createPods": pods},
    }


def main() -> None:
    """Serve until killed."""
    cluster = Cluster.from_kubeconfig(sys.argv[1])
    asked: set[str] = set()
    with ThreadPoolExecutor(2) as pool:

        def changed(change: ObjectChange) -> None:
            pod = change.object
            job = pod["metadata"]["labels"][names.JOB_LABEL]
            runs = (
                change.type is not EventType.DELETED and (pod.get("status") or {}).get("phase") == "Running"
            )
            if runs and job not in asked:
                asked.add(job)
                pool.submit(client.create, cluster, plan(job), pod["metadata"]["namespace"])

        selector = f"{names.REPLICA_TYPE_LABEL}={names.MASTER_TYPE}"
        informer = Informer(ClusterSource.of(cluster), Scope(PODS, label_selector=selector))
        informer.on_change(changed)
        informer.start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
