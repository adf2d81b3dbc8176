"""Task groups of several operators for frequent combinations."""

from collections.abc import Mapping
from typing import Any, cast

from airflow.sdk import TaskGroup

from edl_workflows.operators.scale_plan import CheckpointElasticJobOperator, MigrateParameterServersOperator
from edl_workflows.sensors.elastic_job import ScalePlanSensor


def checkpoint_migrate_restart(
    group_id: str = "checkpoint_migrate_restart",
    *,
    job: str,
    replicas: int | str | None = None,
    migrate: Mapping[int | str, Mapping[str, Any]] | str | None = None,
    resource: Mapping[str, Any] | str | None = None,
    **common: Any,
) -> TaskGroup:
    """A migration of parameter servers whose three steps show as tasks.

    ``checkpoint`` has a checkpoint saved while training goes on; ``migrate`` begins the migration and is done
    when the new servers are ready; ``restart`` is done when training goes on from the switch checkpoint on
    the new servers. A migration that fails fails one of the last two, and the job goes on with its old
    servers.

    Args:
        group_id: prefix of the tasks' ids.
        job: name of the job.
        replicas: as `MigrateParameterServersOperator`; so are the next two.
        migrate: servers to replace.
        resource: size of servers that are added.
        common: arguments of all three tasks: ``namespace``, ``kubernetes_conn_id``, ``deferrable``,
            ``retries`` …
    """
    with TaskGroup(group_id) as group:
        checkpoint = CheckpointElasticJobOperator(task_id="checkpoint", job=job, **common)
        migration = MigrateParameterServersOperator(
            task_id="migrate",
            job=job,
            replicas=replicas,
            migrate=migrate,
            resource=resource,
            until="Restarting",
            **common,
        )
        restart = ScalePlanSensor(
            task_id="restart", name=cast("Any", migration.output)["name"], poke_interval=2, **common
        )
        checkpoint >> migration >> restart
    return group
