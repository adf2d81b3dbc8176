"""Rules about the order of a dag's tasks: ``depends``, ``dependencies``, ``target``."""

import re
from collections.abc import Iterator, Mapping

from edl_workflows.pipelines.argo.lint import cel
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity, did_you_mean
from edl_workflows.pipelines.argo.lint.workflow import (
    Call,
    Spec,
    Template,
    as_mappings,
    as_text,
    find_tags,
    has_tag,
)

UNKNOWN_TASK = Rule(
    "unknown-task",
    Severity.ERROR,
    "`depends`, `dependencies` or `target` names a task that the dag does not have, or a container of a "
    "containerSet depends on one that the set does not have.",
    "Correct the name.",
)
BAD_DEPENDS = Rule(
    "bad-depends",
    Severity.ERROR,
    "A `depends` that is not an expression of tasks, `&&`, `||`, `!` and parentheses.",
    "Write it like `(a.Succeeded || a.Skipped) && b`.",
)
UNKNOWN_RESULT = Rule(
    "unknown-result",
    Severity.ERROR,
    "`depends` refers to a result that tasks do not have.",
    "Use Succeeded, Failed, Errored, Skipped, Omitted, Daemoned, AnySucceeded or AllFailed.",
)
NO_ITEMS = Rule(
    "result-of-items",
    Severity.ERROR,
    "`depends` refers to AnySucceeded or AllFailed of a task that runs once.",
    "Use Succeeded or Failed, or give that task withItems, withParam or withSequence.",
)
CYCLE = Rule(
    "dependency-cycle",
    Severity.ERROR,
    "Tasks depend on each other in a cycle.",
    "Remove one of the dependencies.",
)
NOT_AWAITED = Rule(
    "not-awaited",
    Severity.ERROR,
    "A task uses another task's results without depending on it, so the results may not exist yet.",
    "Add that task to its depends or dependencies.",
)
RULES = (UNKNOWN_TASK, BAD_DEPENDS, UNKNOWN_RESULT, NO_ITEMS, CYCLE, NOT_AWAITED)

RESULTS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed")
_TOKEN = re.compile(r"\s*(&&|\|\||!|\(|\)|[a-zA-Z0-9][-a-zA-Z0-9]*(?:\.[a-zA-Z]+)?)")
_ANY = re.compile(r"[^\s]")


def split_expression(expression: str) -> list[str]:
    """The tokens of a ``depends``.

    Raises:
        ValueError: it contains something else.
    """
    tokens, at = [], 0
    while _ANY.search(expression, at):
        match = _TOKEN.match(expression, at)
        if not match:
            raise ValueError(f"{expression[at:].strip()[:20]!r} can't be parsed")
        tokens.append(match[1])
        at = match.end()
    return tokens


def _grammar(words: list[str]) -> str:
    """What is wrong with the order of tokens; empty if it is valid."""
    depth, operand_next = 0, True
    for word in words:
        if word in ("&&", "||"):
            if operand_next:
                return f"a task is missing before {word}"
            operand_next = True
        elif word != ")":
            if not operand_next:
                return f"&& or || is missing before {word!r}"
            depth += word == "("
            operand_next = word in ("!", "(")
        else:
            depth -= 1
            if operand_next or depth < 0:
                return "parentheses do not match"
    return "" if depth == 0 and not operand_next else "it ends too early"


def needs_of(task: Call) -> list[tuple[str, str]]:
    """(task, result) that a task waits for; an empty result means any successful end."""
    depends = as_text(task.body.get("depends"))
    if not depends:
        listed = task.body.get("dependencies")
        return [(as_text(name), "") for name in listed] if isinstance(listed, list) else []
    try:
        words = split_expression(depends)
    except ValueError:
        return []
    pairs = [word.partition(".") for word in words if word not in ("&&", "||", "!", "(", ")")]
    return [(name, result) for name, _, result in pairs]


def _depends(spec: Spec) -> Iterator[Finding]:
    for dag in _dags(spec):
        tasks = {task.name: task for task in dag.calls}
        for task in dag.calls:
            if problems := list(_syntax(task)):
                yield from problems
                continue
            field = "depends" if as_text(task.body.get("depends")) else "dependencies"
            for name, result in needs_of(task):
                yield from _need(task, (name, result), tasks, field)
        yield from _target(dag, tasks)
        yield from _mixed(dag)
        if circle := _circle(dag):
            yield CYCLE.at((*dag.path, "dag", "tasks"), f"{' -> '.join(circle)} in {dag}")


def _dags(spec: Spec) -> Iterator[Template]:
    return (template for template in spec.templates if template.type == "dag")


def _syntax(task: Call) -> Iterator[Finding]:
    depends = as_text(task.body.get("depends"))
    if not depends or has_tag(depends):
        return
    try:
        problem = _grammar(split_expression(depends))
    except ValueError as error:
        problem = str(error)
    if problem:
        yield BAD_DEPENDS.at((*task.path, "depends"), f"{depends!r}: {problem}")


def _need(task: Call, need: tuple[str, str], tasks: Mapping[str, Call], field: str) -> Iterator[Finding]:
    name, result = need
    if has_tag(name) or has_tag(as_text(task.body.get("depends"))):
        return
    path = (*task.path, field)
    if name not in tasks:
        yield UNKNOWN_TASK.at(path, f"there is no task {name!r}", did_you_mean(name, tasks))
    elif result and result not in RESULTS:
        close = did_you_mean(result, RESULTS).replace("mean ", f"mean {name}.")
        yield UNKNOWN_RESULT.at(path, f"tasks have no result {result!r}", close)
    elif result in ("AnySucceeded", "AllFailed") and not tasks[name].loops:
        yield NO_ITEMS.at(path, f"task {name!r} runs once, so it has no {result}")


def _target(dag: Template, tasks: Mapping[str, Call]) -> Iterator[Finding]:
    target = as_text(dag.part("dag").get("target"))
    for name in target.split() if not has_tag(target) else ():
        if name not in tasks:
            yield UNKNOWN_TASK.at((*dag.path, "dag", "target"), f"there is no task {name!r}")


def _mixed(dag: Template) -> Iterator[Finding]:
    """Apply to the whole dag what the definitions check within one task."""
    if not any(as_text(task.body.get("depends")) for task in dag.calls):
        return
    for task in dag.calls:
        if as_text(task.body.get("depends")):
            continue  # reported by the definitions' own rules
        for field, rule in (("dependencies", cel.TWO_DEPENDENCIES), ("continueOn", cel.DEPENDS_CONTINUE_ON)):
            if task.body.get(field):
                message = f"task {task.name!r} has {field} in a dag that uses depends"
                yield rule.at((*task.path, field), message)
        if task.name[:1].isdigit() and not task.body.get("dependencies"):
            yield cel.DIGIT_FIRST.at((*task.path, "name"), f"{task.name!r} starts with a digit")


def _circle(dag: Template) -> list[str]:
    """The names along a circle of dependencies; empty if there is none."""
    needs = {task.name: [name for name, _ in needs_of(task)] for task in dag.calls}
    finished: set[str] = set()
    for start in needs:
        way: dict[str, None] = {}
        waiting: list[tuple[str, bool]] = [(start, False)]
        while waiting:
            name, left = waiting.pop()
            if left:
                finished.add(way.popitem()[0])
            elif name in way:
                names = list(way)
                return [*names[names.index(name) :], name]
            elif name in needs and name not in finished:
                way[name] = None
                waiting += [(name, True), *((dependency, False) for dependency in needs[name])]
    return []


def _awaited(spec: Spec) -> Iterator[Finding]:
    for dag in _dags(spec):
        needs = {task.name: {name for name, _ in needs_of(task)} for task in dag.calls}
        for task in dag.calls:
            used = {
                match[1]: path
                for tag, path in find_tags(dict(task.arguments), (*task.path, "arguments"))
                if (match := re.match(r"\s*tasks\.([-a-zA-Z0-9]+)\.", tag))
            }
            before = ancestors_of(task.name, needs) if used else set()
            for name, path in used.items():
                if name in needs and name not in before:
                    yield NOT_AWAITED.at(path, f"task {task.name!r} does not depend on {name!r}")


def ancestors_of(task: str, needs: Mapping[str, set[str]]) -> set[str]:
    ancestors: set[str] = set()
    waiting = [task]
    while waiting:
        for name in needs.get(waiting.pop(), set()) - ancestors:
            ancestors.add(name)
            waiting.append(name)
    return ancestors


def _containers(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        containers = as_mappings(template.part("containerSet").get("containers"))
        container_names = {as_text(container.get("name")) for _, container in containers}
        for index, container in containers:
            listed = container.get("dependencies")
            for name in listed if isinstance(listed, list) else ():
                if name not in container_names:
                    path = (*template.path, "containerSet", "containers", index, "dependencies")
                    yield UNKNOWN_TASK.at(path, f"there is no container {name!r}")


CHECKS = (_depends, _awaited, _containers)
