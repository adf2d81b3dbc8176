"""A message for each route of a master's API: of worker 0 in version 1, with data set "train"."""

from typing import Any

from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import AckReply, DatasetProgress, LeaseReply
from edl_workflows.core.protocol.nodes import Directive, ExitVerdict, LeaveVerdict
from edl_workflows.core.protocol.routes import Route
from edl_workflows.core.protocol.sync import BarrierState, SyncState
from edl_workflows.core.protocol.training import CheckpointTicket, ModelVerdict, ResultReceipt, StepReceipt

NODE = {"type": "worker", "id": 0}
_STARTED: dict[str, Any] = {"node": NODE, "incarnation": "a"}
_MEMBER: dict[str, Any] = {"node": NODE, "version": 1}

REQUESTS: dict[Route[Any, Any], dict[str, Any]] = {
    routes.REGISTER: {**_STARTED, "rank": 0},
    routes.HEARTBEAT: _STARTED,
    routes.LEAVE: _STARTED,
    routes.DIRECTIVE: {**NODE, "after": -1, "wait": 0.0},
    routes.PROCESS: {**_MEMBER, "state": "training"},
    routes.CRASH: {**_STARTED, "version": 2, "crashes": 1, "code": 1},
    routes.DEATH: {**_STARTED, "version": 1, "code": 1},
    routes.PRESENCE: _MEMBER,
    routes.STACKS: {"node": NODE, "dump": "dump-1"},
    routes.NODE_CHECK: {"node": NODE, "round": 1},
    routes.EXIT: {"node": NODE, "incarnation": "former", "version": 1, "code": 0},
    routes.STEP: {**_MEMBER, "step": 1, "time": 2.0, "first_step_time": 1.0},
    routes.RESULT: {"node": NODE, "result": "1"},
    routes.BEGIN_CHECKPOINT: _MEMBER,
    routes.RESTORED_CHECKPOINT: {**_MEMBER, "uri": "/c/1", "step": 1},
    routes.DAMAGED_CHECKPOINT: {**_MEMBER, "uri": "/c/1", "error": "torn", "instead": None},
    routes.MODEL: {**_MEMBER, "evaluation": {"value": 1.0}},
    routes.END_CHECKPOINT: {"node": NODE, "uri": "/c/1", "step": 1},
    routes.DATASET: {"name": "train", "size": 100, "shard_size": 10},
    routes.LEASE: {"node": NODE},
    routes.ACKNOWLEDGE: {"node": NODE},
    routes.OFFSETS: {"ends": {}},
    routes.JOIN_SYNC: {"node": NODE},
    routes.SYNC: {"wait": 0.0},
    routes.BARRIER: {"wait": 0.0},
}
"""Route → its request."""

ANSWERS: dict[type, dict[str, Any]] = {
    Directive: {"revision": 1},
    StepReceipt: {"revision": 1, "awaited": 20},
    ExitVerdict: {"wait": False},
    LeaveVerdict: {"wait": True, "seconds": 25.0},
    ResultReceipt: {"kept": True},
    CheckpointTicket: {"id": "ticket"},
    CheckpointRef: {"uri": "/c/1", "step": 1},
    ModelVerdict: {},
    DatasetProgress: {
        "name": "train", "task_type": "training", "state": "ok", "epoch": 1, "num_epochs": 1,
        "records_done": 0, "records_total": 100, "completed_steps": None, "shards_leased": 0,
        "shards_returned": 0, "failures": 0, "timeouts": 0,
    },
    LeaseReply: {"state": "ok"},
    AckReply: {"state": "ok"},
    SyncState: {"finished": True},
    BarrierState: {"open": True},
}  # fmt: skip
"""Model of answers → an answer."""
