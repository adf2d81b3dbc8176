"""Starting, ending and restarting containers: real processes under a running cluster."""

import json
import os
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.log_stream import LogPosition, LogStream
from edl_workflows.runtime.kube.resources import EVENTS, PODS, Scope
from tests.unit.local.support import WAIT_SECONDS, Pods, condition, container, eventually

pytestmark = pytest.mark.slow


def written(path: Path) -> str:
    """What a container has written to a file, as soon as it has."""
    return eventually(lambda: path.read_text() if path.exists() else "")


def is_gone(pid: int) -> bool:
    """Whether a process has ended; whoever inherited it may not have reaped it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_pod_runs_to_success(pods: Pods) -> None:
    """A container that exits 0 makes a Succeeded pod with kubelet's status, and its output can be read."""
    pods.create("ok", container("echo hello; echo there >&2"))
    pod = pods.end("ok")

    status = pod["status"]
    assert status["phase"] == "Succeeded"
    assert pods.logs("ok") == "hello\nthere"
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }
    assert condition(pod, "Ready")["reason"] == "PodCompleted"
    assert (status["hostIP"], status["podIP"][:4]) == ("127.0.0.1", "127.")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("exit 7", 7, id="exit code"),
        pytest.param("kill -9 $$$$", 137, id="SIGKILL"),
        pytest.param("kill -TERM $$$$", 143, id="SIGTERM"),
    ],
)
def test_a_failure_keeps_its_code(pods: Pods, script: str, code: int) -> None:
    """An exit code is reported as it is, a signal as 128 and its number."""
    pods.create("fails", container(script))
    ended = pods.end("fails")["status"]

    assert ended["phase"] == "Failed"
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
    assert ended["containerStatuses"][0]["state"]["terminated"]["reason"] == "Error"


def test_a_command_that_does_not_exist(pods: Pods) -> None:
    """A program that does not exist fails with exit code 128, reason StartError and a message that names
    it."""
    pods.create("typo", {"name": "main", "image": "x", "command": ["/no/such/program"]})
    ended = pods.end("typo")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "/no/such/program" in ended["message"]
    assert (
        pods.logs("typo")
        == "the container can't be started: exec '/no/such/program': No such file or directory"
    )


def test_on_failure_restarts_until_success(pods: Pods, tmp_path: Path) -> None:
    """With OnFailure, a failed container starts again with a delay; the restart is counted, and the failure
    is its last state."""
    script = f"echo x >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) -ge 4 ]"
    pods.create("flaky", container(script), restartPolicy="OnFailure")
    seen = pods.until(
        "flaky", lambda pod: "waiting" in pod["status"].get("containerStatuses", [{}])[0].get("state", {})
    )
    ended = pods.end("flaky")["status"]

    assert seen["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] in (
        "CrashLoopBackOff",
        "ContainerCreating",
    )
    assert ended["phase"] == "Succeeded"
    assert ended["containerStatuses"][0]["restartCount"] == 3
    assert ended["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1


def test_always_restarts_after_success(pods: Pods) -> None:
    """With Always, a container starts again even after success, and the pod stays Running."""
    pods.create("loop", container("true"), restartPolicy="Always")
    pod = pods.until(
        "loop", lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) >= 2
    )

    assert pod["status"]["phase"] == "Running"


def test_init_containers_run_in_order(pods: Pods, tmp_path: Path) -> None:
    """Init containers run one after the other to success before any container starts."""

    def note(name: str) -> dict[str, object]:
        return container(f"echo {name} >> {tmp_path}/order; sleep 0.1; echo {name} >> {tmp_path}/order", name)

    pods.create("staged", note("main"), initContainers=[note("first"), note("second")])
    pods.end("staged")

    assert (tmp_path / "order").read_text().split() == ["first", "first", "second", "second", "main", "main"]


def test_a_failed_init_container_fails_the_pod(pods: Pods, tmp_path: Path) -> None:
    """With restartPolicy Never, a failed init container fails the pod, and its containers never start."""
    pods.create("broken", container(f"touch {tmp_path}/ran"), initContainers=[container("exit 3", "init")])
    pod = pods.end("broken")

    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert not (tmp_path / "ran").exists()


def test_sigterm_then_the_program_ends(pods: Pods, tmp_path: Path) -> None:
    """A deleted pod's program gets SIGTERM and may end by itself within its grace."""
    pods.create(
        "polite",
        container(f"trap 'echo bye > {tmp_path}/said; exit 0' TERM; echo up; while :; do sleep 0.05; done"),
    )
    pods.prints("polite", "up")
    begun = time.monotonic()
    pods.delete("polite")

    assert (tmp_path / "said").read_text() == "bye\n"
    assert time.monotonic() - begun < 15  # far below the grace of 30 s


def test_sigkill_after_the_grace_takes_all_descendants(pods: Pods, tmp_path: Path) -> None:
    """A container that ignores SIGTERM is killed after the grace period, with descendants that left its
    session."""
    script = (
        f"trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$$$ > {tmp_path}/pid; sleep 300' & echo "
        "up; sleep 300; sleep 300"
    )
    pods.create("stubborn", container(script), terminationGracePeriodSeconds=1)
    pid = int(written(tmp_path / "pid"))
    pods.delete("stubborn")

    eventually(lambda: is_gone(pid))


def test_nothing_outlives_the_main_process(pods: Pods, tmp_path: Path) -> None:
    """When the main process ends, what it left in the background is killed, as in a container."""
    pods.create(
        "leaver",
        container(
            f"setsid sh -c 'echo $$$$ > {tmp_path}/pid; sleep 300' & while [ ! -s {tmp_path}/pid ]; do "
            "sleep 0.02; done"
        ),
    )
    pods.end("leaver")

    eventually(lambda: is_gone(int((tmp_path / "pid").read_text())))


def test_a_killed_shim_leaks_nothing(pods: Pods, tmp_path: Path) -> None:
    """If the process above a container is killed, the container and its children are killed, and the pod
    fails."""
    pods.create(
        "headless", container(f"setsid sh -c 'echo $$$$ $PPID > {tmp_path}/pid; sleep 300' & sleep 300")
    )
    text = written(tmp_path / "pid")
    grandchild, main = (int(part) for part in text.split())
    psutil.Process(main).parent().kill()  # type: ignore[union-attr]
    ended = pods.end("headless")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert ended["exitCode"] == 137
    eventually(lambda: is_gone(grandchild))
    eventually(lambda: is_gone(main))


def test_memory_over_the_limit_is_oom_killed(pods: Pods) -> None:
    """A container that uses more memory than its limit ends as OOMKilled with 137."""
    program = "import time; x = bytearray(200 * 2**20); x[::4096] = b'1' * len(x[::4096]); time.sleep(60)"
    pods.create(
        "fat",
        {
            "name": "main",
            "image": "x",
            "command": ["python", "-c", program],
            "resources": {"limits": {"memory": "64Mi"}},
        },
    )
    ended = pods.end("fat")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_the_deadline_fails_the_pod(pods: Pods) -> None:
    """A pod that runs longer than activeDeadlineSeconds fails with reason DeadlineExceeded."""
    pods.create("slow", container("sleep 300"), activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    ended = pods.end("slow")["status"]

    assert (ended["phase"], ended["reason"]) == ("Failed", "DeadlineExceeded")


def test_the_end_of_the_log_becomes_the_message(pods: Pods) -> None:
    """FallbackToLogsOnError takes the last lines of a failed container as its termination message."""
    pods.create(
        "talker",
        container("echo one; echo the reason; exit 1", terminationMessagePolicy="FallbackToLogsOnError"),
    )
    ended = pods.end("talker")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert ended["message"] == "one\nthe reason\n"


def test_hooks_run_in_the_container(pods: Pods, tmp_path: Path) -> None:
    """The postStart hook runs after the start, the preStop hook before SIGTERM, both with the container's
    variables."""
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", f"echo start $WHO >> {tmp_path}/hooks"]}},
        "preStop": {"exec": {"command": ["sh", "-c", f"echo stop $WHO >> {tmp_path}/hooks"]}},
    }
    pods.create("hooked", container("sleep 300", lifecycle=hooks, env=[{"name": "WHO", "value": "me"}]))
    eventually((tmp_path / "hooks").exists)
    pods.delete("hooked", grace=5)

    assert (tmp_path / "hooks").read_text() == "start me\nstop me\n"


def test_logs_tail_previous_and_follow(pods: Pods) -> None:
    """Logs can be cut to the last lines, read from the previous run, and followed to the end."""
    pods.create("writer", container("seq 1 5; exit 1"), restartPolicy="OnFailure")
    pods.until(
        "writer", lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) >= 1
    )

    assert pods.logs("writer", previous=True) == "1\n2\n3\n4\n5"
    # Its next run may be writing: what is appended after the tail was looked for is read, too, as by the
    # kubelet.
    eventually(lambda: pods.logs("writer", tail_lines=2) == "4\n5")


def test_logs_with_times(pods: Pods, tmp_path: Path) -> None:
    """Each line has the time at which it was written; sinceTime and sinceSeconds leave out older lines."""
    pods.create("timed", container(f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two"))
    pods.prints("timed", "one")
    between = datetime.now(UTC)
    (tmp_path / "go").touch()
    pods.end("timed")
    first, second = pods.logs("timed", timestamps=True).splitlines()
    terminated = pods.state("timed")["state"]["terminated"]
    times = [datetime.fromisoformat(line.partition(" ")[0]) for line in (first, second)]

    assert [first.partition(" ")[2], second.partition(" ")[2]] == ["one", "two"]
    assert datetime.fromisoformat(terminated["startedAt"]) <= times[0] < between < times[1]
    assert pods.logs("timed", since_time=between) == "two"
    assert pods.logs("timed", since_seconds=3600, tail_lines=1) == "two"
    assert pods.logs("timed", since_time=datetime.now(UTC), timestamps=True) == ""


def test_a_followed_log_has_times(pods: Pods, tmp_path: Path) -> None:
    """A followed log has a time before each line and none within a line that was written in pieces."""
    script = f"printf begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo ' ended'; echo next"
    pods.create("grows", container(script))
    pods.prints("grows", "begun")
    lines = logs.follow(pods.cluster, "grows", options=logs.LogOptions(timestamps=True))
    (tmp_path / "go").touch()

    assert [line.partition(" ")[2] for line in lines] == ["begun ended", "next"]


def test_what_was_written_last_is_in_the_log(pods: Pods) -> None:
    """Output right before the end, and output of processes that outlive the main one, is complete."""
    pods.create("big", container("(seq 1 200000; kill -9 $$$$) & wait"))
    pods.end("big")

    assert pods.logs("big", tail_lines=1) == "200000"


def test_what_can_never_run_is_refused_with_every_reason(pods: Pods) -> None:
    """A pod with unsupported fields fails at once, and its status names each of them."""
    pods.create(
        "exotic",
        {"name": "main", "image": "x", "volumeMounts": [{"name": "nas", "mountPath": "/nas"}]},
        volumes=[{"name": "nas", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    status = pods.end("exotic")["status"]

    assert (status["phase"], status["reason"]) == ("Failed", "Unsupported")
    assert "spec.volumes[0].persistentVolumeClaim: not supported" in status["message"]
    assert "spec.containers[0].command: required" in status["message"]


def test_events_tell_the_story(pods: Pods) -> None:
    """Scheduling and starting a pod create Events."""
    pods.create("told", container("true"))
    pods.end("told")
    events = client.list_objects(pods.cluster, Scope(EVENTS, pods.cluster.namespace)).items

    assert {"Scheduled", "Started"} <= {
        one["reason"] for one in events if one["involvedObject"]["name"] == "told"
    }


def test_two_containers_end_together(pods: Pods) -> None:
    """A pod is Running while one of its containers runs, and fails if one of them failed."""
    pods.create("pair", container("sleep 0.5; exit 2", "slow"), container("true", "quick"))
    pods.until(
        "pair",
        lambda pod: any("terminated" in one["state"] for one in pod["status"].get("containerStatuses", [])),
    )

    assert pods.get("pair")["status"]["phase"] == "Running"
    assert pods.end("pair")["status"]["phase"] == "Failed"


def test_a_recreated_pod_starts_after_its_namesake(pods: Pods) -> None:
    """A pod that was deleted by force and created again runs as the new one, and the process of the old one
    is gone."""
    pods.create("again", container("echo $$$$; trap '' TERM; sleep 300; sleep 300"))
    old = int(eventually(lambda: pods.prints("again", "").strip()))
    client.delete(pods.cluster, PODS, "again", options=client.DeletionOptions(grace_seconds=0))
    pods.create("again", container("echo new; sleep 300"))
    pods.prints("again", "new")

    eventually(lambda: is_gone(old))


def test_waiting_configuration_starts_when_it_appears(pods: Pods) -> None:
    """A container that needs a missing ConfigMap waits and names it. It runs once the ConfigMap exists."""
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}]
    pods.create("waits", container("echo got $A", env=env))
    pod = pods.until(
        "waits",
        lambda pod: (
            "waiting" in pod["status"].get("containerStatuses", [{}])[0].get("state", {})
            and "reason" in pod["status"]["containerStatuses"][0]["state"]["waiting"]
        ),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    client.create(
        pods.cluster,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"a": "it"}},
    )
    pods.end("waits")

    assert waiting == {"reason": "CreateContainerConfigError", "message": 'configmap "late" not found'}
    assert pods.logs("waits") == "got it"


def test_exec_probes_decide_readiness(pods: Pods, tmp_path: Path) -> None:
    """A pod is Ready while its readiness probe succeeds, and not Ready when it fails again."""
    probe = {
        "exec": {"command": ["test", "-e", f"{tmp_path}/ready"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    pods.create("probed", container("sleep 300", readinessProbe=probe))
    pods.phase("probed", "Running")
    assert condition(pods.get("probed"), "Ready")["message"] == "containers with unready status: [main]"

    (tmp_path / "ready").touch()
    pods.until("probed", lambda pod: condition(pod, "Ready").get("status") == "True")
    (tmp_path / "ready").unlink()
    pods.until("probed", lambda pod: condition(pod, "Ready").get("status") == "False")


def test_liveness_restarts(pods: Pods, tmp_path: Path) -> None:
    """A container whose liveness probe fails is killed and started again."""
    probe = {
        "exec": {"command": ["test", "-e", f"{tmp_path}/alive"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    (tmp_path / "alive").touch()
    pods.create(
        "sick",
        container("sleep 300", livenessProbe=probe),
        restartPolicy="Always",
        terminationGracePeriodSeconds=1,
    )
    pods.phase("sick", "Running")
    (tmp_path / "alive").unlink()

    pods.until("sick", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)


def test_a_signal_by_hand(pods: Pods) -> None:
    """A main process killed from outside ends its container with 128 and the signal's number."""
    pods.create("victim", container("echo $$$$; exec sleep 300"))
    os.kill(int(eventually(lambda: pods.prints("victim", "").strip())), signal.SIGKILL)

    assert pods.end("victim")["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_the_pod_speaks_to_the_api_as_its_account(pods: Pods) -> None:
    """A pod's KUBECONFIG lets it work in its own namespace and nowhere else."""
    program = (
        "from edl_workflows.runtime.kube.connect import Cluster; import json;"
        "from edl_workflows.runtime.kube import client;"
        "from edl_workflows.runtime.kube.resources import PODS;"
        "from edl_workflows.core.exceptions import ForbiddenError\n"
        "c = Cluster.connect()\nprint(json.dumps([c.namespace, client.get(c, PODS, "
        "'caller')['metadata']['name']]))\n"
        "try:\n  client.find(c, PODS, 'x', 'kube-system')\nexcept ForbiddenError as e:\n  print('refused')\n"
    )
    pods.create("caller", {"name": "main", "image": "x", "command": ["python", "-c", program]})
    pods.end("caller")
    first, second = pods.logs("caller").splitlines()

    assert json.loads(first) == [pods.cluster.namespace, "caller"]
    assert second == "refused"


def test_a_log_is_followed_to_its_end(pods: Pods, tmp_path: Path) -> None:
    """A followed log brings lines as they are written, and ends with the container."""
    pods.create("grows", container(f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two"))
    pods.prints("grows", "one")
    lines = logs.follow(pods.cluster, "grows")
    first = next(lines)
    (tmp_path / "go").touch()

    assert [first, *lines] == ["one", "two"]


def test_the_followed_log_of_a_deleted_pod_is_complete(pods: Pods, tmp_path: Path) -> None:
    """Whoever follows the log of a pod that is deleted gets the rest of it, and then the end, also if the
    reader is far behind: the pod has written more than fits into the connection's buffers."""
    much = f"head -c 30000000 /dev/zero | tr '\\0' x | fold -w 4000; echo; touch {tmp_path}/written"
    script = f"trap 'echo last; exit' TERM; {much}; while :; do sleep 0.05; done"
    pods.create("leaves", container(script))
    eventually((tmp_path / "written").exists)
    stream = LogStream(pods.cluster, "leaves", pods.cluster.namespace, "main", LogPosition())
    give_up = threading.Timer(WAIT_SECONDS, stream.close)
    lines = iter(stream)
    next(lines)
    pods.delete("leaves")
    give_up.start()
    rest = [line.text for line in lines]
    give_up.cancel()

    assert rest[-1] == "last"


def _refusal(pods: Pods, name: str, text: str) -> str:
    """What asking for the log of a pod that can't run says, as soon as it names the reason."""

    def look() -> str:
        try:
            return pods.logs(name)
        except InvalidError as error:
            return str(error) if text in str(error) else ""

    return eventually(look, f"the log of {name} says {text!r}")


def test_the_log_of_a_pod_that_can_not_run_says_why(pods: Pods) -> None:
    """The log of a pod that does not run names what it waits for, or why it was rejected, since users look
    there first."""
    huge = {"requests": {"cpu": "1000"}}
    absent = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "a"}}}]
    pods.create("huge", container("true", resources=huge))
    pods.create("unset", container("true", env=absent))
    claim = [{"name": "nas", "persistentVolumeClaim": {"claimName": "data"}}]
    pods.create("alien", container("true"), volumes=claim)
    waits = "is waiting to start"
    assert f"{waits}: Unschedulable: 0/1 nodes are available" in _refusal(pods, "huge", "Insufficient cpu")
    assert f'{waits}: CreateContainerConfigError: configmap "absent" not found' in _refusal(
        pods, "unset", "absent"
    )
    refused = "has not started: Unsupported: the embedded cluster can't run this pod"
    assert refused in _refusal(pods, "alien", "persistentVolumeClaim")
