"""The teardown that lets a run fail which somebody marked failed."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseOperator

from edl_workflows.airflow.hooks.airflow_versions import AirflowFailException, TriggerRule
from edl_workflows.airflow.hooks.task_state import TaskStates, states_of_run

if TYPE_CHECKING:
    from airflow.sdk import Context


class FailMarkedRunOperator(BaseOperator):
    """Fail a run with a teardown if somebody marked the run failed.

    Airflow ends such a run only after its teardowns. It has set the tasks that ran to failed and all others
    to skipped, and then judges the run by its last tasks. These were skipped, so the run would succeed. Put
    this operator behind the teardown, as the group `elastic_job` does:
    ``cancel >> FailMarkedRunOperator(task_id="watcher").as_teardown(on_failure_fail_dagrun=True)``.

    The task fails if a task of the run has failed and everything directly after that task was skipped, which
    no failure causes by itself. A failure after which other tasks ran or became ``upstream_failed`` is
    left to Airflow's rules.

    Args:
        kwargs: arguments of `BaseOperator`.
    """

    ui_color = "#f2dcd9"

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
        tasks = {name: task for name, task in self.dag.task_dict.items() if not task.is_teardown}
        followers = {
            name: [after for after in task.downstream_task_ids if after in tasks]
            for name, task in tasks.items()
        }
        marked = abandoned_failures(followers, states_of_run(ti.dag_id, ti.run_id, tasks))
        if marked:
            raise AirflowFailException(
                f"the run was marked failed: {', '.join(marked)} failed, and the tasks behind were skipped"
            )


def abandoned_failures(followers: Mapping[str, Collection[str]], states: TaskStates) -> list[str]:
    """The tasks that have failed although all tasks directly after them were skipped.

    Args:
        followers: by task, the tasks directly after it. A task without any is left out: Airflow judges the
            run by it.
        states: by task, the states of its instances.
    """
    return [
        task_id
        for task_id, instances in states.items()
        if followers.get(task_id)
        and any(
            state == "failed" and _states_after(index, followers[task_id], states) == {"skipped"}
            for index, state in instances.items()
        )
    ]


def _states_after(index: int, followers: Collection[str], states: TaskStates) -> set[str | None]:
    """The states of the instances after the one of an index: those of the same index if there are any, since
    these are of the same mapped group."""
    after: set[str | None] = set()
    for follower in followers:
        instances = states.get(follower, {})
        after |= {instances[index]} if index in instances else set(instances.values())
    return after
