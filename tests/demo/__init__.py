"""`make demo`: runs the embedded cluster and Airflow, sends an elastic job through a pipeline, shows its
progress and writes a report.

It uses only what users have: the `edl` command, the example DAGs, and Airflow's processes and REST API.
"""
