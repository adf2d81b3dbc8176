"""`make demo`: the embedded cluster, Airflow, and one elastic job through a pipeline, with live progress and
a report.

It uses only what users have: the `edl` command, the example DAGs, Airflow's own processes and REST API.
"""
