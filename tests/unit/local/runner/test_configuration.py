"""What a container sees: variables, arguments and volumes."""

import json
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.local.pods import Container
from edl_workflows.local.runner.environment import ContainerConfigError
from edl_workflows.local.runner.launches import LOOPBACK_VARIABLES
from edl_workflows.local.runner.support import mounts_possible
from edl_workflows.local.runner.volumes import Lookups, PodVolumes, remove_memory, remove_orphaned_memory
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import CONFIG_MAPS
from tests.unit.local.support import Pods, container, eventually

needs_mounts = pytest.mark.skipif(not mounts_possible(), reason="the machine grants no mount namespaces")


def missing(_name: str) -> None:
    """No ConfigMap or Secret."""


def uid_of(pods: Pods, name: str) -> str:
    """A pod's."""
    return str(pods.get(name)["metadata"]["uid"])


def make(pods: Pods, kind: str, name: str, **data: str) -> None:
    """Make a ConfigMap or Secret."""
    field = "data" if kind == "ConfigMap" else "stringData"
    client.create(pods.cluster, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data})


def test_variables_come_from_everywhere(pods: Pods) -> None:
    """A container's environment comes from fields, resources, ConfigMaps, Secrets and earlier variables."""
    make(pods, "ConfigMap", "config", color="blue", size="XL")
    make(pods, "Secret", "secret", password="hush")
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {
            "name": "MEMORY",
            "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}},
        },
        {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "color"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "BOTH", "value": "$(NAME)-$(COLOR)-$$(NAME)-$(UNKNOWN)"},
    ]
    names = ["NAME", "APP", "CPU", "MEMORY", "COLOR", "BOTH", "S_password", "size", "ABSENT", "EDL_SECRET"]
    program = f"import json, os, sys; print(json.dumps([os.environ.get(n) for n in {names}] + sys.argv[1:]))"
    pods.create(
        "sees",
        {
            "name": "main",
            "image": "x",
            "command": ["python", "-c", program],
            "args": ["$(BOTH)"],
            "env": env,
            "envFrom": [
                {"configMapRef": {"name": "config"}},
                {"prefix": "S_", "secretRef": {"name": "secret"}},
            ],
            "resources": {"requests": {"memory": "32Mi"}, "limits": {"cpu": "0.5"}},
        },
        labels={"app": "demo"},
    )
    pods.end("sees")
    both = "sees-blue-$(NAME)-$(UNKNOWN)"

    assert json.loads(pods.logs("sees")) == [
        "sees",
        "demo",
        "500",
        "32",
        "blue",
        both,
        "hush",
        "XL",
        None,
        None,
        both,
    ]


def test_a_container_inherits_nothing_secret(pods: Pods) -> None:
    """Only the few variables that programs need come from the cluster's own environment."""
    pods.create("bare", container("env | cut -d= -f1 | sort"))
    pods.end("bare")
    allowed = {
        "HOME",
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONPATH",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
    own = {"HOSTNAME", "KUBECONFIG", "PWD", "OLDPWD", "_", "SHLVL", *LOOPBACK_VARIABLES}

    assert {one for one in pods.logs("bare").split() if not one.startswith("EDL_")} - allowed - own == set()


def test_working_directory(pods: Pods, tmp_path: Path) -> None:
    """A container starts in its workingDir. A missing one is an error that names it."""
    pods.create("there", container("pwd", workingDir=str(tmp_path)))
    pods.create("nowhere", container("pwd", workingDir="/no/such/folder"))
    pods.end("there")
    ended = pods.end("nowhere")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert pods.logs("there") == str(tmp_path)
    assert "/no/such/folder" in ended["message"]


def test_host_path_in_place(pods: Pods, tmp_path: Path) -> None:
    """A hostPath volume mounted at its own path is available without a mount."""
    mount = [{"name": "data", "mountPath": str(tmp_path)}]
    pods.create(
        "writes",
        container(f"echo x > {tmp_path}/out", volumeMounts=mount),
        volumes=[{"name": "data", "hostPath": {"path": str(tmp_path)}}],
    )

    assert pods.end("writes")["status"]["phase"] == "Succeeded"
    assert (tmp_path / "out").read_text() == "x\n"


_DELETES_MEANWHILE = """
import contextlib, os, sys
from edl_workflows.local.runner import shim

def list_and_delete(folder, scandir=os.scandir):
    found = scandir(folder)
    entries = list(found)
    found.close()
    os.unlink(folder + "/deleted-file")
    os.rmdir(folder + "/deleted-folder")
    return contextlib.nullcontext(entries)

shim.os.scandir = list_and_delete
source, target, scratch = sys.argv[1:]
shim._enter_mounts([{"source": source, "target": target, "readOnly": False}], scratch)
print(*sorted(os.listdir(os.path.dirname(target))), *os.listdir(target))
"""


@needs_mounts
def test_a_container_starts_while_files_beside_its_mount_are_deleted(tmp_path: Path) -> None:
    """Another program deletes a file and a folder beside a missing mount point, after the shim has listed
    them: the container starts, without them."""
    busy, source, scratch = (tmp_path / name for name in ("busy", "source", "scratch"))
    for folder in (busy / "deleted-folder", busy / "other", source, scratch):
        folder.mkdir(parents=True)
    for file in (busy / "deleted-file", source / "inside"):
        file.touch()

    program = [sys.executable, "-c", _DELETES_MEANWHILE, str(source), str(busy / "mounted"), str(scratch)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)

    assert (ended.returncode, ended.stdout.split()) == (0, ["mounted", "other", "inside"]), ended.stderr


@needs_mounts
def test_volumes_appear_where_they_are_mounted(pods: Pods, tmp_path: Path) -> None:
    """ConfigMap, Secret, emptyDir, downward API and hostPath volumes appear at paths that the machine does
    not have."""
    make(pods, "ConfigMap", "config", **{"a.txt": "one", "b.txt": "two"})
    make(pods, "Secret", "secret", key="hush")
    volumes = [
        {"name": "c", "configMap": {"name": "config", "items": [{"key": "a.txt", "path": "deep/a"}]}},
        {"name": "s", "secret": {"secretName": "secret"}},
        {"name": "e", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {
            "name": "d",
            "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]},
        },
        {"name": "h", "hostPath": {"path": str(tmp_path)}},
    ]
    mounts = [
        {"name": "c", "mountPath": "/etc/edl-config"},
        {"name": "s", "mountPath": "/run/secrets-of/edl"},
        {"name": "e", "mountPath": "/edl-work"},
        {"name": "m", "mountPath": "/dev/shm"},
        {"name": "d", "mountPath": "/edl-pod"},
        {"name": "h", "mountPath": "/edl-host", "readOnly": True},
    ]
    writes = (
        "cat /etc/edl-config/deep/a /run/secrets-of/edl/key /edl-pod/name; echo shared > /edl-work/x; "
        "echo > /dev/shm/y; touch /edl-host/z"
    )
    reads = "cat /edl-work/x; ls /dev/shm"
    pods.create(
        "mounts",
        container(reads, volumeMounts=mounts),
        initContainers=[container(writes + " || true", "init", volumeMounts=mounts)],
        volumes=volumes,
    )
    pods.end("mounts")

    assert pods.logs("mounts", container="init").startswith("onehushmounts")
    assert "Read-only file system" in pods.logs("mounts", container="init")
    assert pods.logs("mounts", container="main").split() == ["shared", "y"]
    assert not Path("/edl-work").exists()
    assert list(tmp_path.iterdir()) == []


@needs_mounts
def test_a_changed_config_map_reaches_a_running_container(pods: Pods) -> None:
    """A change of a ConfigMap appears in the files of its volume in a running container."""
    make(pods, "ConfigMap", "live", value="old")
    mount = [{"name": "c", "mountPath": "/etc/edl-live"}]
    pods.create(
        "reads",
        container("until grep new /etc/edl-live/value; do sleep 0.05; done", volumeMounts=mount),
        volumes=[{"name": "c", "configMap": {"name": "live"}}],
    )
    pods.phase("reads", "Running")
    client.patch(pods.cluster, CONFIG_MAPS, "live", {"data": {"value": "new"}})

    assert pods.end("reads")["status"]["phase"] == "Succeeded"


@needs_mounts
def test_a_custom_termination_log_is_read(pods: Pods) -> None:
    """What a container writes to its terminationMessagePath becomes its message."""
    pods.create(
        "tells", container("echo because > /tmp/edl-why; exit 1", terminationMessagePath="/tmp/edl-why")
    )

    assert (
        pods.end("tells")["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "because\n"
    )


@needs_mounts
def test_an_empty_dir_over_its_limit_evicts_the_pod(pods: Pods) -> None:
    """A pod that writes more into an emptyDir than its sizeLimit fails with reason Evicted and the volume's
    name."""
    volume = {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    script = "head -c 3000000 /dev/zero > /cache/x; exec sleep 300"
    mount = [{"name": "cache", "mountPath": "/cache"}]
    pods.create("hoards", container(script, volumeMounts=mount), volumes=[volume])
    status = pods.end("hoards")["status"]

    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"] == 'Usage of EmptyDir volume "cache" exceeds the limit "1Mi".'


def test_shared_memory_of_a_pod_goes_with_it(pods: Pods) -> None:
    """Each pod has a folder in the machine's shared memory, where agents keep copies of the model. After a
    container is killed, the next one of the pod finds its content. After the pod's end it is removed."""
    place = f"${names.ENV_SHARED_MEMORY}"
    script = f"echo {place}; ls {place}; mkdir {place}/left && kill -9 $$$$; exec sleep 300"
    pods.create("keeps", container(script), restartPolicy="OnFailure")
    folder = Path(pods.prints("keeps", "left").split()[0])
    assert (folder / "left").is_dir()
    assert folder.parent.parent == Path("/dev/shm")
    pods.delete("keeps", grace=0)
    eventually(lambda: not folder.parent.exists(), folder)


def test_the_memory_of_a_finished_pod_is_free(pods: Pods) -> None:
    """The shared memory of a pod is freed when the pod ends, though it may not be deleted for days."""
    volume = {"name": "m", "emptyDir": {"medium": "Memory"}}
    pods.create("done", container("true"), volumes=[volume])
    uid = uid_of(pods, "done")
    pods.end("done")

    eventually(lambda: not Path(f"/dev/shm/edl-{uid}").exists(), uid)


@needs_mounts
def test_volumes_in_memory_are_closed_to_other_users(pods: Pods) -> None:
    """Every user in a pod may write to its emptyDir of medium Memory, but other users of the machine can't
    reach it."""
    volume = {"name": "m", "emptyDir": {"medium": "Memory"}}
    mount = {"name": "m", "mountPath": "/mnt"}
    pods.create("writes", container("touch /mnt/x; sleep 300", volumeMounts=[mount]), volumes=[volume])
    folder = Path(f"/dev/shm/edl-{uid_of(pods, 'writes')}")
    eventually((folder / "m" / "x").exists, folder)

    assert stat.S_IMODE((folder / "m").stat().st_mode) == 0o777
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_memory_that_is_not_ours_is_not_used(tmp_path: Path) -> None:
    """If someone has put a link or an open folder in the place of a pod's memory, the start fails."""
    volumes = PodVolumes(
        tmp_path / "pod" / "volumes", uid := str(uuid.uuid4()), [], Lookups(missing, missing)
    )
    place = Path(f"/dev/shm/edl-{uid}")
    place.symlink_to(tmp_path)
    try:
        with pytest.raises(ContainerConfigError, match="not a private folder of this user"):
            volumes.shared_memory(Container(name="main"))
    finally:
        place.unlink()
    assert list(tmp_path.iterdir()) == []


def test_memory_of_clusters_that_were_removed_goes_at_the_next_start(tmp_path: Path) -> None:
    """The shared memory of the pods of a killed cluster is removed by the user's next cluster, once its state
    folder is gone."""
    uids = [str(uuid.uuid4()), str(uuid.uuid4())]
    for uid in uids:
        (tmp_path / uid).mkdir()
        volumes = PodVolumes(tmp_path / uid / "volumes", uid, [], Lookups(missing, missing))
        volumes.shared_memory(Container(name="main"))
    (tmp_path / uids[0]).rmdir()

    remove_orphaned_memory()
    left = [Path(f"/dev/shm/edl-{uid}").exists() for uid in uids]
    remove_memory(uids[1])

    assert left == [False, True]


@needs_mounts
def test_memory_of_a_cluster_in_another_container_is_left_alone(tmp_path: Path) -> None:
    """Memory of pods that may belong to a cluster in another container, which shares /dev/shm, is not
    removed."""
    volumes = PodVolumes(
        tmp_path / "pod" / "volumes", uid := str(uuid.uuid4()), [], Lookups(missing, missing)
    )
    (tmp_path / "pod").mkdir()
    volumes.shared_memory(Container(name="main"))
    program = (
        "from edl_workflows.local.runner.volumes import remove_orphaned_memory; remove_orphaned_memory()"
    )
    elsewhere = 'mount -t tmpfs tmpfs "$0" && exec "$1" -c "$2"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", elsewhere, str(tmp_path)]
    try:
        subprocess.run([*command, sys.executable, program], check=True, timeout=240)
        assert Path(f"/dev/shm/edl-{uid}").exists()
    finally:
        remove_memory(uid)
