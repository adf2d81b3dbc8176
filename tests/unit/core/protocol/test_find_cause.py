"""Which line of a program's output says why it ended."""

import pytest

from edl_workflows.core.jobs import manifests
from edl_workflows.core.protocol.reported_text import find_cause

TRACE = """epoch 3 loss 0.5
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    fit()
ValueError: no such loss
"""


@pytest.mark.parametrize(
    ("output", "code", "cause"),
    [
        (TRACE, 1, "ValueError: no such loss"),
        (TRACE + "wandb: View run at https://example.com\n", 1, "ValueError: no such loss"),
        (
            TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + TRACE.replace("ValueError", "torch.OutOfMemoryError"),
            1,
            "torch.OutOfMemoryError: no such loss",
        ),
        ("\n".join(f"[rank1]: {line}" for line in TRACE.splitlines()), 1, "ValueError: no such loss"),
        ("Traceback (most recent call last):\n  File x\nKeyboardInterrupt\nbye\n", 1, "KeyboardInterrupt"),
        ("loss 0.5\nno such variable\n", 1, "no such variable"),
        ("usage: train.py\ntrain.py: error: --lr is missing\n", 2, "train.py: error: --lr is missing"),
        (TRACE + "the cluster is lost\n", 75, "the cluster is lost"),
        ("terminate called after throwing\n", 134, "terminate called after throwing"),
        ("epoch 1\repoch 2\rno space left\r\n", 3, "no space left"),
        ("best val 3.3561\n", 137, ""),
        ("best val 3.3561\n", 143, ""),
        ("The node was low on memory", None, "The node was low on memory"),
        ("", 1, ""),
    ],
)  # fmt: skip
def test_causes(output: str, code: int | None, cause: str) -> None:
    """An uncaught error is the cause although a library wrote more; what a killed program wrote is none."""
    assert find_cause(output, code) == cause


def test_the_cause_of_a_pods_end() -> None:
    """The jobs of all kinds that quote a pod's termination message follow the same rule."""
    ended = {"exitCode": 137, "reason": "Error", "message": "best val 3.3561"}
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
        },
    }
    assert manifests.last_words(pod) == ""
    ended |= {"exitCode": 1, "message": TRACE + "bye"}
    assert manifests.last_words(pod) == ": ValueError: no such loss"
