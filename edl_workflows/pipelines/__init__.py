"""What people and pipelines use: the stages, Argo's templates, the Python client, the command line.

- `stages`: what a pipeline does with a job, independent of Airflow and Argo
- `waiting`: what a stage waits for, whose object it is, what it reports
- `manifests`: manifests that users write
- `argo`: the stages as steps of Argo Workflows
- `client`: trainings from Python
- `cli`: the command `edl`
- `install`: the manifests of an installation
- `timeline`: the history of a job; `live`: its figures now
"""
