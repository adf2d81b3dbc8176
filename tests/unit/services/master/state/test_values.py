"""Functions of the master's state either change what they are given, or return something."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.services.master import state

ROOT = Path(state.__file__).parent
PURE = (
    "autoscale/autoscale_state", "checkpoints", "goodput", "job_result", "nodes/absence", "nodes/hang",
    "nodes/hang_report", "nodes/loss_batch", "nodes/node_check", "nodes/pod_requests", "nodes/relaunch",
    "nodes/replicas", "rollouts/rollout", "rollouts/rollout_checks", "settings", "sync",
    "versions/announced_cluster", "versions/cluster_versions", "views",
)  # fmt: skip
"""Modules of which no function changes anything: values in, values out."""
CHANGE_AND_RETURN = {"pop", "popitem", "popleft", "setdefault"}


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def root_name(node: ast.expr) -> str:
    """The variable that an attribute or an item belongs to; "" for the result of a call."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to, or deletes."""
    listed = {ast.Assign: "targets", ast.Delete: "targets", ast.AugAssign: "target", ast.AnnAssign: "target"}
    assigned = getattr(node, listed.get(type(node), ""), ())
    for target in assigned if isinstance(assigned, list) else [assigned] if assigned else []:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def changes(function: ast.FunctionDef) -> list[str]:
    """The statements in which a function changes one of its arguments: it assigns to a part of it, or calls a
    function with it, or a method of it, and uses no result."""
    arguments = function.args
    given = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    nodes = list(ast.walk(function))
    names = {target.id for node in nodes for target in targets(node) if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign) and root_name(node.value) in given:
            given |= {target.id for target in targets(node) if isinstance(target, ast.Name)}
    found: list[ast.expr] = [
        target
        for node in nodes
        for target in targets(node)
        if isinstance(target, ast.Attribute | ast.Subscript) and root_name(target) in given
    ]
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        owner = root_name(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        passed = owner not in names and any(root_name(argument) in given for argument in call.args)
        if (owner in given and (id(call) in unused or method in CHANGE_AND_RETURN)) or (
            passed and id(call) in unused
        ):
            found.append(call)
    return [ast.unparse(node) for node in found]


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_changes_nothing(module: str) -> None:
    """Its functions take values and return values; none changes an argument."""
    found = {function.name: changes(function) for function in functions(ROOT / f"{module}.py")}
    assert not {name: statements for name, statements in found.items() if statements}


def test_a_function_changes_the_state_or_returns_something() -> None:
    """No function does both, except those that enter a message and return the reply to it."""
    both = {
        f"{path.relative_to(ROOT)}: {function.name}": statements
        for path in ROOT.rglob("*.py")
        for function in functions(path)
        if not (path.name.endswith("messages.py") and not function.name.startswith("_"))
        if ast.unparse(function.returns or ast.Constant(None)) != "None"
        if (statements := changes(function))
    }
    assert not both


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("state.step = 1", ["state.step"]),
        ("state.volatile.seen['a'] += 1", ["state.volatile.seen['a']"]),
        ("volatile = state.volatile; volatile.seen = 1", ["volatile.seen"]),
        ("del state.sizes['ps']", ["state.sizes['ps']"]),
        ("state.nodes.add(1)", ["state.nodes.add(1)"]),
        ("return state.seen.setdefault('a', 1)", ["state.seen.setdefault('a', 1)"]),
        ("steps.advance(state)", ["steps.advance(state)"]),
        ("state = replace(state, step=1)", []),
        ("names = []; names.append(state.name)", []),
        ("return state.nodes.find('ps', 0)", []),
    ],
)
def test_what_counts_as_a_change(body: str, changed: list[str]) -> None:
    """Assignments to parts of an argument, and calls for their effect on it, are changes. New local values
    are not."""
    (function,) = (
        node for node in ast.parse(f"def f(state): {body}").body if isinstance(node, ast.FunctionDef)
    )
    assert changes(function) == changed
