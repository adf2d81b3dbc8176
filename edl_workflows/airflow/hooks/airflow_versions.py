"""All differences between Airflow 3.0, 3.1, 3.2 and 3.3: names that moved, and replacements for features that
older versions lack.

Importing this module is cheap, because operators import it when a DAG file is parsed.
"""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from airflow.triggers.base import BaseTrigger

# Not from the provider common-compat, since the release that Airflow 3.0 pins lacks these names.
try:
    from airflow.sdk import TriggerRule
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )
except ImportError:  # before 3.2
    from airflow.configuration import conf
    from airflow.exceptions import (  # type: ignore[no-redef, attr-defined]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )
    from airflow.utils.trigger_rule import TriggerRule  # type: ignore[import-not-found, no-redef]

__all__ = [
    "DELIVERED",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "KillableTrigger",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "TaskStore",
    "TriggerRule",
    "call_in_thread",
    "conf",
    "task_store",
]

P = ParamSpec("P")
T = TypeVar("T")

DELIVERED = "delivered"
"""The key of a boolean in a stored state. In older Airflow versions, only this flag survives from one attempt
to the next."""


class TaskStore(Protocol):
    """Stores small JSON values by key for a task instance, so that it finds them after a deferral and in
    later attempts."""

    def get(self, key: str) -> Any:
        """The value; None if there is none."""

    def set(self, key: str, value: Any) -> None:
        """Replace the value."""


def task_store(context: Mapping[str, Any]) -> TaskStore:
    """Airflow's task state store (3.3); in older versions, the XComs of the task instance."""
    store: TaskStore | None = context.get("task_state_store")
    return XComStore(context["ti"]) if store is None else store


class XComStore:
    """Stores values in XComs. They survive a deferral; from an earlier attempt, only the flag `DELIVERED` of
    each value survives.

    A task's XComs survive its deferrals, but Airflow deletes them when the next attempt begins. It tells that
    attempt only the keys of the deleted XComs. So the flag is an XCom with a key of its own.

    Args:
        ti: a worker's task instance.
    """

    def __init__(self, ti: Any) -> None:
        self._ti = ti

    def get(self, key: str) -> Any:
        """The value that this attempt set, or else the flag of the previous attempt."""
        if (value := self._pull(key)) is not None:
            return value
        # Private, but of past versions, which no longer change.
        server_context = self._ti._ti_context_from_server  # noqa: SLF001
        if server_context is None or self._flag(key) not in (server_context.xcom_keys_to_clear or ()):
            return None
        self._ti.xcom_push(self._flag(key), True)  # for the next attempt, in case this one is lost
        return {DELIVERED: True}

    def set(self, key: str, value: Any) -> None:
        """Replace the value and its flag."""
        from airflow.sdk.bases.xcom import BaseXCom

        ti, flag = self._ti, self._flag(key)
        ti.xcom_push(key, value)
        if value.get(DELIVERED):
            ti.xcom_push(flag, True)
        elif self._pull(flag) is not None:
            BaseXCom.delete(
                key=flag, task_id=ti.task_id, dag_id=ti.dag_id, run_id=ti.run_id, map_index=ti.map_index
            )

    def _pull(self, key: str) -> Any:
        return self._ti.xcom_pull(task_ids=self._ti.task_id, key=key, map_indexes=self._ti.map_index)

    @staticmethod
    def _flag(key: str) -> str:
        return f"{key}_{DELIVERED}"


async def call_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a trigger that blocks and may ask Airflow, for example for a connection.

    Before 3.3, Airflow sends a request of a thread in the triggerer's event loop only if asgiref started the
    thread. A request of any other thread gets an event loop of its own, which reads the answers to other
    requests: the triggerer dies with "Response read out of order".
    """
    from asgiref.sync import sync_to_async

    return await sync_to_async(function, thread_sensitive=False)(*args, **kwargs)


class KillableTrigger(BaseTrigger):
    """A trigger whose ``on_kill`` is called in every Airflow version when a user kills the deferred task.

    Airflow before 3.3 has only ``cleanup``, and calls it whenever a trigger ends: after its event, when the
    triggerer restarts, and when its task was killed, cleared or timed out. So ``on_kill`` must distinguish
    these cases by the state of the task.
    """

    if not hasattr(BaseTrigger, "on_kill"):

        async def cleanup(self) -> None:
            """Call ``on_kill``."""
            await self.on_kill()

    async def on_kill(self) -> None:
        """Cancel what the trigger waits for, if the task was killed."""
