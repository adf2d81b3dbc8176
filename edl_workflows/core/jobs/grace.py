"""How long the pods of an ElasticJob get to end, so that its last checkpoint is stored before. Pure."""

import math
from collections.abc import Mapping
from typing import Any

GRACE_SECONDS = 120
"""``terminationGracePeriodSeconds`` of pods whose template gives none. A pod ends as soon as its processes
have; Kubernetes' default of 30 s is too short for models of gigabytes."""
LEAST_SAVE_GRACE = 25.0
SAVE_FACTOR = 3.0
"""A last save may take this many times as long as the slowest of the newest saves: it competes with
everything else that ends."""
END_SECONDS = 5.0
"""For everything but the save: the other processes stop, the programs exit."""


def save_grace(save_seconds: float) -> float:
    """Seconds that a last save may take, if earlier ones took `save_seconds`; 0: unknown."""
    return max(LEAST_SAVE_GRACE, SAVE_FACTOR * save_seconds)


def needed_grace(save_seconds: float) -> int:
    """Seconds that pods need to end after such saves."""
    return math.ceil(save_grace(save_seconds) + END_SECONDS)


def template_grace(template: Mapping[str, Any]) -> int:
    """The grace of pods of a template, if no save takes longer than the default allows."""
    grace = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return GRACE_SECONDS if grace is None else int(grace)


def pod_grace(template: Mapping[str, Any], save_seconds: float) -> int:
    """The grace of new pods of a template: its own, else one that follows the duration of saves."""
    grace = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return max(GRACE_SECONDS, needed_grace(save_seconds)) if grace is None else int(grace)
