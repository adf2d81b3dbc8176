"""Airflow sensors: thin drivers of `edl_workflows.stages`. Import as ``edl_workflows.sensors``."""

# In a development checkout, this folder is also on sys.path. Classes imported from there would be different
# objects from those that Airflow uses.
if __name__ != "edl_workflows.sensors":
    raise ImportError("import edl_workflows.sensors, not sensors")
