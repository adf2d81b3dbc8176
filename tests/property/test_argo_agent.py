"""Any interleaving of Argo's controller, the agent, its watch's delay and its restarts.

The controller, the jobs and the API server are models. What the agent decides (`decide`, `step_of`, `judge`)
and the guarded write (`report`) are the real ones. A task's service is played step by step.
"""

import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.pipelines.argo.agent import orphans, reporting
from edl_workflows.pipelines.argo.agent.orphans import BegunObject, OrphanVerdict, judge_orphan
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.task_actions import (
    SETTLE_SECONDS,
    TaskProgress,
    TrackedTask,
    decide_actions,
)
from edl_workflows.pipelines.argo.agent.tasks import OpenTask, TaskKey, WorkflowKey, open_tasks
from edl_workflows.pipelines.argo.agent.workflow import StepAttempt, step_of
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS

WORKFLOW = WorkflowKey("ns", "w", "uid-w")
NODES = ("a", "b")
TASK = {"plugin": {"edl": {"stage": "submit"}}}


class Api:
    """Two versioned objects, the workflow and its task set. Records every result that is written."""

    def __init__(self) -> None:
        owner = {"kind": "Workflow", "uid": WORKFLOW.uid}
        metadata = {"namespace": WORKFLOW.namespace, "name": WORKFLOW.name, "resourceVersion": "1"}
        self.task_set: dict[str, Any] = {
            "metadata": {**metadata, "uid": "uid-s", "ownerReferences": [owner]},
            "spec": {"tasks": {}},
            "status": {"nodes": {}},
        }
        self.workflow: dict[str, Any] = {
            "metadata": {**metadata, "uid": WORKFLOW.uid},
            "status": {"nodes": {}},
        }
        self._version = 1
        self.looked = ""
        """The version when the agent last looked whether the workflow still waits."""

    def find(self, resource: ApiResource, _name: str, _namespace: str) -> dict[str, Any]:
        return copy.deepcopy(self.task_set if resource == WORKFLOW_TASK_SETS else self.workflow)

    def patch(self, _resource: ApiResource, _name: str, body: dict[str, Any], *_where: str) -> dict[str, Any]:
        if body["metadata"]["resourceVersion"] != self.task_set["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        for node, result in body["status"]["nodes"].items():
            assert node in self.task_set["spec"]["tasks"], "answered a task that is gone"
            phase = self.workflow["status"]["nodes"].get(node, {}).get("phase")
            # The workflow may change between the look and the write; only the task set guards against that.
            assert phase == "Pending" or self.looked != self.task_set["metadata"]["resourceVersion"], phase
            self.task_set["status"]["nodes"][node] = result
        self.touch()
        return copy.deepcopy(self.task_set)

    def touch(self) -> None:
        self._version += 1
        for found in (self.task_set, self.workflow):
            found["metadata"]["resourceVersion"] = str(self._version)


@dataclass
class Watch:
    """The agent's watch of the task set, which may lag behind as far as the test lets it."""

    seen: dict[str, Any]

    def get(self, _key: object) -> dict[str, Any]:
        return copy.deepcopy(self.seen)

    def put(self, obj: dict[str, Any]) -> None:
        self.seen = obj


@dataclass
class Job:
    """The job that a step created. ``ended``: it ended by itself; ``cancelled``: the agent cancelled it."""

    key: TaskKey
    attempt: str
    serial: int
    ended: bool = False
    cancelled: bool = False


@dataclass
class Served:
    """The state of the service of a task."""

    task: OpenTask
    taken: TrackedTask = field(default_factory=lambda: TrackedTask(TaskProgress.SERVING))
    step: StepAttempt | None = None
    job: Job | None = None
    waited_for: bool | None = None
    """Whether the workflow still waits, as it was a moment before the result is written."""


class World:
    """Argo's controller, the jobs and the agent. Each method except the last ones is one event."""

    def __init__(self) -> None:
        self.api = Api()
        self.watch = Watch(copy.deepcopy(self.api.task_set))
        self.jobs: dict[str, Job] = {}
        self.served: dict[TaskKey, Served] = {}
        self.found: list[Job] = []
        self.answers: dict[tuple[str, str], set[int]] = {}
        self.clock = 0.0
        self.serial = 0

    # Argo's controller.

    @property
    def tasks(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.task_set["spec"]["tasks"]
        return found

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.task_set["status"]["nodes"]
        return found

    @property
    def nodes(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.workflow["status"]["nodes"]
        return found

    def pending(self, node: str) -> bool:
        return bool(self.nodes.get(node, {}).get("phase") == "Pending")

    def a_task_appears(self, node: str, written: bool) -> None:
        """For the first time, or by a manual retry. Its node does not exist until the workflow is written,
        which happens after the task."""
        if node not in self.tasks and not self.pending(node):
            self.nodes.pop(node, None)
            self.tasks[node] = TASK
            self.api.touch()
            if written:
                self.its_node_is_written(node)

    def its_node_is_written(self, node: str) -> None:
        """Possibly by a controller that died in between and starts again: it then writes the task again."""
        if node not in self.nodes and node in self.tasks:
            self.serial += 1
            self.nodes[node] = {"name": f"w.{node}", "phase": "Pending", "startedAt": str(self.serial)}
            self.api.touch()

    def a_task_times_out(self, node: str, removed: bool) -> None:
        """The controller may fail to remove the task but still write the workflow."""
        if self.pending(node) and node in self.tasks and node not in self.results:
            self.nodes[node]["phase"] = "Failed"
            if removed:
                del self.tasks[node]
            self.api.touch()

    def what_was_not_removed_is(self, node: str) -> None:
        if node in self.tasks and self.nodes.get(node, {}).get("phase") in ("Failed", "Succeeded"):
            self.results.pop(node, None)
            del self.tasks[node]
            self.api.touch()

    def a_result_is_taken(self, node: str, writes: int) -> None:
        """The controller removes the result, then the task, then writes the workflow. It may die after each
        write."""
        if node in self.results:
            phase = self.results.pop(node)["phase"]
            if writes > 1:
                del self.tasks[node]
            if writes > 2:
                self.nodes[node]["phase"] = phase
            self.api.touch()

    def a_lost_task_is_written_again(self, node: str) -> None:
        if self.pending(node) and node not in self.tasks:
            self.tasks[node] = TASK
            self.api.touch()

    # The rest of the world.

    def a_job_ends(self, node: str) -> None:
        if (job := self.jobs.get(node)) is not None and not job.cancelled:
            job.ended = True

    def time_passes(self) -> None:
        self.clock += SETTLE_SECONDS / 2

    # The agent.

    def the_agent_turns(self, sees: bool, moves: int) -> None:
        """The agent decides from the current or an earlier state, and advances all tasks that it serves by
        some steps."""
        if sees:
            self.watch.seen = copy.deepcopy(self.api.task_set)
        self.decide()
        for key in [key for key in sorted(self.served) for _move in range(moves)]:
            if key in self.served:
                self.go_on(key)

    def decide(self) -> None:
        taken = {key: served.taken for key, served in self.served.items()}
        present = open_tasks(self.watch.seen)
        actions = decide_actions(present, taken, self.clock)
        for key in actions.abandon:
            self.served[key].taken = TrackedTask(TaskProgress.ABANDONED)
        for key in actions.forget:
            del self.served[key]
        for task in actions.begin:
            self.served[task.key] = Served(task)
        for found in [job for job in self.found if job.key not in present and job.key not in self.served]:
            begun = BegunObject(found.key, mock.Mock(), "delete")
            if judge_orphan(self.api, begun) is OrphanVerdict.ORPHANED:  # type: ignore[arg-type]
                self.found.remove(found)
                self.end(found.key, found.attempt)

    def the_agent_restarts(self) -> None:
        """The new agent looks for what the previous one began."""
        self.served.clear()
        self.watch.seen = copy.deepcopy(self.api.task_set)
        self.found = [copy.copy(job) for job in self.jobs.values()]

    def go_on(self, key: TaskKey) -> None:
        served = self.served[key]
        if served.taken.progress is TaskProgress.ABANDONED:
            self.cancel(served)
        elif served.taken.progress is TaskProgress.REPORTED:
            return
        elif served.step is None:
            served.step = step_of(self.api.workflow, served.task)
        elif served.job is None:
            served.job = self.begin(key, served.step)
        elif served.job.ended:
            self.report(served, served.step, served.job)

    def begin(self, key: TaskKey, step: StepAttempt) -> Job:
        """Like `ownership.create_or_adopt` for an identity that runs again."""
        attempt = step.identity("delete").attempt
        found = self.jobs.get(key.node)
        if found is None or found.cancelled or (found.ended and found.attempt != attempt):
            self.serial += 1
            found = self.jobs[key.node] = Job(key, attempt, self.serial)
        found.attempt = attempt
        return found

    def report(self, served: Served, step: StepAttempt, job: Job) -> None:
        if served.waited_for is None:
            served.waited_for = step_of(self.api.workflow, served.task) == step
            self.api.looked = self.api.task_set["metadata"]["resourceVersion"]
            return
        result = StepResult("Succeeded", str(job.serial))
        if served.waited_for and reporting.report_results(self.api, self.watch, {served.task.key: result}):  # type: ignore[arg-type]
            self.answers.setdefault((step.key.node, step.started), set()).add(job.serial)
            served.taken = TrackedTask(TaskProgress.REPORTED, self.clock)
            self.found = [job for job in self.found if job.key != served.task.key]
        else:
            self.cancel(served)

    def cancel(self, served: Served) -> None:
        if served.job is not None and served.step is not None:
            self.end(served.task.key, served.step.identity("delete").attempt)
        del self.served[served.task.key]

    def end(self, key: TaskKey, attempt: str) -> None:
        """Like `ownership.cancel_object`: affects only what this attempt owns and what has not ended."""
        job = self.jobs[key.node]
        if job.attempt == attempt and not job.ended:
            job.cancelled = True

    # In the end.

    def settle(self) -> None:
        """The agent and its watch catch up while nothing else changes."""
        for _round in range(4):
            self.clock += SETTLE_SECONDS
            self.the_agent_turns(sees=True, moves=5)

    def check(self) -> None:
        """Every step that Argo waits for has the result of one job, and no job of another step continues."""
        for node in NODES:
            self.what_was_not_removed_is(node)
            self.its_node_is_written(node)
            self.a_lost_task_is_written_again(node)
        self.settle()
        waiting = {node for node in self.nodes if self.pending(node)}
        going_on = {node for node, job in self.jobs.items() if not job.ended and not job.cancelled}
        assert going_on <= waiting, "a vanished step's job goes on"
        for _attempt in range(
            2
        ):  # one that was retried by hand unseen is served as the new attempt when its job has ended
            for node in waiting:
                self.a_job_ends(node)
            self.settle()
        assert {node for node in waiting if node in self.results} == waiting, "a step waits for ever"
        assert all(len(jobs) == 1 for jobs in self.answers.values()), "one attempt, two results"


node = st.sampled_from(NODES)
often = st.sampled_from([True, True, True, False])
EVENTS = st.one_of(
    st.tuples(st.just(World.the_agent_turns), often, st.integers(0, 5)),
    st.tuples(st.just(World.the_agent_turns), often, st.integers(0, 5)),
    st.tuples(st.just(World.the_agent_restarts)),
    st.tuples(st.just(World.a_task_appears), node, often),
    st.tuples(st.just(World.its_node_is_written), node),
    st.tuples(st.just(World.a_task_times_out), node, often),
    st.tuples(st.just(World.what_was_not_removed_is), node),
    st.tuples(st.just(World.a_result_is_taken), node, st.integers(1, 3)),
    st.tuples(st.just(World.a_lost_task_is_written_again), node),
    st.tuples(st.just(World.a_job_ends), node),
    st.tuples(st.just(World.time_passes)),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(events=st.lists(EVENTS, min_size=20, max_size=60))
def test_any_interleaving(events: list[tuple[Any, ...]]) -> None:
    """Every live step gets the result of one job; no vanished step gets a result, and its job does not
    continue."""
    shim = SimpleNamespace(
        find=lambda api, *where: api.find(*where),
        find_listed=lambda api, *where: api.find(*where),
        patch=lambda api, *what: api.patch(*what),
    )
    with mock.patch.object(reporting, "client", shim), mock.patch.object(orphans, "client", shim):
        world = World()
        for event, *arguments in events:
            event(world, *arguments)
        world.check()
