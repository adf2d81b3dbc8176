"""The embedded cluster as users have it: the command line, kubectl's view, crashes and restarts."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl_workflows.local import daemon
from edl_workflows.local.runner import processes
from tests.local_cluster import LocalCluster, Settings, cluster
from tests.unit.local.support import Pods, condition, container, eventually

pytestmark = pytest.mark.e2e


def edl(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `edl local`."""
    command = [sys.executable, "-m", "edl_workflows", "local", *arguments, "--dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.smoke
def test_up_status_down(tmp_path: Path) -> None:
    """`up` starts a cluster once and says how to use it, `status` shows it, `down` leaves no process."""
    folder = tmp_path / "state"
    try:
        first = edl("up", "--no-controller", "--cpu", "3", folder=folder)
        second = edl("up", "--no-controller", folder=folder)
        Pods(LocalCluster(folder).client()).create("one", container("sleep 300"))
        status = edl("status", "--output", "json", folder=folder)
        pods = list(folder.joinpath("pods").iterdir())
    finally:
        stopped = edl("down", folder=folder)
        again = edl("down", folder=folder)
        afterwards = edl("status", folder=folder)

    assert first.returncode == 0, first.stderr
    assert f"KUBECONFIG={folder}/kubeconfig" in first.stdout
    assert "already runs" in second.stdout
    assert json.loads(status.stdout)["capacity"]["cpu"] == "3"
    assert "is stopped" in stopped.stdout
    assert "no embedded cluster runs" in again.stdout
    assert afterwards.returncode == 3
    assert [found for one in pods for found in processes.marked_processes(one.name)] == []


def test_a_running_pod_survives_the_death_of_the_cluster_process(tmp_path: Path) -> None:
    """The cluster process is killed; its successor adopts the running process and reports how it ends."""
    with cluster(tmp_path / "state") as local:
        pods = Pods(local.client())
        pods.create(
            "lives", container(f"echo $$$$; until [ -e {tmp_path}/end ]; do sleep 0.05; done; exit 5")
        )
        pid = int(eventually(lambda: pods.prints("lives", "").strip()))
        local.kill()
        assert alive(pid)
        local.up()
        pods.phase("lives", "Running")
        assert alive(pid)
        (tmp_path / "end").touch()
        ended = pods.end("lives")["status"]["containerStatuses"][0]

    assert ended["state"]["terminated"]["exitCode"] == 5
    assert ended["restartCount"] == 0


def test_what_ended_while_the_cluster_was_down_is_reported_as_it_ended(tmp_path: Path) -> None:
    """A container that ends while no cluster process runs keeps its exit code."""
    with cluster(tmp_path / "state") as local:
        pods = Pods(local.client())
        pods.create(
            "ends",
            container(f"touch {tmp_path}/up; until [ -e {tmp_path}/end ]; do sleep 0.05; done; exit 6"),
        )
        eventually((tmp_path / "up").exists)
        local.kill()
        (tmp_path / "end").touch()
        local.up()

        assert pods.end("ends")["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 6


def test_what_died_with_the_machine_says_so_and_restarts_by_policy(tmp_path: Path) -> None:
    """Processes that died with the cluster are reported as NodeRestarted, and restartPolicy decides whether
    they run again."""
    with cluster(tmp_path / "state") as local:
        pods = Pods(local.client())
        for name, policy in (("stays", "Always"), ("once", "Never")):
            pods.create(name, container(f"touch {tmp_path}/{name}; sleep 300"), restartPolicy=policy)
        eventually(lambda: (tmp_path / "stays").exists() and (tmp_path / "once").exists())
        local.kill()
        for folder in (local.folder / "pods").iterdir():
            processes.kill_marked(folder.name)
        local.up()
        once = pods.end("once")["status"]
        stays = pods.until("stays", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)[
            "status"
        ]

    assert (once["phase"], once["containerStatuses"][0]["state"]["terminated"]["reason"]) == (
        "Failed",
        "NodeRestarted",
    )
    assert stays["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "NodeRestarted"


def test_down_ends_everything_and_up_goes_on(tmp_path: Path) -> None:
    """`down` ends all processes of all pods. `up` restarts those whose restartPolicy says so."""
    with cluster(tmp_path / "state") as local:
        pods = Pods(local.client())
        pods.create(
            "serves",
            container("trap '' TERM; setsid sleep 300 & echo $$$$; sleep 300; sleep 300"),
            restartPolicy="Always",
        )
        pid = int(eventually(lambda: pods.prints("serves", "").strip()))
        uid = pods.get("serves")["metadata"]["uid"]
        local.down()
        left = list(processes.marked_processes(uid))
        dead = not alive(pid)
        local.up()
        status = pods.until("serves", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)[
            "status"
        ]

    assert dead
    assert left == []
    assert status["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "NodeRestarted"


def test_down_after_a_crash_finds_what_was_left(tmp_path: Path) -> None:
    """`down` ends the processes of pods even if the cluster process died long before."""
    with cluster(tmp_path / "state") as local:
        pods = Pods(local.client())
        pods.create("orphan", container("echo $$$$; sleep 300"))
        pid = int(eventually(lambda: pods.prints("orphan", "").strip()))
        local.kill()

        assert daemon.down(local.folder, seconds=10)
        assert not alive(pid)


def test_a_pod_deleted_while_the_cluster_was_down_is_cleaned_up(tmp_path: Path) -> None:
    """Processes and folder of a pod that was deleted in the meantime are removed at the next start."""
    with cluster(tmp_path / "state") as local:
        stray = local.folder / "pods" / "00000000-gone"
        local.kill()
        (stray / "containers").mkdir(parents=True)
        env = {**os.environ, processes.MARK: f"{stray.name}/main/0"}
        with subprocess.Popen(["sleep", "300"], env=env) as process:
            local.up()
            process.wait(20)

        assert not stray.exists()


def test_capacity_and_priority(tmp_path: Path) -> None:
    """A pod that does not fit waits with kube-scheduler's message. When there is room, the pod with the
    higher priority starts first."""
    with cluster(tmp_path / "state", Settings(cpu="1")) as local:
        pods = Pods(local.client())
        whole: Any = {"resources": {"requests": {"cpu": "1"}}}
        pods.create("first", container(f"until [ -e {tmp_path}/end ]; do sleep 0.05; done", **whole))
        pods.phase("first", "Running")
        pods.create("low", container("true", **whole))
        pods.create(
            "high",
            container(f"touch {tmp_path}/high; sleep 1", **whole),
            priorityClassName="system-node-critical",
        )
        waiting = pods.until(
            "high", lambda pod: condition(pod, "PodScheduled").get("reason") == "Unschedulable"
        )
        (tmp_path / "end").touch()
        eventually((tmp_path / "high").exists)
        low = pods.get("low")["status"]["phase"]
        pods.end("low")

    assert condition(waiting, "PodScheduled")["message"] == "0/1 nodes are available: 1 Insufficient cpu."
    assert low == "Pending"
