"""A step's output parameters: the same names and meanings whichever way the step waits."""

import json

from edl_workflows.core.protocol.reported_text import inert_text
from edl_workflows.pipelines.waiting.outputs import Outputs

PARAMETERS = (
    "kind",
    "namespace",
    "name",
    "uid",
    "job",
    "phase",
    "step",
    "records",
    "training-metrics",
    "warnings",
    "checkpoint-uri",
    "checkpoint-step",
    "resumed-step",
    "stall-seconds",
    "replicas",
    "usage",
    "plan",
)
"""Fields of `waiting.outputs.Outputs` as Argo names them. Argo's values are texts: an absent one is empty,
replicas, metrics, usage and a plan are JSON; warnings are separated by semicolons. Argo expands no tags in
them, because `inert_text` breaks tags."""


def render_outputs(outputs: Outputs) -> list[dict[str, str]]:
    """Outputs as the ``outputs.parameters`` of a node."""
    fields = outputs.to_dict()
    checkpoint = fields.pop("checkpoint", None) or {}
    values = {
        **fields,
        "checkpoint-uri": checkpoint.get("uri"),
        "checkpoint-step": checkpoint.get("step"),
        "resumed-step": fields.get("resumedStep"),
        "stall-seconds": fields.get("stallSeconds"),
        "training-metrics": json.dumps(fields.get("metrics") or {}, sort_keys=True),
        "warnings": "; ".join(fields.get("warnings") or []),
        "replicas": json.dumps(fields.get("replicas") or {}, sort_keys=True),
        "usage": json.dumps(fields.get("usage") or {}, sort_keys=True),
        "plan": json.dumps(fields["plan"], sort_keys=True) if "plan" in fields else None,
    }
    return [{"name": name, "value": _text(values.get(name))} for name in PARAMETERS]


def _text(value: object) -> str:
    return "" if value is None else inert_text(str(value))
