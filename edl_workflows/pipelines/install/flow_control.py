"""FlowSchemas and PriorityLevelConfigurations: which share of the API server's requests the controller and
the masters get (API Priority and Fairness, Kubernetes 1.29 and newer).

Without them, all service accounts of a cluster share the priority level `workload-low`, in which thousands of
masters that reconnect delay the controller and the controllers of others. With them, controllers and masters
have a level each. A level has a guaranteed number of concurrent requests and borrows from others only what
they don't use. Within a level, the API server serves the accounts in turn.
"""

from collections.abc import Iterator
from typing import Any

from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.install.options import InstallOptions

Manifest = dict[str, Any]

MASTERS = "edl-masters"
"""Name of the masters' FlowSchema and priority level."""
ELECTIONS = "edl-leader-election"
"""Name of the FlowSchema for Leases. It does not begin with the name of another one and a dash: a namespace's
name follows there."""
_API = "flowcontrol.apiserver.k8s.io/v1"
_ELECTION = "leader-election"
"""Priority level that each API server has. Without it, leases are in the controller's level."""
_SHARES = 10
"""A level's part of all concurrent requests: 10 of about 265 shares, so about 22 of 600 requests by default.
A controller has at most about 20 at a time, and 35 while it creates many pods in parallel. The level borrows
up to as many requests again; what is above waits in its queues."""
_ACCOUNTS = (names.CONTROLLER, rbac.ARGO_AGENT, names.DI_SERVER, names.BRAIN)
_PRECEDENCE = 1000
"""Of the first FlowSchema. It is after those of Kubernetes' own components and before `service-accounts`."""


def priority_levels() -> Iterator[Manifest]:
    """The levels of controllers and of masters, which all installations of a cluster share: levels of their
    own would take requests from the rest of the cluster with each installation."""
    yield _level(names.CONTROLLER, queues=32)
    yield _level(MASTERS, queues=128)


def flow_schemas(options: InstallOptions) -> Iterator[Manifest]:
    """Which requests of an installation are in which level. A FlowSchema whose level is missing has no
    effect."""
    accounts = [_account(options.namespace, name) for name in _ACCOUNTS]
    leases = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["*"],
        "namespaces": [options.namespace],
    }
    yield _schema(options, ELECTIONS, _ELECTION, 0, accounts, [leases])
    everything = {
        "apiGroups": ["*"],
        "resources": ["*"],
        "verbs": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    yield _schema(options, names.CONTROLLER, names.CONTROLLER, 1, accounts, [everything])
    yield _schema(options, MASTERS, MASTERS, 2, _masters(options), _master_rules(options))


def _masters(options: InstallOptions) -> list[Manifest]:
    """Each master has an account of its own, and a FlowSchema can match neither names by their suffix nor
    namespaces by their labels."""
    every = "system:serviceaccounts"
    groups = [f"{every}:{namespace}" for namespace in options.jobs_namespaces.names] or [every]
    return [{"kind": "Group", "group": {"name": group}} for group in groups]


def _master_rules(options: InstallOptions) -> list[Manifest]:
    """What masters request. If the namespaces are not named, only what is about our own resources: other
    accounts than masters read pods, too."""
    rules, named = pods.master_rules(""), options.jobs_namespaces.names
    own = [rule for rule in rules if named or rule["apiGroups"] == [names.GROUP]]
    return [
        {key: rule[key] for key in ("apiGroups", "resources", "verbs")} | {"namespaces": list(named) or ["*"]}
        for rule in own
    ]


def _account(namespace: str, name: str) -> Manifest:
    return {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}}


def _schema(
    options: InstallOptions,
    name: str,
    level: str,
    place: int,
    subjects: list[Manifest],
    rules: list[Manifest],
) -> Manifest:
    return {
        "apiVersion": _API,
        "kind": "FlowSchema",
        "metadata": {"name": options.name_in_cluster(name)},
        "spec": {
            "priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": _PRECEDENCE + place,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": subjects, "resourceRules": rules}],
        },
    }


def _level(name: str, queues: int) -> Manifest:
    queuing = {"queues": queues, "handSize": 6, "queueLengthLimit": 50}
    return {
        "apiVersion": _API,
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": _SHARES,
                "lendablePercent": 50,
                "borrowingLimitPercent": 100,
                "limitResponse": {"type": "Queue", "queuing": queuing},
            },
        },
    }
