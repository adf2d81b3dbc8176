"""Elastic deep-learning jobs as stages of Airflow and Argo pipelines, with the engine included.

``docs/explanation/architecture.md`` explains the folders, top to bottom. Importing this package imports none
of its modules, so a DAG file loads only what it imports itself.
"""

__version__ = "0.1.0"
