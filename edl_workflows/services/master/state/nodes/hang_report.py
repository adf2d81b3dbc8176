"""The stacks of the training processes while training hangs, grouped. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_workflows.core.jobs.elastic_job.faults import HangStack

MOST_STACKS = 8
MAX_STACK = 2_500
"""Characters of one stack."""
MAX_NODES = 50
"""Most nodes named for one stack; in a large group, hundreds of nodes can have the same stack."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class NodeStacks:
    """The stacks that a node reported.

    Attributes:
        text: the stacks of all threads, the main thread last; "" if the process wrote none.
        recordings: files of NCCL's flight recorder in its pod.
    """

    text: str
    recordings: tuple[str, ...] = ()


@dataclass(frozen=True)
class HangReport:
    """The newest hang.

    Attributes:
        dump: id of the request for stacks.
        since: Unix seconds at which the hang was found.
        stacks: by node.
    """

    dump: str
    since: float
    stacks: Mapping[str, NodeStacks] = field(default_factory=dict)


def group_stacks(stacks: Mapping[str, NodeStacks]) -> list[HangStack]:
    """The different stacks of the main threads, each with its nodes. The rarest comes first: a node whose
    stack differs from most others is more likely the cause."""
    nodes: dict[str, list[str]] = {}
    for node, node_stacks in sorted(stacks.items()):
        nodes.setdefault(_main_thread(node_stacks.text), []).append(node)
    ordered = sorted(nodes.items(), key=lambda pair: (len(pair[1]), pair[1]))[:MOST_STACKS]
    return [
        HangStack(
            nodes=who[:MAX_NODES],
            count=len(who),
            stack=stack[:MAX_STACK],
            recordings=[file for node in who[:MAX_NODES] for file in _named(node, stacks[node])][:MAX_NODES],
        )
        for stack, who in ordered
    ]


def summarize_stacks(stacks: Mapping[str, NodeStacks]) -> str:
    """One line that says which nodes hang in which function; "" without stacks."""
    return "; ".join(_summarize(hang_stack) for hang_stack in group_stacks(stacks))


def _summarize(hang_stack: HangStack) -> str:
    more = f" and {hang_stack.count - 3} more" if hang_stack.count > 3 else ""
    who = f"{', '.join(hang_stack.nodes[:3])}{more}"
    frame = _FRAME.search(hang_stack.stack)
    if frame is None:
        return f"{who}: no stack, the process is stopped or does not call connect()"
    file, line, function = frame.groups()
    return f"{who} in {function} ({file.rpartition('/')[2]}:{line})"


def _named(node: str, stacks: NodeStacks) -> list[str]:
    return [f"{node}:{file}" for file in stacks.recordings]


def _main_thread(text: str) -> str:
    """The frames of the last thread, without its id, which differs between processes."""
    return _THREAD.split(text)[-1].strip("\n")
