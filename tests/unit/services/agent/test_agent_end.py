"""How the agent ends as a process: on request, with its job, and without a master."""

import signal
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import (
    ExitReport,
    LeaveReport,
    LeaveVerdict,
    Registration,
)
from tests.unit.services.agent.agent_process import NOTE, SAVES_ON_SIGTERM, Start, alive, pid_of
from tests.unit.training.fake_master import FakeMaster, cluster, eventually, world

pytestmark = pytest.mark.slow


def test_sigterm_gives_time_for_a_checkpoint(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """On SIGTERM, the training process gets the signal and may save. The agent ends with 143, and reports
    that it was told to."""
    master.say(active=cluster(1))
    agent = start(SAVES_ON_SIGTERM.format(seconds=0.5) + NOTE)
    pid_of(tmp_path, 1)
    agent.terminate()
    agent.wait(240)

    assert agent.returncode == 143
    assert (tmp_path / "saved").exists()
    assert master.got(ExitReport, code=143, asked=True)


def test_sigterm_gives_a_program_that_never_connected_time_to_save(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """A program that forms its group by itself trains in a version that never becomes active. On SIGTERM it
    gets the same time to save."""
    master.say(next=world(1, (0,)))
    agent = start(SAVES_ON_SIGTERM.format(seconds=3) + NOTE)
    pid_of(tmp_path, 1)
    agent.terminate()
    agent.wait(240)
    assert agent.returncode == 143
    assert (tmp_path / "saved").exists()


def test_sigterm_ends_a_deaf_process_after_the_grace(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """A training process that ignores SIGTERM is killed with its children after the grace period."""
    master.say(active=cluster(1))
    deaf = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1] + '/child', 'w').write(str(child.pid))\n"
    )
    agent = start(deaf + NOTE, "--checkpoint-grace", "0.5")
    pid = pid_of(tmp_path, 1)
    child = int((tmp_path / "child").read_text())
    agent.terminate()
    agent.wait(240)
    assert agent.returncode == 143
    eventually(lambda: not alive(pid) and not alive(child))


def test_node_that_is_told_to_end_stays_as_long_as_the_job_needs_it(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """A server whose pod is told to end goes on until its master has the job's last checkpoint. If the master
    ends meanwhile, it ends, too."""
    master.say(active=cluster(1, ps=1))
    master.leave = LeaveVerdict(wait=True)
    agents = [start(NOTE, **{names.ENV_NODE_TYPE: "ps"})]
    pid = pid_of(tmp_path, 1)
    agents[0].terminate()
    eventually(lambda: len(master.got(LeaveReport)) > 1, what="it asks again")
    assert alive(pid)
    master.leave = LeaveVerdict(wait=False)
    agents[0].wait(240)
    assert agents[0].returncode == 143
    assert not alive(pid)

    (tmp_path / "1").unlink()
    master.leave = LeaveVerdict(wait=True)
    agents.append(start(NOTE, **{names.ENV_NODE_TYPE: "ps"}))
    pid = pid_of(tmp_path, 1)
    master.away = True
    agents[1].terminate()
    agents[1].wait(240)
    assert agents[1].returncode == 143
    assert not alive(pid)


@pytest.mark.parametrize("begun", [True, False], ids=["prepares", "no process"])
def test_node_that_is_told_to_end_before_the_job_trains_reports_its_end(
    master: FakeMaster, start: Start, tmp_path: Path, begun: bool
) -> None:
    """The master of a deleted job waits for that report, and nobody else tells it that the node has ended."""
    agent = start(NOTE)
    if begun:
        master.say(next=cluster(1))
        pid_of(tmp_path, 1)
    eventually(lambda: master.got(Registration), what="it registers")
    agent.terminate()
    agent.wait(240)

    assert agent.returncode == 143
    (report,) = master.got(ExitReport)
    assert (report.version, report.code, report.asked) == (1 if begun else 0, 143, True)


def test_released_node_ends_with_0(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """`stop` ends the training process and the agent, as a success."""
    master.say(active=cluster(1))
    agent = start(NOTE)
    pid = pid_of(tmp_path, 1)
    master.say(stop=True)
    agent.wait(240)
    assert agent.returncode == 0
    assert not alive(pid)


@pytest.mark.parametrize(("node_type", "ends"), [("ps", True), ("evaluator", True), ("worker", False)])
def test_finished_job_ends_servers(
    master: FakeMaster, start: Start, tmp_path: Path, node_type: str, ends: bool
) -> None:
    """When the data is consumed, the agents end parameter servers and evaluators. A worker ends by itself."""
    master.say(active=cluster(1, ps=1))
    agent = start(NOTE, **{names.ENV_NODE_TYPE: node_type})
    pid = pid_of(tmp_path, 1)
    master.say(finished=True)
    if ends:
        agent.wait(240)
        assert agent.returncode == 0
    else:
        master.say(workers={0: "x"})
        assert agent.poll() is None
        assert alive(pid)


def test_killed_agent_leaves_no_training_process(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """SIGKILL to the agent ends the training process, too."""
    master.say(active=cluster(1))
    agent = start(NOTE)
    pid = pid_of(tmp_path, 1)
    agent.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(pid))


def test_training_goes_on_without_a_master(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """While the master is unavailable, no process ends. When it is back, the agent follows it again."""
    master.say(active=cluster(1))
    agent = start(NOTE)
    pid = pid_of(tmp_path, 1)
    master.away = True
    master.say(next=cluster(2))
    assert not (tmp_path / "2").exists()
    assert alive(pid)
    master.away = False
    pid_of(tmp_path, 2)
    assert agent.poll() is None
