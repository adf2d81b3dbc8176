"""Airflow connections and errors, as the stages need them.

- `elastic_job`: a `kube.Cluster` from a connection of Airflow's type ``kubernetes``
- `errors`: each `EdlError` as an exception that Airflow and its retry policies understand

Modules here may import the Kubernetes provider, which takes seconds: operators import them when they run, not
when a DAG file is parsed.
"""
