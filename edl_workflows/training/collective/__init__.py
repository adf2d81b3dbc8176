"""Collective training: a loop that all members of a job run in step, while members join, leave or die.

A framework implements `Framework` and calls `training`. Adapters are in
`edl_workflows.training.frameworks`. The names below are imported on first use, because they need numpy, which
the base install lacks.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensors import State
    from edl_workflows.training.collective.framework import Framework, Reduced, Saving, Wishes
    from edl_workflows.training.collective.regrouping import (
        DamagedStateError,
        Place,
        RegroupingFramework,
    )
    from edl_workflows.training.collective.world import World, training
    from edl_workflows.training.data.sampler import Dataset
    from edl_workflows.training.options import TrainingOptions

__all__ = [
    "DamagedStateError",
    "Dataset",
    "Framework",
    "Place",
    "Reduced",
    "RegroupingFramework",
    "Saving",
    "State",
    "TrainingOptions",
    "Wishes",
    "World",
    "training",
]

_MODULES = {
    "DamagedStateError": "edl_workflows.training.collective.regrouping",
    "Dataset": "edl_workflows.training.data.sampler",
    "Framework": "edl_workflows.training.collective.framework",
    "Place": "edl_workflows.training.collective.regrouping",
    "Reduced": "edl_workflows.training.collective.framework",
    "RegroupingFramework": "edl_workflows.training.collective.regrouping",
    "Saving": "edl_workflows.training.collective.framework",
    "State": "edl_workflows.training.checkpoints.tensors",
    "TrainingOptions": "edl_workflows.training.options",
    "Wishes": "edl_workflows.training.collective.framework",
    "World": "edl_workflows.training.collective.world",
    "training": "edl_workflows.training.collective.world",
}


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
