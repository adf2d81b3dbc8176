"""Calls the training function of a program that was generated from a function
(`edl_workflows.core.jobs.elastic_job.program.TrainingProgram.of_function`), and reports its result."""

import json
import os
import threading
from collections.abc import Callable
from typing import Any

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.function_result import render_result
from edl_workflows.core.protocol.training import ResultReport
from edl_workflows.training.client import MasterClient, call_until_answered
from edl_workflows.training.environment import NodeEnvironment

REPORT_SECONDS = 300.0
"""How long reporting a result is retried, for example while the master restarts."""


def call_function(function: Callable[..., Any], arguments: str) -> None:
    """Call a training function and report what it returns, unless that is None.

    Args:
        function: the function.
        arguments: its arguments by name, as a JSON object.

    Raises:
        InvalidError, UnavailableError: see `report_result`.
    """
    value = function(**json.loads(arguments))
    if value is not None:
        report_result(value)


def report_result(value: object) -> None:
    """Report the result of training, a small JSON value. The job's status shows it, and pipelines receive it.
    Returns when the master has stored it. Every worker may report; the master keeps the result of rank 0.

    Does nothing outside a job, on parameter servers and evaluators, and in all but the first process of a
    pod.

    Args:
        value: numbers, strings, lists and maps. Scalars and arrays of the frameworks are converted to numbers
            and lists; numbers that are not finite become null.

    Raises:
        InvalidError: `value` is not a JSON value, is larger than 8 KiB, or has an integer of more than 64
            bits or a key that begins with two underscores.
        UnavailableError: the master did not answer in time.
    """
    trains = os.environ.get(names.ENV_NODE_TYPE) in (names.CHIEF_TYPE, names.WORKER_TYPE)
    if not trains or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    text, environment = render_result(value), NodeEnvironment.read()
    report = ResultReport(node=environment.node, result=text)
    late = threading.Event()
    timer = threading.Timer(REPORT_SECONDS, late.set)
    timer.daemon = True
    timer.start()
    try:
        with MasterClient(environment.master, environment.token) as client:
            if call_until_answered(lambda: client.result(report), late) is None:
                raise UnavailableError(
                    f"the job's master at {environment.master} did not take the training's result within "
                    f"{REPORT_SECONDS:.0f} s"
                )
    finally:
        timer.cancel()
