"""The report of a hang: whose process stands where."""

from edl_workflows.core.jobs.elastic_job.policies import HangAction
from edl_workflows.core.protocol.nodes import StackReport
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.nodes import standstill
from edl_workflows.services.master.state.nodes.hang_report import (
    MAX_STACK,
    MOST_STACKS,
    NodeStacks,
    group_stacks,
    summarize_stacks,
)
from tests.unit.services.master.state.test_absence import StandingJob
from tests.unit.services.master.state.worlds import worker


def stacks(*frames: str, thread: str = "0x7f01") -> str:
    """What ``faulthandler`` writes: the main thread with these frames is the last."""
    text = f'Thread {thread}9 (most recent call first):\n  File "/lib/threading.py", line 3 in wait\n\n'
    return text + f"Current thread {thread}1 (most recent call first):\n" + "\n".join(frames) + "\n"


WAITS = '  File "/app/gloo_group.py", line 160 in wait'
LOADS = '  File "/app/data.py", line 12 in load'
MAIN = '  File "/app/train.py", line 9 in <module>'


def test_one_stack_for_all_that_stand_there() -> None:
    """Equal stacks are shown once, whatever their thread ids. Nodes whose stack differs from the others come
    first."""
    said = {
        f"worker-{node}": NodeStacks(stacks(WAITS, MAIN, thread=f"0x{node}"), (f"/tmp/nccl_{node}",))
        for node in (0, 1, 3)
    }
    said["worker-2"] = NodeStacks(stacks(LOADS, MAIN))
    said["worker-4"] = NodeStacks("")

    first, second, third = group_stacks(said)
    assert (first.nodes, first.stack) == (["worker-2"], f"{LOADS}\n{MAIN}")
    assert (second.nodes, second.stack) == (["worker-4"], "")
    assert (third.nodes, third.count) == (["worker-0", "worker-1", "worker-3"], 3)
    assert third.recordings[:1] == ["worker-0:/tmp/nccl_0"]
    assert summarize_stacks(said) == (
        "worker-2 in load (data.py:12); "
        "worker-4: no stack, the process is stopped or does not call connect(); "
        "worker-0, worker-1, worker-3 in wait (gloo_group.py:160)"
    )


def test_the_report_is_bounded() -> None:
    """The report of hundreds of nodes with different deep stacks has a limited size."""
    frame = '  File "/app/deep.py", line {} in {}'
    said = {
        f"worker-{node}": NodeStacks(stacks(*(frame.format(node, "f" * 50) for _ in range(100))))
        for node in range(500)
    }
    found = group_stacks(said)

    assert len(found) == MOST_STACKS
    assert all(len(one.stack) <= MAX_STACK for one in found)


def test_the_status_says_where_processes_stood() -> None:
    """The status has the stacks while training hangs, with a warning, and afterwards until the next hang.
    Stacks of another request are ignored."""
    standing = StandingJob(hang_timeout_seconds=20, hang_action=HangAction.LOG)
    standing.stand(25, busy=(0, 1, 2))
    for node, dump in ((0, "hang-1"), (1, "hang-1"), (2, "hang-7")):
        report = StackReport(node=worker(node), dump=dump, stacks=stacks(WAITS if node else LOADS))
        standstill.record_stacks(standing.state, report)
    status = views.job_status(standing.state, standing.job.now)

    assert [one["nodes"] for one in status["hang"]["stacks"]] == [["worker-0"], ["worker-1"]]
    assert "worker-0 in load (data.py:12); worker-1 in wait" in standing.warnings
    standing.job.calm(5)  # they step again
    assert "stands still" not in standing.warnings
    assert views.job_status(standing.state, standing.job.now)["hang"] == status["hang"]
