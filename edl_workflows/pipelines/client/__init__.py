"""Elastic training from Python.

::

    from edl_workflows.pipelines.client import train

    with train("train.py", workers=2) as training:
        training.scale(workers=3)
        training.wait()

The same stages as in pipelines run underneath. `edl run` is a thin shell around this package.
"""

from edl_workflows.pipelines.client.train import train
from edl_workflows.pipelines.client.training import ElasticTraining

__all__ = ["ElasticTraining", "train"]
