"""The former import path of `edl_workflows.agent.tensorflow_collective`; its `Model` is `MirroredModel`."""

from edl_workflows.agent.options import TrainingOptions
from edl_workflows.agent.sampler import Dataset
from edl_workflows.agent.tensorflow_collective import MirroredModel as Model
from edl_workflows.agent.tensorflow_collective import training

__all__ = ["Dataset", "Model", "TrainingOptions", "training"]
