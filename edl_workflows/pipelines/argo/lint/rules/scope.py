"""What placeholders may name at a given position. `placeholders` decides which rule is broken."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.lint.findings import did_you_mean
from edl_workflows.pipelines.argo.lint.workflow import (
    POD_TYPES,
    Call,
    Spec,
    Template,
    as_mapping,
    as_mappings,
    as_text,
    entry_names,
    has_container_main,
    has_tag,
    is_gathered,
)

ROOTS = ("item.", "steps.", "inputs.", "outputs.", "pod.", "workflow.", "tasks.")
"""The first words of Argo's own placeholders; others belong to a program."""

_WORKFLOW = (
    "name", "namespace", "uid", "mainEntrypoint", "serviceAccountName", "status", "failures", "priority",
    "duration",
    "creationTimestamp", "scheduledTime", "parameters", "labels", "annotations", "outputs",
)  # fmt: skip
_OWN_METADATA = f"workflows.{GROUP}/"
"""Prefix of metadata that Argo sets when a workflow is submitted or runs."""
_ALWAYS_KNOWN = ("id", "status", "startedAt", "finishedAt", "hostNodeName")
"""Fields of every step and task, whatever it runs."""
_NODE_FIELDS = (*_ALWAYS_KNOWN, "ip", "exitCode", "outputs.result", "outputs.parameters", "outputs.artifacts")
_WITH_RESULT = ("container", "script", "data", "http", "plugin")
"""Types of templates with an exit code and captured output; a containerSet has them if it has a container
`main`."""
_DOTTED_HYPHEN = re.compile(
    r"\b(inputs\.parameters|workflow\.parameters|outputs\.parameters|steps|tasks)\.([a-zA-Z_]\w*(?:-\w+)+)"
)
_MEMBER = re.compile(
    r"(?<![\w.])(inputs\.parameters|steps|tasks)(?:\.([a-zA-Z_]\w*)|\[\s*['\"]([^'\"]+)['\"]\s*\])"
)


@dataclass(frozen=True)
class PlaceholderProblem:
    """Why a placeholder is invalid.

    Attributes:
        message: what does not exist.
        remedy: what was probably meant; empty if unknown.
    """

    message: str
    remedy: str = ""


class HyphenUsed(PlaceholderProblem):
    """A name with a hyphen is used in an expression, where the hyphen is a minus."""


def _unknown(message: str, name: str, valid_names: Iterable[str]) -> PlaceholderProblem:
    return PlaceholderProblem(f"{message} {name!r}", did_you_mean(name, sorted(valid_names)))


class PlaceholderScope:
    """The names that placeholders (``{{…}}``) in one template may refer to.

    Attributes:
        template: the template.
    """

    def __init__(self, spec: Spec, template: Template) -> None:
        self._spec, self.template = spec, template
        self._calls = {call.name: call for call in template.calls}

    def problem(self, name: str, call: Call | None) -> PlaceholderProblem | None:
        """Why a placeholder is invalid in a call or elsewhere in the template; None if it may be valid."""
        if not name.startswith(ROOTS):
            return None
        root, _, rest = name.partition(".")
        match root:
            case "inputs":
                return self._input(rest, call)
            case "steps" | "tasks":
                return self._node(root, rest, call)
            case "workflow":
                return self._workflow(rest)
            case "item":
                return self._item(rest, call)
            case "pod":
                return self._pod(rest, call)
        return None  # metrics may refer to the template's own outputs, which are known only after it has run

    def _inputs(self, kind: str, call: Call | None) -> frozenset[str]:
        own = self.template.names("inputs", kind)
        inline = as_mapping(as_mapping(call.body.get("inline")).get("inputs")) if call else {}
        return own | set(entry_names(inline.get(kind))) if inline else own

    def _input(self, rest: str, call: Call | None) -> PlaceholderProblem | None:
        kind, _, name = rest.partition(".")
        if kind not in ("parameters", "artifacts"):
            return _unknown("inputs have no", kind, ["parameters", "artifacts"])
        if kind == "artifacts":
            name = name.removesuffix(".path")
        input_names = self._inputs(kind, call)
        return (
            None
            if not name or name in input_names
            else _unknown(f"the template has no input {kind[:-1]}", name, input_names)
        )

    def _node(self, root: str, rest: str, call: Call | None) -> PlaceholderProblem | None:
        if rest.startswith("name"):
            return None
        template_type = {"steps": "steps", "tasks": "dag"}[root]
        if self.template.type != template_type:
            return PlaceholderProblem(f"{self.template} is not a {template_type} template")
        name, _, field = rest.partition(".")
        target = self._calls.get(name)
        if target is None:
            return _unknown(f"there is no {root[:-1]}", name, self._calls)
        if call and target.group > call.group:
            return PlaceholderProblem(f"step {name!r} comes later")
        return self._output(target, field)

    def _pod(self, rest: str, call: Call | None) -> PlaceholderProblem | None:
        if rest != "name":
            return _unknown("a pod has no", rest, ["name"])
        if call is not None:
            return PlaceholderProblem(f"a {call.role} has no pod", "Use it in the template that is called.")
        if "inline" in self.template.path:
            return PlaceholderProblem(
                "for an inline template Argo reads this from the step, which has no pod",
                "Give the template a name and call it.",
            )
        if self.template.type in ("", *POD_TYPES):
            return None
        return PlaceholderProblem(f"{self.template} is a {self.template.type}, which has no pod of its own")

    def _output(self, target: Call, field: str) -> PlaceholderProblem | None:
        template = self._spec.resolve(target)
        if not isinstance(template, Template) or not template.types or field in _ALWAYS_KNOWN:
            return None
        of, kind, name = (*field.split(".", 2), "", "")[:3]
        if of == "outputs" and kind in ("parameters", "artifacts") and name:
            output_names = template.names("outputs", kind)
            return (
                None
                if name in output_names
                else _unknown(f"{template} has no output {kind[:-1]}", name, output_names)
            )
        match field:
            case "outputs.result" | "exitCode":
                return _without_result(target, template, field)
            case "outputs.parameters":
                return None if is_gathered(target) else _not_gathered(target)
            case "ip" if template.body.get("daemon") is True:
                return None
            case "ip":
                return PlaceholderProblem(f"{template} is not a daemon, and only daemons have an address")
        return _unknown(f"a {target.role} has no", field, _NODE_FIELDS)

    def _workflow(self, rest: str) -> PlaceholderProblem | None:
        word, _, name = rest.partition(".")
        if word not in _WORKFLOW:
            return _unknown("a workflow has no", word, _WORKFLOW)
        if word in ("labels", "annotations"):
            return self._metadata(word, name)
        if self._spec.is_library or not name:
            return None
        if word == "outputs":
            return self._global(*name.partition(".")[::2])
        parameters = self._spec.parameters
        if word != "parameters" or name == "json" or name in parameters:
            return None
        return _unknown("the workflow has no parameter", name, parameters)

    def _metadata(self, field: str, name: str) -> PlaceholderProblem | None:
        metadata_names = self._spec.metadata_names(field)
        if metadata_names is None or name in ("", "json", *metadata_names) or name.startswith(_OWN_METADATA):
            return None
        remedy = (
            did_you_mean(name, sorted(metadata_names))
            or f"Add it to workflowMetadata.{field}, or to metadata.{field}."
        )
        return PlaceholderProblem(f"the workflow has no {field[:-1]} {name!r}", remedy)

    def _global(self, kind: str, name: str) -> PlaceholderProblem | None:
        global_outputs = self._spec.global_outputs
        if name in global_outputs or self._spec.calls_elsewhere or any(map(has_tag, global_outputs)):
            return None
        return _unknown(f"no template has an output {kind[:-1]} with the globalName", name, global_outputs)

    def _item(self, rest: str, call: Call | None) -> PlaceholderProblem | None:
        if call is None or not call.loops:
            return PlaceholderProblem("there is no loop here")
        items = call.body.get("withItems")
        if not isinstance(items, list) or any(
            isinstance(loop_item, list) or has_tag(as_text(loop_item)) for loop_item in items
        ):
            return None
        item_keys = {key for _, item in as_mappings(items) for key in item}
        return None if rest in item_keys else _unknown("the items have no", rest, item_keys)

    def problems_of_expression(self, expression: str, call: Call | None) -> Iterator[PlaceholderProblem]:
        """The names in an expression that do not exist, or that mean something else than it seems."""
        inputs = self._inputs("parameters", call)
        for match in _DOTTED_HYPHEN.finditer(expression):
            before, name = match[1], match[2]
            if (
                name in inputs
                or name in self._calls
                or name in self._spec.parameters | self._spec.output_names
            ):
                yield HyphenUsed(f"{match[0]} is read as a subtraction", f"Write {before}['{name}'].")
        for match in _MEMBER.finditer(expression):
            root, name = match[1], match[3] or match[2]
            if match[2] and expression[match.end() : match.end() + 1] == "-":
                continue  # reported above, or an intended subtraction
            if root == "inputs.parameters" and name not in inputs:
                yield _unknown("the template has no input parameter", name, inputs)
            elif root != "inputs.parameters" and self._calls and name not in self._calls:
                yield _unknown(f"there is no {root[:-1]}", name, self._calls)


def _without_result(target: Call, template: Template, field: str) -> PlaceholderProblem | None:
    if template.type in _WITH_RESULT or has_container_main(template):
        return None
    if template.type == "containerSet":
        message = f"{template} has no container 'main', whose {field} it would be"
        return None if is_gathered(target) else PlaceholderProblem(message)
    return PlaceholderProblem(f"{template} is a {template.type}, which has no {field}")


def _not_gathered(target: Call) -> PlaceholderProblem:
    if target.body.get("withSequence") is not None:
        return PlaceholderProblem(
            f"Argo does not gather the outputs of {target.name!r}: it repeats by withSequence"
        )
    return PlaceholderProblem(
        f"{target.role} {target.name!r} runs once", "Name one: outputs.parameters.NAME."
    )
