"""Airflow connections and errors, as the stages need them.

- `elastic_job`: a `kube.Cluster` from a connection of Airflow's type ``kubernetes``
- `errors`: each `EdlError` as an exception that Airflow and its retry policies understand
- `airflow_versions`: the differences between Airflow's versions
- `task_owner`, `task_object`, `task_state`: who owns a job, which job a task works on, and the task's state
- `kills`: what a killed task ends; `orphans`: jobs that no task waits for any more
- `written_logs`, `lineage`: training logs in the task's log; OpenLineage

Modules here may import the Kubernetes provider, which takes seconds: operators import them when they run, not
when a DAG file is parsed.
"""
