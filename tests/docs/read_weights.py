"""Use the model that the script for several workers of the tutorial "Your own script"
has trained."""

import numpy as np

from edl_workflows.training import open_model


def read_weights(uri: str) -> np.ndarray:
    """The weights of the trained model."""
    return open_model(uri).tensors["weights"].reshape(64, 10)
