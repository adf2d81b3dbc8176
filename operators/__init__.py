"""Airflow operators: thin drivers of `edl_workflows.stages`. Import as ``edl_workflows.operators``."""

# In a development checkout, this folder is also on sys.path. Classes imported from there would be different
# objects from those that Airflow uses.
if __name__ != "edl_workflows.operators":
    raise ImportError("import edl_workflows.operators, not operators")
