"""The rules' view of a manifest: its templates, and the calls between them. A value of the wrong type counts
as absent.

`schema` has already reported wrong types and unknown fields, so the rules need not.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.lint.findings import Finding

SPEC_PATHS: Mapping[str, Path] = {
    "Workflow": ("spec",),
    "WorkflowTemplate": ("spec",),
    "ClusterWorkflowTemplate": ("spec",),
    "CronWorkflow": ("spec", "workflowSpec"),
}
"""The position of the workflow's spec in each kind."""
TYPES = (
    "container", "containerSet", "script", "resource", "data", "http", "plugin", "suspend", "steps", "dag",
)  # fmt: skip
"""The fields of a template of which exactly one is set: its type."""
COMPOSITE = ("steps", "dag")
POD_TYPES = ("container", "containerSet", "script", "resource", "data")
AGENT_TYPES = ("http", "plugin")
"""Types that run in no pod of their own but are served by an agent."""

_TAG = re.compile(r"\{\{((?:(?!\{\{).)*?)\}\}", re.DOTALL)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a map, otherwise an empty map."""
    return value if isinstance(value, Mapping) else {}


def as_mappings(value: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """The maps in a list, with their indices."""
    return [(i, v) for i, v in enumerate(value) if isinstance(v, Mapping)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """The value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def entry_names(value: Any) -> list[str]:
    """The names of a list's entries."""
    return [as_text(entry.get("name")) for _, entry in as_mappings(value)]


def is_gathered(call: "Call") -> bool:
    """Whether the outputs of a call's items are gathered in lists; those of withSequence are not."""
    return bool(call.body.get("withItems") or call.body.get("withParam"))


def has_container_main(template: "Template") -> bool:
    """Whether a containerSet has the container ``main``, whose outputs are those of the template."""
    return "main" in entry_names(template.part("containerSet").get("containers"))


def has_tag(value: str) -> bool:
    """Whether a string contains a placeholder."""
    return "{{" in value


def find_tags(value: Any, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """The contents of all placeholders (``{{…}}``) in a value, with their positions."""
    if isinstance(value, str):
        for match in _TAG.finditer(value):
            yield match[1], path
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from find_tags(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from find_tags(child, (*path, index))


@dataclass(frozen=True)
class Template:
    """One template.

    Attributes:
        body: the map in the manifest.
        path: its position.
        defaults: the spec's templateDefaults.
    """

    body: Mapping[str, Any]
    path: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name; empty for an inline template."""
        return as_text(self.body.get("name"))

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types whose fields are set; a valid template has exactly one."""
        return tuple(kind for kind in TYPES if self.body.get(kind) is not None)

    @property
    def type(self) -> str:
        """Its type; empty if it has none."""
        return self.types[0] if self.types else ""

    def part(self, kind: str) -> Mapping[str, Any]:
        """The map in the field of a type; empty if the template has another type."""
        return as_mapping(self.body.get(kind)) if self.type == kind else {}

    def setting(self, name: str) -> Any:
        """The value of a field, or its default in the workflow's spec."""
        return self.body.get(name, self.defaults.get(name))

    def inputs(self, kind: str) -> list[tuple[int, Mapping[str, Any]]]:
        """Input ``parameters`` or ``artifacts``."""
        return as_mappings(as_mapping(self.body.get("inputs")).get(kind))

    def outputs(self, kind: str) -> list[tuple[int, Mapping[str, Any]]]:
        """Output ``parameters`` or ``artifacts``."""
        return as_mappings(as_mapping(self.body.get("outputs")).get(kind))

    def names(self, side: str, kind: str) -> frozenset[str]:
        """The names of ``inputs`` or ``outputs``: ``parameters`` or ``artifacts``."""
        key = (side, kind)
        if key not in self._names:
            self._names[key] = frozenset(entry_names(as_mapping(self.body.get(side)).get(kind))) - {""}
        return self._names[key]

    @cached_property
    def _names(self) -> dict[tuple[str, str], frozenset[str]]:
        return {}

    @cached_property
    def calls(self) -> "tuple[Call, ...]":
        """Its steps or tasks, in order."""
        if self.type == "dag":
            tasks = as_mappings(self.part("dag").get("tasks"))
            return tuple(Call(body, (*self.path, "dag", "tasks", i), "task") for i, body in tasks)
        groups = self.body.get("steps") if self.type == "steps" else None
        return tuple(
            Call(body, (*self.path, "steps", g, i), "step", group=g)
            for g, group in enumerate(groups if isinstance(groups, list) else ())
            for i, body in as_mappings(group)
        )

    def __str__(self) -> str:
        return f"template {self.name!r}" if self.name else "the inline template"


@dataclass(frozen=True)
class Call:
    """A reference to a template: a step, a task, a hook, or the workflow itself.

    Attributes:
        body: the map in the manifest.
        path: its position.
        role: step, task, hook, entrypoint or exit.
        group: for a step, the index of its group, whose steps run in parallel.
        given: its arguments if they are not in `body`.
    """

    body: Mapping[str, Any]
    path: Path
    role: Literal["step", "task", "hook", "entrypoint", "exit"]
    group: int = 0
    given: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return as_text(self.body.get("name"))

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that it passes to the template."""
        return as_mapping(self.body.get("arguments")) if self.given is None else self.given

    @property
    def loops(self) -> bool:
        """Whether it runs once per item."""
        return any(self.body.get(way) is not None for way in ("withItems", "withParam", "withSequence"))

    def hooks(self) -> "Iterator[tuple[str, Call]]":
        """Its hooks by name. An exit hook without arguments has those of its step."""
        for name, body in as_mapping(self.body.get("hooks")).items():
            if isinstance(body, Mapping):
                own = as_mapping(body.get("arguments"))
                given = self.arguments if name == "exit" and not any(own.values()) else own
                yield name, Call(body, (*self.path, "hooks", name), "hook", given=given)


class _Unknown:
    """A template that cannot be resolved: its name is a placeholder, or it is in a file that was not
    given."""


UNKNOWN = _Unknown()
Resolved = Template | _Unknown | None
"""The target of a call; None if it does not exist."""


@dataclass(frozen=True)
class Spec:
    """A workflow's spec, in any kind.

    Attributes:
        manifest: the object that contains it.
        kind: of that object.
        path: of the spec.
        library: the workflow templates of the other documents.
    """

    manifest: Mapping[str, Any]
    kind: str
    path: Path
    library: "Library"

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The map in the manifest."""
        body = self.manifest
        for step in self.path:
            body = as_mapping(body.get(str(step)))
        return body

    @property
    def namespace(self) -> str:
        """The object's; empty if it has none."""
        return as_text(as_mapping(self.manifest.get("metadata")).get("namespace"))

    @property
    def is_library(self) -> bool:
        """Whether other workflows run it, with parameters that it may not declare."""
        return self.kind in ("WorkflowTemplate", "ClusterWorkflowTemplate")

    @cached_property
    def named(self) -> tuple[Template, ...]:
        """The templates of its list."""
        defaults = as_mapping(self.body.get("templateDefaults"))
        bodies = as_mappings(self.body.get("templates"))
        return tuple(Template(body, (*self.path, "templates", i), defaults) for i, body in bodies)

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """All templates, including inline ones."""
        templates = list(self.named)
        for template in templates:  # grows while it is walked
            templates += [
                Template(call.body["inline"], (*call.path, "inline"), template.defaults)
                for call in template.calls
                if isinstance(call.body.get("inline"), Mapping)
            ]
        return tuple(templates)

    @cached_property
    def by_name(self) -> Mapping[str, Template]:
        """The templates of its list by name; of two with one name, the first."""
        return {template.name: template for template in reversed(self.named)}

    @property
    def reference(self) -> Mapping[str, Any]:
        """Its workflowTemplateRef; empty without one."""
        return as_mapping(self.body.get("workflowTemplateRef"))

    @cached_property
    def referenced(self) -> "Spec | _Unknown | None":
        """The spec that its workflowTemplateRef names."""
        if not self.reference:
            return None
        return self.library.find(self.reference, self.namespace) or UNKNOWN

    def entries(self) -> Iterator[tuple[str, Call]]:
        """The calls of the spec itself: entrypoint, exit handler and hooks, each with its field's name."""
        arguments = as_mapping(self.body.get("arguments"))
        roles: tuple[tuple[str, Literal["entrypoint", "exit"]], ...] = (
            ("entrypoint", "entrypoint"),
            ("onExit", "exit"),
        )
        for name, role in roles:
            if as_text(self.body.get(name)):
                yield name, Call({"template": self.body[name]}, (*self.path, name), role, given=arguments)
        whole = Call({"hooks": self.body.get("hooks"), "arguments": arguments}, self.path, "hook")
        yield from whole.hooks()

    @property
    def has_exit_handler(self) -> bool:
        """Whether an exit handler or exit hook runs at its end, even if another document defines it."""
        if isinstance(self.referenced, Spec) and self.referenced.has_exit_handler:
            return True
        return bool(as_text(self.body.get("onExit")) or as_mapping(self.body.get("hooks")).get("exit"))

    def resolve(self, call: Call) -> Resolved:
        """The template that a call refers to."""
        if isinstance(call.body.get("inline"), Mapping):
            return Template(call.body["inline"], (*call.path, "inline"))
        reference = as_mapping(call.body.get("templateRef"))
        if reference:
            home = self.library.find(reference, self.namespace)
            template_name = as_text(reference.get("template"))
            if home is None or has_tag(template_name):
                return UNKNOWN
            return home.by_name.get(template_name)
        template_name = as_text(call.body.get("template"))
        if not template_name or has_tag(template_name):
            return UNKNOWN
        if isinstance(self.referenced, Spec):
            return self.referenced.by_name.get(template_name)
        return UNKNOWN if self.referenced else self.by_name.get(template_name)

    @cached_property
    def served_by_agent(self) -> frozenset[Path]:
        """The templates here that are, or call, one that is served by an agent."""
        callers: dict[Path, list[Path]] = {}
        served_paths = {template.path for template in self.templates if template.type in AGENT_TYPES}
        for template in self.templates:
            for call in template.calls:
                below = self.resolve(call)
                if isinstance(below, Template) and not call.body.get("templateRef"):
                    callers.setdefault(below.path, []).append(template.path)
                elif isinstance(below, Template) and below.type in AGENT_TYPES:
                    served_paths.add(template.path)
        waiting = list(served_paths)
        while waiting:
            above = set(callers.get(waiting.pop(), ())) - served_paths
            served_paths |= above
            waiting += above
        return frozenset(served_paths)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the workflow's own parameters."""
        return frozenset(entry_names(as_mapping(self.body.get("arguments")).get("parameters")))

    def metadata_names(self, field: str) -> frozenset[str] | None:
        """The names of the ``labels`` or ``annotations`` of its workflows; None if a document that was not
        given may add some."""
        if self.referenced is UNKNOWN:
            return None
        # A CronWorkflow's own metadata stays its own.
        cron = self.kind == "CronWorkflow"
        names = set[str](() if cron else as_mapping(as_mapping(self.manifest.get("metadata")).get(field)))
        bodies = [self.body, *([as_mapping(self.manifest.get("spec"))] if cron else [])]
        if isinstance(self.referenced, Spec):
            bodies.append(self.referenced.body)
        for body in bodies:
            added = as_mapping(body.get("workflowMetadata"))
            names.update(as_mapping(added.get(field)), as_mapping(added.get(f"{field}From")))
        return frozenset(names)

    @cached_property
    def output_names(self) -> frozenset[str]:
        """The names of all templates' output parameters."""
        return frozenset(
            name for template in self.templates for name in template.names("outputs", "parameters")
        )

    @cached_property
    def global_outputs(self) -> frozenset[str]:
        """The global names of the templates' outputs."""
        return frozenset(
            as_text(output.get("globalName"))
            for template in self.templates
            for _, output in (*template.outputs("parameters"), *template.outputs("artifacts"))
        )

    @cached_property
    def calls_elsewhere(self) -> bool:
        """Whether a step calls a template of another object."""
        return any(call.body.get("templateRef") for template in self.templates for call in template.calls)


@dataclass(frozen=True)
class Library:
    """The manifests that were given together."""

    manifests: Sequence[Mapping[str, Any]] = ()

    def spec(self, manifest: Mapping[str, Any]) -> Spec | None:
        """A manifest's workflow spec; None for a kind that has none."""
        kind = as_text(manifest.get("kind"))
        if not as_text(manifest.get("apiVersion")).startswith(f"{GROUP}/") or kind not in SPEC_PATHS:
            return None
        return Spec(manifest, kind, SPEC_PATHS[kind], self)

    @cached_property
    def _homes(self) -> Mapping[tuple[bool, str], list[Spec]]:
        homes: dict[tuple[bool, str], list[Spec]] = {}
        for manifest in self.manifests:
            spec = self.spec(manifest)
            if spec and spec.is_library:
                name = as_text(as_mapping(manifest.get("metadata")).get("name"))
                homes.setdefault((spec.kind == "ClusterWorkflowTemplate", name), []).append(spec)
        return homes

    def find(self, reference: Mapping[str, Any], namespace: str) -> Spec | None:
        """The workflow template that a reference names, if it was given and is unambiguous."""
        cluster = reference.get("clusterScope") is True
        specs = self._homes.get((cluster, as_text(reference.get("name"))), [])
        if not cluster:
            specs = [spec for spec in specs if not namespace or spec.namespace in ("", namespace)]
        return specs[0] if len(specs) == 1 else None


Check = Callable[[Spec], Iterator[Finding]]
"""A function that checks one or more rules."""
