"""Elastic deep-learning jobs as stages of Airflow and Argo pipelines, with the engine included.

The folders, top to bottom, are explained in ``docs/explanation/architecture.md``. Importing this package
imports nothing else of it: a DAG file pays only for what it names.
"""

__version__ = "0.1.0"
