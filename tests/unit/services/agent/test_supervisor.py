"""The agent as a process, with small training programs, against a master that speaks real HTTP."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import (
    CheckMember,
    CheckReport,
    CheckRound,
    CrashReport,
    ExitReport,
    Heartbeat,
    Registration,
    StackReport,
)
from edl_workflows.services.agent import supervisor
from edl_workflows.services.agent.command import main
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from tests.unit.services.agent.agent_process import AGENT, NOTE, Start, alive, pid_of
from tests.unit.training.fake_master import FakeMaster, cluster, eventually, world

pytestmark = pytest.mark.slow

CRASHES_TWICE = """
import os, pathlib, sys
if os.environ["EDL_CLUSTER_VERSION"] == "2":
    tries = pathlib.Path(sys.argv[1], "tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if len(tries.read_text()) < 3:
        sys.exit("no such variable")
"""
"""Put before: the process of version 2 begins well at its third start only."""

HANGS = """
import pathlib, sys, time
from edl_workflows.training.signals import dump_stacks_on_signal
dump_stacks_on_signal()
def waits_for_nobody():
    pathlib.Path(sys.argv[1], "hangs").touch()
    while not pathlib.Path(sys.argv[1], "go").exists(): time.sleep(0.01)
waits_for_nobody()
sys.exit(3)
"""
UNPREPARED = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], "hangs").touch()
while not pathlib.Path(sys.argv[1], "go").exists(): time.sleep(0.01)
sys.exit(3)
"""


def test_exit_code_and_last_lines_are_reported(master: FakeMaster, start: Start) -> None:
    """The agent forwards the output, reports the exit code and the last lines, and exits with the same
    code."""
    master.say(active=cluster(1))
    agent = start("import sys; print('loss is NaN'); sys.exit(3)")
    output, _ = agent.communicate(timeout=240)

    assert agent.returncode == 3
    assert "loss is NaN" in output
    (report,) = master.got(ExitReport)
    assert (report.version, report.code, report.last_lines) == (1, 3, "loss is NaN\n")
    (registration,) = master.got(Registration)
    assert (registration.rank, registration.pod) == (0, "demo-edljob-worker-0")


def test_signal_is_reported_as_128_plus_n(master: FakeMaster, start: Start) -> None:
    """A training process that SIGKILL ended ends the agent with 137, and the report says that nobody told
    the agent to end."""
    master.say(active=cluster(1))
    agent = start("import os; os.kill(os.getpid(), 9)")
    agent.communicate(timeout=240)
    assert agent.returncode == 137
    assert master.got(ExitReport, code=137, asked=False)


def test_a_node_that_says_another_rank_is_refused_and_ends(master: FakeMaster, start: Start) -> None:
    """If the agent reports another rank than the master knows, it ends with the master's reason and starts no
    process."""
    master.rank = 5
    master.say(active=cluster(1))
    output, _ = (agent := start("print('trains')")).communicate(timeout=240)
    assert agent.returncode == 1
    assert "worker-0 has rank 5, it says 0" in output
    assert "trains" not in output


def test_an_agent_with_a_wrong_token_ends(
    environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent with a wrong token does not retry for ever: after a while it ends with the master's reason."""
    monkeypatch.setattr(supervisor, "FORBIDDEN_SECONDS", 0.3)
    with MasterClient(environment.master, "stolen") as client:
        agent = supervisor.Supervisor(environment, client, supervisor.AgentSettings(["true"]), {})
        assert agent.run() == 1
    assert "the master rejects this node: " in caplog.text
    assert "wrong token" in caplog.text


def test_processes_of_a_broken_world_end_at_once(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """Processes of a lost group hang in a collective operation and ignore SIGTERM. The agent kills them, and
    starts the processes of the next group."""
    program = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "new = folder / 'new'\n"
        "new.write_text(str(os.getpid()))\n"
        "new.rename(folder / os.environ['EDL_CLUSTER_VERSION'])\n"
        "time.sleep(600)"
    )
    master.say(active=world(1, (0, 1)), trained=1)
    start(program)
    hanging = pid_of(tmp_path, 1)
    master.say(active=world(1, (0, 1)), trained=1, lost=True)
    eventually(lambda: not alive(hanging), what="the broken world's process ended")
    assert not master.got(ExitReport)
    master.say(active=world(1, (0, 1)), trained=1, lost=True, next=world(2, (0,)))
    assert alive(pid_of(tmp_path, 2))


def test_a_worker_without_a_place_waits_and_ends_with_the_job(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """If the group does not contain the node, no process is started there. When the job is over, its agent
    ends with success."""
    master.say(active=world(1, (1, 2)), trained=1)
    agent = start("import pathlib, sys; pathlib.Path(sys.argv[1], 'started').touch()")
    eventually(lambda: master.got(Registration))
    master.say(active=world(1, (1, 2)), trained=1, finished=True)
    agent.communicate(timeout=240)
    assert agent.returncode == 0
    assert not (tmp_path / "started").exists()


def test_refused_report_keeps_the_exit_code(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """The agent exits with the exit code of its process even if the master rejects the report of that
    exit."""
    master.say(active=cluster(1))
    agent = start(
        "import pathlib, sys, time\n"
        "while not pathlib.Path(sys.argv[1], 'go').exists(): time.sleep(0.01)\n"
        "sys.exit(3)"
    )
    eventually(lambda: master.got(Registration))
    master.knows_node = False
    (tmp_path / "go").touch()
    agent.communicate(timeout=240)
    assert agent.returncode == 3


def test_agent_registers_again_with_a_master_that_forgot_it(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """An agent registers again, as the same incarnation, with a master that does not know it."""
    master.knows_node = False
    start(NOTE)
    eventually(lambda: len(master.got(Registration)) > 1)
    master.knows_node = True
    master.say(active=cluster(1))
    pid_of(tmp_path, 1)
    assert len({registration.incarnation for registration in master.got(Registration)}) == 1


def test_missing_program_is_reported(master: FakeMaster, pod_env: dict[str, str]) -> None:
    """A command that can't be started is reported with the reason."""
    master.say(active=cluster(1))
    run = subprocess.run(
        [*AGENT, "--", "no-such-program"],
        env={**os.environ, **pod_env},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 1
    assert "no-such-program" in master.got(ExitReport)[0].last_lines


def test_successor_beside_and_predecessor_after(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """The next version's process is prepared beside the active one, which ends only when the next one
    trains."""
    master.say(active=cluster(1, ps=1))
    start(NOTE)
    old = pid_of(tmp_path, 1)
    master.say(next=cluster(2, ps=2), trained=1)
    new = pid_of(tmp_path, 2)
    assert alive(old)
    assert "demo-edljob-ps-1" in (tmp_path / "2").read_text()

    master.say(active=cluster(2, ps=2), next=None)
    assert alive(old)
    master.say(trained=2)
    eventually(lambda: not alive(old))
    assert alive(new)
    assert not master.got(ExitReport)


def test_old_server_goes_on_with_its_variables(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """A rollback goes on with the server's former process, which holds the variables. If that process has
    ended, the agent ends, so that the master replaces the node."""
    returned = cluster(3, ps=1)
    returned = returned.model_copy(
        update={"ps": [server.model_copy(update={"process": 1}) for server in returned.ps]}
    )
    master.say(active=cluster(1, ps=1))
    agent = start(NOTE, **{names.ENV_NODE_TYPE: "ps"})
    old = pid_of(tmp_path, 1)
    master.say(active=cluster(2, ps=1), trained=1)
    new = pid_of(tmp_path, 2)
    master.say(next=returned, lost=True)
    master.say(active=returned, next=None, lost=False, trained=3)
    eventually(lambda: not alive(new))
    assert alive(old)
    assert not (tmp_path / "3").exists()

    master.say(active=cluster(4, ps=1))
    pid_of(tmp_path, 4)
    os.kill(old, signal.SIGKILL)
    eventually(lambda: not alive(old))
    further = returned.model_copy(update={"version": 5})
    master.say(next=further)
    assert agent.wait(240) == 143


def test_excused_exit_waits_for_the_next_version(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """If a parameter server was lost, the agent stays and starts the process of the next version, not of the
    lost one."""
    master.wait_on_exit = True
    master.say(active=cluster(1))
    program = "import os, sys\nif os.environ['EDL_CLUSTER_VERSION'] == '1': sys.exit(75)\n" + NOTE
    agent = start(program)
    eventually(lambda: master.got(ExitReport, version=1, code=75))
    master.say(active=cluster(1, ps=1))  # any other change doesn't start it again
    master.say(active=cluster(2))

    assert alive(pid_of(tmp_path, 2))
    assert not (tmp_path / "1").exists()
    assert agent.poll() is None


def test_prepared_process_that_dies_is_started_again(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """A successor that crashes while it prepares is started again. Neither the agent nor the active process
    ends, and the master learns the number of crashes and the reason."""
    master.say(active=cluster(1), trained=1)
    agent = start(CRASHES_TWICE + NOTE)
    first = pid_of(tmp_path, 1)
    master.say(next=cluster(2))
    assert alive(pid_of(tmp_path, 2))
    assert alive(first)
    assert agent.poll() is None
    assert not master.got(ExitReport)
    crashes = master.got(CrashReport, version=2, code=1, last_lines="no such variable\n")
    assert [report.crashes for report in crashes] == [1, 2]


def test_node_that_comes_to_a_lost_version_prepares_the_next_one_only(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """A node that joins a lost version starts no process for it, since its servers are gone, but prepares the
    next version. If that process crashes, it is started again."""
    master.say(active=cluster(1), next=cluster(2), lost=True, trained=1)
    agent = start(CRASHES_TWICE + NOTE)

    assert alive(pid_of(tmp_path, 2))
    assert not (tmp_path / "1").exists()
    assert agent.poll() is None
    assert not master.got(ExitReport)
    assert [report.crashes for report in master.got(CrashReport, version=2)] == [1, 2]


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(
            {"active": world(1, (1, 2)), "next": world(2, (1, 2, 0)), "trained": 1}, id="a newcomer"
        ),
        pytest.param({"active": world(1, (1, 2)), "next": world(2, (0, 1)), "lost": True}, id="a loss"),
        pytest.param({"next": world(2, (0, 1))}, id="the first world"),
    ],
)
def test_a_group_that_does_not_come_together_is_tried_again(
    master: FakeMaster, start: Start, tmp_path: Path, say: dict[str, object]
) -> None:
    """A member whose partner did not come has not failed: its process is started again, and its node is not
    given up, even if it runs no other process."""
    master.say(**say)
    agent = start(CRASHES_TWICE.replace('"no such variable"', "75") + NOTE)
    assert alive(pid_of(tmp_path, 2))
    assert agent.poll() is None
    assert not master.got(ExitReport)
    assert [report.crashes for report in master.got(CrashReport, version=2, code=75)] == [1, 2]


def test_heartbeats_carry_usage(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """Heartbeats report the memory that the pod uses, and that the agent asks before it ends."""
    master.say(active=cluster(1))
    start("b = b'x' * 60_000_000\n" + NOTE)
    pid_of(tmp_path, 1)
    beat = eventually(lambda: [b for b in master.got(Heartbeat) if b.usage], seconds=240)[0]
    assert beat.usage.memory > 60
    assert beat.asks_to_leave


def test_agent_outside_of_a_pod_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Outside of a pod, the agent names the missing variable and exits with 2."""
    for name in vars(names).values():
        monkeypatch.delenv(str(name), raising=False)
    assert main(["run", "--", "true"]) == 2
    assert names.ENV_MASTER_ADDR in caplog.text


def test_agent_without_a_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`edl agent run` without a command is a usage error."""
    with pytest.raises(SystemExit) as left:
        main(["run"])
    assert left.value.code == 2
    assert "after --" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "stacks"), [(HANGS, 1), (UNPREPARED, 0)], ids=["with our library", "without"]
)
def test_stacks_are_written_once_on_request(
    master: FakeMaster, start: Start, tmp_path: Path, program: str, stacks: int
) -> None:
    """On request, a process writes its stacks and continues; a process without our library is left alone. The
    log and the master get the stacks, and the names of the files of NCCL's flight recorder where it is on."""
    (tmp_path / "nccl-0").touch()
    recorder = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "200", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/nccl-"}
    master.say(active=cluster(1))
    agent = start(program, **recorder)
    eventually((tmp_path / "hangs").exists)
    master.say(dump="hang-1")
    master.say(dump="hang-1", trained=1)
    lines: list[str] = []
    assert agent.stdout is not None
    for line in agent.stdout:
        lines.append(line)
        if "waits_for_nobody" in line or (not stacks and "training hangs" in line):
            break
    (report,) = eventually(lambda: master.got(StackReport, dump="hang-1"))
    (tmp_path / "go").touch()
    rest, _ = agent.communicate(timeout=240)
    output = "".join(lines) + rest
    assert agent.returncode == 3
    assert output.count("waits_for_nobody") == stacks
    assert report.stacks.count("waits_for_nobody") == stacks
    assert report.recordings == [f"{tmp_path}/nccl-0"]
    assert output.count("training hangs") == 1


def test_the_agent_measures_each_round_once(master: FakeMaster, start: Start) -> None:
    """The agent measures once for each round that the directive names, before any process of the program
    runs."""
    alone = CheckRound(number=4, groups=[[CheckMember(node="worker-0", address="nowhere:1")]], seconds=30)
    master.say(check=alone)
    start(NOTE)
    eventually(lambda: master.got(CheckReport, round=4, error=""))
    master.say(trained=0)
    master.say(check=alone.model_copy(update={"number": 5}))
    eventually(lambda: master.got(CheckReport, round=5))
    assert len(master.got(CheckReport)) == 2
