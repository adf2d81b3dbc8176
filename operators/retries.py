"""The retries of tasks that may be repeated without harm."""

from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from edl_workflows.airflow.hooks.airflow_versions import conf

REPEATS = 2
REPEAT_DELAY = timedelta(seconds=10)


class RepeatableTask(BaseOperator):
    """A task that is retried by default if it may be repeated without harm.

    Args:
        retries: Airflow's argument. Tasks that may be repeated without harm (sensors, operators that cancel
            or delete a job, and `FailMarkedRunOperator`) are retried at least twice by default, others as
            often as Airflow says.
        retry_delay: Airflow's argument; 10 s if ``retries`` of such a task is not given.
        kwargs: arguments of `BaseOperator`.
    """

    repeatable: ClassVar[bool] = False
    """Whether the task may be repeated without harm. Airflow may fail any task for reasons of its own."""

    def __init__(
        self, *, retries: int | None = None, retry_delay: timedelta | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs, **self._choose_retries(retries, retry_delay))

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """As Airflow's method. A mapped task has the same retries, though the scheduler reads them before
        any instance is made."""
        mapped = super().partial(**kwargs)
        # Airflow has filled in its own defaults or, since 3.3, those of `__init__`, so what the author of the
        # DAG gave is collected again.
        sources = (mapped.kwargs["dag"], mapped.kwargs["task_group"])
        layers = (*(source.default_args for source in sources if source), kwargs.get("default_args"), kwargs)
        given = {name: value for layer in layers for name, value in (layer or {}).items()}
        chosen = cls._choose_retries(given.get("retries"), given.get("retry_delay"))
        for name in ("retries", "retry_delay"):
            if given.get(name) is None:
                mapped.kwargs.pop(name, None)
                mapped.kwargs.update((key, value) for key, value in chosen.items() if key == name)
        return mapped

    @classmethod
    def _choose_retries(cls, retries: int | None, retry_delay: timedelta | None) -> dict[str, Any]:
        """The arguments for Airflow; those that are left to Airflow are left out."""
        if retries is None and cls.repeatable:
            retries = max(REPEATS, conf.getint("core", "default_task_retries", fallback=0))
            retry_delay = REPEAT_DELAY if retry_delay is None else retry_delay
        chosen = {"retries": retries, "retry_delay": retry_delay}
        return {name: value for name, value in chosen.items() if value is not None}
