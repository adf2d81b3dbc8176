"""Whether a changed cluster still has the same model: what it says of the same inputs before and after, and the master's word."""

import logging
import math
import threading
from collections.abc import Callable

from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.patience import patiently
from edl_workflows.exceptions import EdlError
from edl_workflows.protocol.nodes import NodeRef
from edl_workflows.protocol.training import Evaluation, ModelReport

PROBLEM_CHARACTERS = 1024

log = logging.getLogger(__name__)


class ModelCheck:
    """What the model of one training process says, for its main thread.

    Args:
        client: to the master.
        node, version: who asks.
    """

    def __init__(self, client: MasterClient, node: NodeRef, version: int) -> None:
        self._client = client
        self._node = node
        self._version = version
        self._evaluate: Callable[[], float] | None = None

    def evaluate_with(self, evaluate: Callable[[], float]) -> None:
        """How to ask the model before it is saved for a plan. `confirm` must ask the same of the restored one.

        Args:
            evaluate: gives one number that the variables determine, such as the loss of some records; each time the same
                until a step is made. Its error says why there is none.
        """
        self._evaluate = evaluate

    def before(self) -> Evaluation | None:
        """What the model says now; None if the program did not say how to ask."""
        return None if self._evaluate is None else evaluated(self._evaluate)

    def confirm(self, evaluate: Callable[[], float]) -> str:
        """Tell the master what the restored model says, before anybody trains in this version; the chief does. However long it
        takes to reach the master.

        Args:
            evaluate: as for `evaluate_with`.

        Returns:
            Why nobody may train in this version: its model is another; "" if somebody may.
        """
        report = ModelReport(node=self._node, version=self._version, evaluation=evaluated(evaluate))
        try:
            verdict = patiently(lambda: self._client.report_model(report), threading.Event())
        except EdlError as refused:
            log.warning("%s", refused)  # another version has become active; this process will be ended
            return ""
        return verdict.refused if verdict is not None else ""


def evaluated(evaluate: Callable[[], float]) -> Evaluation:
    """A number, or why there is none."""
    try:
        value = float(evaluate())
    except Exception as error:  # noqa: BLE001 - whatever a program raises is the answer
        return Evaluation(problem=(str(error) or repr(error))[:PROBLEM_CHARACTERS])
    if not math.isfinite(value):
        return Evaluation(problem=f"the model says {value}")
    return Evaluation(value=value)
