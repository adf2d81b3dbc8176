"""Airflow operators: thin drivers of `edl_workflows.stages`. Import as ``edl_workflows.operators``."""

# The folder also lies on sys.path in a development checkout; imported from there its classes would be
# different objects from those that Airflow sees.
if __name__ != "edl_workflows.operators":
    raise ImportError("import edl_workflows.operators, not operators")
