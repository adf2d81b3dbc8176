"""The tab *Elastic job* in Airflow's web interface, on task instances and DAG runs (Airflow 3.1 and later).

- `plugin`: what Airflow loads; it imports none of the modules below until the first request
- `app`: the endpoints, with Airflow's authentication and the rights on the DAG
- `task_jobs`: finds the jobs that the tasks of a run work on, in Airflow's database
- `reading`: reads jobs, plans and logs from the cluster
- `brain_history`: reads the history of a job from a Brain
- `decisions`: approves and rejects plans
- `describe`: makes the document of a job from its objects; pure
- `document`: the data that the page gets
- `address`: where the tab is in Airflow's web interface
- ``files``: the page, ES modules that use the React of Airflow's own page
"""
