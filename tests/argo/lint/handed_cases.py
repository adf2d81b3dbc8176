"""Broken and good manifests about what templates get and hand on; Argo's own validation refuses each of the
broken ones."""

from tests.argo.lint.cases import PRINT, PRINTER, SHOW, Case, cron, steps, template, templates

_PARAMETER = "parameters: [{name: x, valueFrom: {path: /x}}]"
_MAKE = f"name: make\noutputs: {{{_PARAMETER}}}\n{PRINT}"
_PAUSE = "name: pause\nsuspend: {}"
_LABEL = "container: {{image: busybox, args: ['{{{{workflow.{}}}}}']}}"
_POD = "container: {image: busybox, args: ['{{pod.name}}']}"
_READER = f"name: read\ninputs: {{artifacts: [{{name: a, path: /a}}]}}\n{PRINT}"
_SET = "containerSet: {{containers: [{{name: {}, image: busybox}}]}}"


def after(first: str, value: str, *others: str) -> str:
    """A dag whose second task shows a value that may be the first one's."""
    tasks = (
        f"- {{name: a, {first}}}\n  - "
        "{name: b, depends: a, template: show, "
        f"arguments: {{parameters: [{{name: text, value: '{value}'}}]}}}}"
    )
    return templates(f"name: main\ndag:\n  tasks:\n  {tasks}", SHOW, *others)


def given(artifact: str) -> str:
    """A step that passes an artifact."""
    return steps(f"name: a\ntemplate: read\narguments: {{artifacts: [{{name: a, {artifact}}}]}}", _READER)


def labelled(manifest: str, field: str = "labels") -> str:
    """The same with a label or annotation called team."""
    return manifest.replace("namespace: ml", f"namespace: ml, {field}: {{team: red}}")


_NODES = (
    Case(
        "unresolved-placeholder",
        after("template: make", "{{tasks.a.outputs.parameters}}", _MAKE),
        after("template: make, withItems: [1, 2]", "{{tasks.a.outputs.parameters}}", _MAKE),
        "outputs-of-one",
    ),
    Case(
        "unresolved-placeholder",
        after("template: make, withSequence: {count: '2'}", "{{tasks.a.outputs.parameters}}", _MAKE),
        after("template: make, withParam: '[1, 2]'", "{{tasks.a.outputs.parameters}}", _MAKE),
        "outputs-of-a-sequence",
    ),
    Case(
        "unresolved-placeholder",
        after("template: pause", "{{tasks.a.outputs.result}}", _PAUSE),
        after("template: make", "{{tasks.a.outputs.result}}", _MAKE),
        "result-of-suspend",
    ),
    Case(
        "unresolved-placeholder",
        after("template: all", "{{tasks.a.outputs.result}}", "name: all\ndag: {tasks: [{name: c, template: "
            "make}]}", _MAKE),
        after("template: make", "{{tasks.a.outputs.result}}", _MAKE),
        "result-of-dag",
    ),
    Case(
        "unresolved-placeholder",
        after("template: all", "{{tasks.a.outputs.result}}", "name: all\nsteps: "
            "[[{name: c, template: make}]]", _MAKE),
        after("template: make", "{{tasks.a.exitCode}}", _MAKE),
        "result-of-steps",
    ),
    Case(
        "unresolved-placeholder",
        after("template: get", "{{tasks.a.outputs.result}}", "name: get\nresource: {action: get, manifest: "
            "'a: b'}"),
        after("template: get", "{{tasks.a.outputs.result}}", "name: get\nhttp: {url: 'http://a'}"),
        "result-of-resource",
    ),
    Case(
        "unresolved-placeholder",
        after("template: set", "{{tasks.a.outputs.result}}", f"name: set\n{_SET.format('one')}"),
        after("template: set", "{{tasks.a.outputs.result}}", f"name: set\n{_SET.format('main')}"),
        "result-of-a-set",
    ),
    Case(
        "unresolved-placeholder",
        after("template: pause", "{{tasks.a.exitCode}}", _PAUSE),
        after("template: pause", "{{tasks.a.status}} {{tasks.a.id}} {{tasks.a.finishedAt}}", _PAUSE),
        "exit-code-of-suspend",
    ),
    Case(
        "unresolved-placeholder",
        after("template: print", "{{tasks.a.ip}}", PRINTER),
        after("template: print", "{{tasks.a.ip}}", f"daemon: true\n{PRINTER}"),
        "address",
    ),
    Case(
        "unresolved-placeholder",
        after("template: make", "{{tasks.a.output}}", _MAKE),
        after("template: make", "{{tasks.a.outputs.parameters.x}}", _MAKE),
        "field",
    ),
)  # fmt: skip

_PODS = (
    Case(
        "unresolved-placeholder",
        after("template: print", "{{pod.name}}", PRINTER),
        after("template: print", "{{workflow.name}}", PRINTER),
        "pod-of-a-task",
    ),
    Case(
        "unresolved-placeholder",
        template("http: {url: 'http://a/{{pod.name}}'}"),
        template(_POD),
        "pod-of-an-agent",
    ),
    Case(
        "unresolved-placeholder",
        steps(f"name: a\ninline: {{{_POD}}}"),
        steps("name: a\ntemplate: print", f"name: print\n{_POD}"),
        "pod-of-an-inline-template",
    ),
    Case(
        "unresolved-placeholder",
        template(_LABEL.format("labels.team")),
        labelled(template(_LABEL.format("labels.team"))),
        "label",
    ),
    Case(
        "unresolved-placeholder",
        template(_LABEL.format("annotations.team"), "workflowMetadata: {labels: {team: red}}"),
        template(_LABEL.format("annotations.team"), "workflowMetadata: {annotations: {team: red}}"),
        "annotation",
    ),
    Case(
        "unresolved-placeholder",
        template(_LABEL.format("labels.team"), "podMetadata: {labels: {team: red}}"),
        template(
            _LABEL.format("labels.team"),
            "workflowMetadata: {labelsFrom: {team: {expression: workflow.name}}}",
        ),
        "label-by-expression",
    ),
    Case(
        "unresolved-placeholder",
        labelled(cron("schedules: ['0 2 * * *']").replace(PRINT, _LABEL.format("labels.team"))),
        cron("schedules: ['0 2 * * *']\nworkflowMetadata: {labels: {team: red}}").replace(
            PRINT, _LABEL.format("labels.team")
        ),
        "label-of-a-cron-workflow",
    ),
)

_ENDS = (
    Case(
        "half-reference",
        steps("name: a\ntemplateRef: {name: tools}"),
        steps("name: a\ntemplateRef: {name: tools, template: show}"),
    ),
    Case(
        "half-reference",
        steps("name: a\ntemplateRef: {template: show}"),
        steps("name: a\ntemplateRef: {name: tools, template: show}"),
        "name",
    ),
    Case("no-value", given("http: {url: ''}"), given("http: {url: 'http://a/b'}"), "empty-url"),
    Case("no-value", given("s3: {bucket: a, key: ''}"), given("s3: {bucket: a, key: b}"), "empty-key"),
    Case("no-value", given("git: {repo: ''}"), given("raw: {data: ''}"), "empty-repository"),
    Case(
        "no-value",
        templates(_READER, spec="arguments: {artifacts: [{name: a, http: {url: ''}}]}"),
        templates(_READER, spec="arguments: {artifacts: [{name: a, http: {url: 'http://a/b'}}]}"),
        "workflow-artifact",
    ),
    Case(
        "missing-argument",
        templates(_READER.replace("path: /a", "path: /a, http: {url: ''}")),
        templates(_READER.replace("path: /a", "path: /a, http: {url: 'http://a/b'}")),
        "empty-url",
    ),
    Case(
        "artifact-path",
        template(f"inputs: {{artifacts: [{{name: a, raw: {{data: b}}}}]}}\n{PRINT}"),
        template(f"inputs: {{artifacts: [{{name: a, path: /a, raw: {{data: b}}}}]}}\n{PRINT}"),
    ),
    Case(
        "artifact-path",
        template(f"outputs: {{artifacts: [{{name: a}}]}}\n{PRINT}"),
        template(f"outputs: {{artifacts: [{{name: a, path: /a}}]}}\n{PRINT}"),
        "output",
    ),
    Case(
        "no-main-container",
        template(f"outputs: {{{_PARAMETER}}}\n{_SET.format('one')}"),
        template(f"outputs: {{{_PARAMETER}}}\n{_SET.format('main')}"),
    ),
    Case(
        "bad-duration",
        template(f"{PRINT}\nactiveDeadlineSeconds: abc"),
        template(f"{PRINT}\nactiveDeadlineSeconds: '10'"),
        "deadline",
    ),
    Case(
        "bad-duration",
        template(f"{PRINT}\nactiveDeadlineSeconds: 10s"),
        template(f"inputs: {{parameters: [{{name: t, value: '9'}}]}}\n{PRINT}\nactiveDeadlineSeconds: "
            f"'{{{{inputs.parameters.t}}}}'"),
        "deadline-with-unit",
    ),
)  # fmt: skip

CASES = (*_NODES, *_PODS, *_ENDS)
