"""What `edl install` makes of Brain."""

from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import rbac, workloads
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.brain.monitor import NODE_METRICS, ClusterMonitor, MonitorOptions
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.pipelines.install.test_manifests import IMAGE, of_kind, rights
from tests.unit.services.brain import support

sqlite_store = support.sqlite_store


def brain(**options: Any) -> tuple[InstallOptions, dict[str, Any], dict[str, Any]]:
    """An installation with the Brain: all objects, the pod spec of its Deployment, and its container."""
    made = InstallOptions(image=IMAGE, parts=frozenset({InstallPart.BRAIN}), **options)
    found = next(o for o in of_kind(made, "Deployment") if o["metadata"]["name"] == names.BRAIN)
    container = found["spec"]["template"]["spec"]["containers"][0]
    return made, found["spec"], container


def test_brain_is_where_masters_look_for_it() -> None:
    """Brain's Service leads to its API, which the masters' pods of all namespaces may call. The tokens come
    from the Secret `edl-brain`."""
    options, spec, container = brain()
    service = next(o for o in of_kind(options, "Service") if o["metadata"]["name"] == names.BRAIN)
    policy = next(o for o in of_kind(options, "NetworkPolicy") if o["metadata"]["name"] == names.BRAIN)
    api = policy["spec"]["ingress"][1]

    assert service["spec"]["ports"] == [{"name": "api", "port": names.BRAIN_PORT, "targetPort": "api"}]
    assert {"name": "api", "containerPort": names.BRAIN_PORT} in container["ports"]
    assert [port["port"] for port in api["ports"]] == [names.BRAIN_PORT]
    assert api["from"][0]["podSelector"]["matchLabels"] == {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}
    command = container["command"]
    folder, _, file = command[command.index("--tokens-file") + 1].rpartition("/")
    mount = next(one for one in container["volumeMounts"] if one["mountPath"] == folder)
    volume = next(one for one in spec["template"]["spec"]["volumes"] if one["name"] == mount["name"])
    assert volume["secret"] == {"secretName": names.BRAIN}
    assert file == workloads.BRAIN_TOKENS
    assert mount["readOnly"]


def test_brain_keeps_its_store_on_a_volume() -> None:
    """Brain's database is on a volume claim that its user may write to, and two Brains never run on it."""
    options, spec, container = brain()
    (claim,) = of_kind(options, "PersistentVolumeClaim")
    (mount,) = (one for one in container["volumeMounts"] if not one["readOnly"])
    (url,) = (one["value"] for one in container["env"] if one["name"] == names.ENV_BRAIN_DATABASE_URL)

    assert claim["metadata"]["name"] == names.BRAIN
    assert url == f"sqlite:///{mount['mountPath']}/brain.db"
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["template"]["spec"]["securityContext"]["fsGroup"] > 0


def test_brain_reads_a_database_s_url_from_a_secret() -> None:
    """With PostgreSQL there is no volume, and no manifest contains the password."""
    options, _, container = brain(brain_database_secret="postgres")
    (variable,) = container["env"]

    assert not of_kind(options, "PersistentVolumeClaim")
    assert variable == {
        "name": names.ENV_BRAIN_DATABASE_URL,
        "valueFrom": {"secretKeyRef": {"name": "postgres", "key": "url"}},
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_brain_has_the_rights_that_its_monitor_needs(sqlite_store: BrainStore, tmp_path: Path) -> None:
    """Brain may list and watch what the monitor's informers do, and list the metrics of nodes. In an
    installation for a single namespace there is no monitor, and the pod has no token for the API server."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    cluster = Cluster.from_kubeconfig(tmp_path / "kubeconfig")
    monitor = ClusterMonitor(cluster, sqlite_store, MonitorOptions())
    watched = {(one.scope.resource.group, one.scope.resource.plural) for one in monitor._watches._informers}
    expected = {(*one, verb) for one in watched for verb in ("list", "watch")}
    expected.add((NODE_METRICS.group, NODE_METRICS.plural, "list"))
    _, spec, container = brain()
    assert rights(rbac.brain_rules()) == expected
    assert container["command"].count("--monitor") == spec["template"]["spec"]["automountServiceAccountToken"]

    options, spec, container = brain(jobs_namespaces=NamespaceSelection.of("training"))
    assert "--monitor" not in container["command"]
    assert not spec["template"]["spec"]["automountServiceAccountToken"]
    assert not [role for role in of_kind(options, "Role") if role["metadata"]["name"] == names.BRAIN]
