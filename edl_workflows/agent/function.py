"""Calls the function of a program that was made from a function
(`edl_workflows.jobs.elastic_job.program.TrainingProgram.of_function`)."""

import json
from collections.abc import Callable
from typing import Any


def call_function(function: Callable[..., Any], arguments: str) -> None:
    """Call a training function.

    Args:
        function: the function.
        arguments: its arguments by name, as a JSON object.
    """
    function(**json.loads(arguments))
