"""The teardown that lets a run fail which somebody marked failed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from edl_workflows.airflow.hooks.airflow_versions import AirflowFailException, TriggerRule
from edl_workflows.airflow.hooks.task_state import TaskStates, states_of_run
from edl_workflows.operators.retries import RepeatableTask

if TYPE_CHECKING:
    from airflow.sdk import Context

_SKIPPED_WITH_FAILURE: Mapping[str, frozenset[str]] = {
    TriggerRule.ALL_SUCCESS: frozenset({"skipped"}),
    TriggerRule.ALL_FAILED: frozenset({"success", "skipped"}),
    TriggerRule.ALL_SKIPPED: frozenset({"failed"}),
    TriggerRule.NONE_SKIPPED: frozenset({"skipped"}),
    "all_done_min_one_success": frozenset({"skipped"}),  # since Airflow 3.1
}
"""By trigger rule, the states of an upstream task with which Airflow skips a task, though another upstream
task has failed. Other rules never do."""


class FailMarkedRunOperator(RepeatableTask):
    """Fail a run with a teardown if somebody marked the run failed.

    Airflow ends such a run only after its teardowns. It has set the tasks that ran to failed and all others
    to skipped, and then judges the run by its last tasks. These were skipped, so the run would succeed. Put
    this operator behind the teardown, as the group `elastic_job` does:
    ``cancel >> FailMarkedRunOperator(task_id="watcher").as_teardown(on_failure_fail_dagrun=True)``.

    The task fails, without retries, if a task of the run has failed and everything directly after that task
    was skipped, which no failure causes by itself. Tasks that a branch, a short circuit or their own trigger
    rule may have skipped do not count. A failure after which other tasks ran or became ``upstream_failed``
    is left to Airflow's rules.

    Args:
        kwargs: arguments of `RepeatableTask`.
    """

    ui_color = "#f2dcd9"
    repeatable: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def as_teardown(self, **kwargs: Any) -> Self:
        """As Airflow's method, but the teardown also runs if its setup was skipped or has failed."""
        super().as_teardown(**kwargs)
        self.trigger_rule = TriggerRule.ALL_DONE
        return self

    def execute(self, context: "Context") -> None:
        """Fail if the states of the run's tasks show that the run was marked failed."""
        ti = context["ti"]
        tasks = {
            name: TaskNode(
                frozenset(task.upstream_task_ids), task.trigger_rule, skips=task.inherits_from_skipmixin
            )
            for name, task in self.dag.task_dict.items()
            if not task.is_teardown
        }
        marked = abandoned_failures(tasks, states_of_run(ti.dag_id, ti.run_id, tasks))
        if marked:
            raise AirflowFailException(
                f"the run was marked failed: {', '.join(marked)} failed, and the tasks behind were skipped"
            )


@dataclass(frozen=True)
class TaskNode:
    """A task of a DAG.

    Attributes:
        upstream: the tasks directly before it.
        rule: its trigger rule.
        skips: whether it can skip tasks after it, as a branch does.
    """

    upstream: frozenset[str]
    rule: str = "all_success"
    skips: bool = False


def abandoned_failures(tasks: Mapping[str, TaskNode], states: TaskStates) -> list[str]:
    """The tasks that have failed although all tasks directly after them were skipped, without any cause but a
    mark.

    Args:
        tasks: by id, the tasks of a DAG. One without any task after it is no evidence: Airflow judges the run
            by it.
        states: by task, the states of its instances.
    """
    return [
        failed
        for failed, instances in states.items()
        if any(
            state == "failed" and _shows_mark(failed, index, tasks, states)
            for index, state in instances.items()
        )
    ]


def _shows_mark(failed: str, index: int, tasks: Mapping[str, TaskNode], states: TaskStates) -> bool:
    """Whether the states after the instance of a failed task are those after a mark."""
    followers = [name for name, task in tasks.items() if failed in task.upstream]
    return _states_of(followers, index, states) == {"skipped"} and any(
        not _may_be_skipped(name, failed, index, tasks, states) for name in followers
    )


def _may_be_skipped(
    name: str, failed: str, index: int, tasks: Mapping[str, TaskNode], states: TaskStates
) -> bool:
    """Whether something else than a mark may have skipped a task that directly follows a failed one."""
    own_index = index if index in states.get(name, {}) else -1
    upstream = _states_of(tasks[name].upstream, own_index, states)
    if not upstream.isdisjoint(_SKIPPED_WITH_FAILURE.get(tasks[name].rule, ())):
        return True
    # What is before the failed task, too, has not skipped all that follows it.
    others = _ancestors(name, tasks) - _ancestors(failed, tasks)
    return any(tasks[other].skips and "success" in states.get(other, {}).values() for other in others)


def _ancestors(name: str, tasks: Mapping[str, TaskNode]) -> set[str]:
    """The tasks before a task, directly or not."""
    found: set[str] = set()
    new = {name}
    while new := {before for after in new for before in tasks[after].upstream if before in tasks} - found:
        found |= new
    return found


def _states_of(names: Iterable[str], index: int, states: TaskStates) -> set[str | None]:
    """The states of the instances of some tasks that belong to an index: those of the same index if there are
    any, since these are of the same mapped group."""
    belonging: set[str | None] = set()
    for name in names:
        instances = states.get(name, {})
        belonging |= {instances[index]} if index in instances else set(instances.values())
    return belonging
