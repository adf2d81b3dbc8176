"""The owner annotation of objects that an Airflow task creates: the task instance and its installation."""

from dataclasses import dataclass
from typing import Any, Self

ENGINE = "airflow"


def engine_of(installation: str) -> str:
    """The first part (before the first slash) of the owner annotations that an installation writes.

    Args:
        installation: ``edl_installation`` of the connection; "" for an Airflow without a name.
    """
    return f"{ENGINE}@{installation}" if installation else ENGINE


@dataclass(frozen=True)
class TaskOwner:
    """A task instance, as ``<engine>/<DAG>/<run>/<task>/<map index>``; equal for all its attempts."""

    engine: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @property
    def run(self) -> str:
        """Prefix of the owner annotations of all tasks of the same run."""
        return f"{self.engine}/{self.dag_id}/{self.run_id}/"

    @classmethod
    def of(cls, ti: Any, installation: str) -> Self:
        """The owner that a task instance is.

        Args:
            ti: a worker's or a triggerer's task instance.
            installation: as for `engine_of`.
        """
        index = -1 if ti.map_index is None else ti.map_index
        return cls(engine_of(installation), ti.dag_id, ti.run_id, ti.task_id, index)

    def is_instance(self, ti: Any) -> bool:
        """Whether this is the given task instance."""
        index = -1 if ti.map_index is None else ti.map_index
        instance = (ti.dag_id, ti.run_id, ti.task_id, index)
        return instance == (self.dag_id, self.run_id, self.task_id, self.map_index)

    def __str__(self) -> str:
        return f"{self.run}{self.task_id}/{self.map_index}"

    @classmethod
    def parse(cls, mark: str) -> Self | None:
        """The task instance that an owner annotation names; None if it names none.

        In Airflow, ids of DAGs and tasks contain no slashes, but ids of runs may.
        """
        engine, _, rest = mark.partition("/")
        dag_id, _, rest = rest.partition("/")
        parts = rest.rsplit("/", 2)
        if len(parts) != 3 or not parts[2].removeprefix("-").isdecimal():
            return None
        run_id, task_id, index = parts
        return cls(engine, dag_id, run_id, task_id, int(index)) if dag_id and run_id and task_id else None
