"""The roles are minimal: each right was used in this run, as the API server's audit log says. Runs last of
the lane.

What uses them are the other tests, those of `test_install.py`, `test_install_kinds.py` and
`test_install_brain.py` above all: run the four together.
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.installed import RBAC, account_of, apply

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

STARTED = dt.datetime.now(dt.UTC)
"""Tests are collected before the first runs: what is older in a log is of another run."""

MASTER = "a job's master"
_REASON = re.compile(r'^RBAC: allowed by (?:Cluster)?RoleBinding "[^"]+" of (?:Cluster)?Role "([^"]+)" ')
_MASTER_ROLE = names.master_account_name("")
FINALIZE = {
    (kind.source.api.group, f"{kind.source.api.plural}/finalizers", "update") for kind in KINDS if kind.view
}
"""No request uses these: admission asks for them. `test_a_child_may_block_only_for_who_may_finalize` is their
proof."""


@pytest.fixture(scope="module")
def used(bed: Bed) -> dict[str, set[Right]]:
    """Role → the rights that requests of this run were allowed by."""
    found: dict[str, set[Right]] = {}
    for role, right in _allowed(bed.audit_log):
        found.setdefault(MASTER if role.endswith(_MASTER_ROLE) else role, set()).add(right)
    assert names.CONTROLLER in found, (
        "no installation ran: run this together with test_install.py, test_install_kinds.py and "
        "test_install_brain.py"
    )
    return found


def _allowed(log: Path) -> Iterable[tuple[str, Right]]:
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            if "RBAC: allowed by" not in line or "edl" not in line:
                continue  # most lines, and parsing is slow
            entry = json.loads(line)
            if "objectRef" not in entry:
                continue  # discovery, which everyone may
            reason = _REASON.match(entry["annotations"]["authorization.k8s.io/reason"])
            if reason and dt.datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= STARTED:
                of = entry["objectRef"]
                resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
                yield reason[1], (of.get("apiGroup", ""), resource, entry["verb"])


def rights(rules: Iterable[dict[str, Any]]) -> set[Right]:
    """Each single right of some rules."""
    return {
        (group, resource, verb)
        for one in rules
        for group in one["apiGroups"]
        for resource in one["resources"]
        for verb in one["verbs"]
    }


ROLES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    names.CONTROLLER: rbac.controller_rules,
    f"{names.CONTROLLER}-leader-election": lambda: rbac.lease_rules(names.CONTROLLER, listed=True),
    MASTER: lambda: pods.master_rules("any"),
    rbac.PIPELINE: rbac.pipeline_rules,
    rbac.VIEWER: rbac.viewer_rules,
    rbac.TRIGGERER: rbac.triggerer_rules,
    rbac.ARGO_AGENT: rbac.argo_agent_rules,
    f"{rbac.ARGO_AGENT}-leader-election": lambda: rbac.lease_rules(rbac.ARGO_AGENT),
    names.DI_SERVER: rbac.di_server_rules,
    names.BRAIN: rbac.brain_rules,
}

LENT = {
    # The API server lets nobody give what he does not have: the controller holds what it gives to masters.
    names.CONTROLLER: MASTER,
    # The agent runs the same stages as a pipeline's account; its own steps are the few that its tests need.
    rbac.ARGO_AGENT: rbac.PIPELINE,
}
"""Role → whose use of a right counts for it, too."""


@pytest.mark.parametrize("role", ROLES)
def test_every_right_was_used(used: dict[str, set[Right]], role: str) -> None:
    """Each right of each role was used at least once in the whole run."""
    needed = used[role] | used.get(LENT.get(role, ""), set())
    if role == names.CONTROLLER:
        needed = needed | FINALIZE

    assert sorted(rights(ROLES[role]()) - needed) == []


def test_every_role_is_looked_at() -> None:
    """Each role of the installation has a row in the table above."""
    options = InstallOptions("registry.example/edl:1", kinds=("all",), parts=frozenset(InstallPart))
    roles = {
        one["metadata"]["name"]
        for one in installation_manifests(options)
        if one["kind"] in ("Role", "ClusterRole")
    }

    assert roles == set(ROLES) - {MASTER}


def test_a_child_may_block_only_for_who_may_finalize(
    bed: Bed, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Where OwnerReferencesPermissionEnforcement is on, the account that creates a job's children needs the
    right to update the job's finalizers."""
    where = cluster.in_namespace(namespace)
    container = {"name": "main", "image": "none"}
    owner = client.create(where, {
        "apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": "owner"},
        "spec": {"replicaSpecs": {"worker": {"template": {"spec": {"containers": [container]}}}}},
    })  # fmt: skip
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    metadata = {
        "name": "child",
        "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
    }
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    maker = account_of(
        bed, namespace, "maker", tmp_path, [rbac.policy_rule("", "configmaps", "create", "delete")]
    )
    client.create(maker, child | {"metadata": {"name": "plain"}})

    with pytest.raises(ForbiddenError, match="blockOwnerDeletion"):
        client.create(maker, child)
    apply(
        bed,
        [
            _role(
                namespace,
                [
                    rbac.policy_rule("", "configmaps", "create"),
                    rbac.policy_rule(names.GROUP, "elasticjobs/finalizers", "update"),
                ],
            )
        ],
    )
    until(lambda: _made(maker, child), "the right to finalize lets it be made")


def _role(namespace: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": RBAC,
        "kind": "Role",
        "metadata": {"name": "maker", "namespace": namespace},
        "rules": rules,
    }


def _made(cluster: Cluster, manifest: dict[str, Any]) -> bool:
    try:
        client.create(cluster, manifest)
    except ForbiddenError:
        return False
    return True
