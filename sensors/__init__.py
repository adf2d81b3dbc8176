"""Airflow sensors: thin drivers of `edl_workflows.stages`. Import as ``edl_workflows.sensors``."""

# The folder also lies on sys.path in a development checkout; imported from there its classes would be
# different objects from those that Airflow sees.
if __name__ != "edl_workflows.sensors":
    raise ImportError("import edl_workflows.sensors, not sensors")
