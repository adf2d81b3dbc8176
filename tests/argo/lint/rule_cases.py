"""The table of broken and good manifests, in the order of the rules."""

from tests.argo.lint.cases import (
    ELASTIC_JOB,
    INPUT,
    JOB,
    OWNED,
    PRINT,
    PRINTER,
    REPLICAS,
    SHOW,
    WAIT,
    Case,
    cron,
    dag,
    plugin,
    resource,
    steps,
    template,
    templates,
    workflow,
)  # fmt: skip
from tests.argo.lint.handed_cases import CASES as HANDED
from tests.argo.lint.resource_cases import CRONS, PLUGINS, RESOURCES

GOOD = template(PRINT)

DOCUMENTS = (
    Case("unreadable", "a: [", GOOD),
    Case("unreadable", "- a list", GOOD, "list"),
    Case("duplicate-key", template(f"{PRINT}\ntimeout: 5s\ntimeout: 6s"), template(f"{PRINT}\ntimeout: 5s")),
    Case("unknown-kind", GOOD.replace("kind: Workflow", "kind: Worflow"), GOOD),
    Case("unknown-kind", GOOD.replace("v1alpha1", "v1alpha2"), GOOD, "version"),
    Case("unknown-kind", GOOD.replace("apiVersion: argoproj.io/v1alpha1", ""), GOOD, "no-version"),
    Case("no-name", GOOD.replace("generateName: train-, ", ""), GOOD),
    Case("object-name", GOOD.replace("train-", "Train-"), GOOD),
    Case(
        "object-name",
        GOOD.replace("generateName: train-", "name: train-"),
        GOOD.replace("generateName: train-", "name: train"),
        "end",
    ),
    Case("long-name", GOOD.replace("generateName: train-", f"name: {'a' * 64}"), GOOD),
    Case(
        "long-name",
        cron("schedules: ['0 2 * * *']").replace("generateName: train-", f"name: {'a' * 53}"),
        cron("schedules: ['0 2 * * *']").replace("generateName: train-", f"name: {'a' * 52}"),
        "cron",
    ),
)

STRUCTURE = (
    Case("unknown-field", template(f"{PRINT}\ntimeOut: 5s"), template(f"{PRINT}\ntimeout: 5s")),
    Case("unknown-field", GOOD.replace("namespace: ml", "lables: {}"), GOOD, "metadata"),
    Case(
        "removed-field",
        template(f"{PRINT}\nsynchronization: {{mutex: {{name: one}}}}"),
        template(f"{PRINT}\nsynchronization: {{mutexes: [{{name: one}}]}}"),
    ),
    Case(
        "removed-field",
        template(PRINT, "podPriority: 1"),
        template(PRINT, "podPriorityClassName: high"),
        "priority",
    ),
    Case(
        "missing-field",
        template("containerSet: {containers: [{image: busybox}]}"),
        template("containerSet: {containers: [{image: busybox, name: main}]}"),
    ),
    Case(
        "missing-field",
        templates(PRINTER, f"timeout: 5s\n{PRINT}"),
        templates(PRINTER, f"name: a\n{PRINT}"),
        "name",
    ),
    Case(
        "wrong-type",
        template("container: {image: busybox, args: [1]}"),
        template("container: {image: busybox, args: ['1']}"),
    ),
    Case(
        "wrong-type",
        GOOD.replace("namespace: ml", "labels: {a: 1}"),
        GOOD.replace("namespace: ml", "labels: {a: '1'}"),
        "label",
    ),
    Case(
        "unknown-field",
        GOOD.replace(
            "namespace: ml", "ownerReferences: [{apiVersion: v1, kind: Pod, name: a, uid: b, owner: c}]"
        ),
        GOOD.replace("namespace: ml", "ownerReferences: [{apiVersion: v1, kind: Pod, name: a, uid: b}]"),
        "owner",
    ),
    Case(
        "wrong-value",
        template(f"{PRINT}\nretryStrategy: {{retryPolicy: Sometimes}}"),
        template(f"{PRINT}\nretryStrategy: {{retryPolicy: Always}}"),
    ),
    Case("bad-name", dag("name: a.b"), dag("name: a-b")),
    Case(
        "duplicate-entry",
        template(
            "container: {image: busybox, ports: [{containerPort: 80}, {containerPort: 80, protocol: TCP}]}"
        ),
        template(
            "container: {image: busybox, ports: [{containerPort: 80}, {containerPort: 80, protocol: UDP}]}"
        ),
    ),
    Case(
        "quoted-number",
        resource(OWNED, ELASTIC_JOB.format(replicas=f'"{REPLICAS}"'), INPUT),
        resource(OWNED, ELASTIC_JOB.format(replicas=REPLICAS), INPUT),
    ),
)

CEL = (
    Case("two-template-types", template(f"{PRINT}\nsuspend: {{}}"), template("suspend: {}")),
    Case(
        "composite-timeout",
        templates("name: main\ntimeout: 5s\nsteps:\n- - {name: a, template: print}", PRINTER),
        templates("name: main\nsteps:\n- - {name: a, template: print}", f"{PRINTER}\ntimeout: 5s"),
    ),
    Case(
        "composite-deadline",
        templates("name: main\nactiveDeadlineSeconds: 5\nsteps:\n- - {name: a, template: print}", PRINTER),
        templates("name: main\nsteps:\n- - "
            "{name: a, template: print}", f"{PRINTER}\nactiveDeadlineSeconds: 5"),
    ),
    Case(
        "two-artifact-locations",
        template("inputs: "
            f"{{artifacts: [{{name: a, path: /a, raw: {{data: x}}, http: {{url: u}}}}]}}\n{PRINT}"),
        template(f"inputs: {{artifacts: [{{name: a, path: /a, raw: {{data: x}}}}]}}\n{PRINT}"),
    ),
    Case(
        "sequence-bounds",
        steps("name: a\ntemplate: print\nwithSequence: {count: '3', end: '5'}", PRINTER),
        steps("name: a\ntemplate: print\nwithSequence: {start: '3', end: '5'}", PRINTER),
    ),
    Case(
        "depends-and-dependencies",
        dag("name: a", "name: b, depends: a, dependencies: [a]"),
        dag("name: a", "name: b, depends: a"),
    ),
    Case(
        "depends-and-dependencies",
        dag("name: a", "name: b, depends: a", "name: c, dependencies: [a]"),
        dag("name: a", "name: b, depends: a", "name: c, depends: a"),
        "mixed",
    ),
    Case(
        "depends-and-continue-on",
        dag("name: a, continueOn: {failed: true}", "name: b, depends: a"),
        dag("name: a, continueOn: {failed: true}", "name: b, dependencies: [a]"),
    ),
    Case("digit-first-task", dag("name: a", "name: 1b, depends: a"), dag("name: a", "name: 1b")),
    Case(
        "two-manifests",
        resource(
            "action: create\nmanifestFrom: {artifact: {name: m}}",
            JOB,
            "inputs: {artifacts: [{name: m, path: /m, raw: {data: x}}]}",
        ),
        resource(
            "action: create\nmanifestFrom: {artifact: {name: m}}",
            rest="inputs: {artifacts: [{name: m, path: /m, raw: {data: x}}]}",
        ),
    ),
    Case(
        "realtime-resources-duration",
        template(f"{PRINT}\nmetrics: "
            "{prometheus: [{name: a, help: b, gauge: {realtime: true, "
            "value: '{{resourcesDuration.cpu}}'}}]}"),
        template(f"{PRINT}\nmetrics: "
            f"{{prometheus: [{{name: a, help: b, gauge: {{realtime: true, value: '{{{{duration}}}}'}}}}]}}"),
    ),
)  # fmt: skip

TEMPLATES = (
    Case("no-template-type", template("timeout: 5s"), template(f"timeout: 5s\n{PRINT}")),
    Case("no-template-type", template("timeout: 5s", f"templateDefaults: {{{PRINT}}}"), template(PRINT),
    "default"),
    Case("duplicate-name", templates(PRINTER, PRINTER),
    templates(PRINTER, PRINTER.replace("print", "other"))),
    Case(
        "duplicate-name",
        templates("name: main\nsteps:\n- - {name: a, "
            "template: print}\n- - {name: a, template: print}", PRINTER),
        templates("name: main\nsteps:\n- - {name: a, "
            "template: print}\n- - {name: b, template: print}", PRINTER),
        "steps",
    ),
    Case("no-image", template("container: {command: [a]}"), template("container: {command: [a], image: b}")),
    Case(
        "reserved-container",
        template(f"{PRINT}\nsidecars: [{{name: wait, image: a}}]"),
        template(f"{PRINT}\nsidecars: [{{name: proxy, image: a}}]"),
    ),
    Case("leaf-parallelism", template(f"{PRINT}\nparallelism: 2"), template(PRINT, "parallelism: 2")),
    Case(
        "pod-setting",
        template("suspend: {}\nresourceClaims: [{name: gpu, resourceClaimName: one}]"),
        template(f"{PRINT}\nresourceClaims: [{{name: gpu, resourceClaimName: one}}]"),
    ),
)  # fmt: skip

CALLS = (
    Case("no-entrypoint", GOOD.replace("entrypoint: main", "priority: 1"), GOOD),
    Case("undefined-template", GOOD.replace("entrypoint: main", "entrypoint: man"), GOOD),
    Case("undefined-template", steps("name: a\ntemplate: prnt", PRINTER),
    steps("name: a\ntemplate: print", PRINTER), "step"),
    Case("undefined-template", template(PRINT, "onExit: clean"), template(PRINT, "onExit: main"), "exit"),
    Case(
        "undefined-template",
        steps("name: a\ntemplate: print\nhooks: {exit: {template: gone}}", PRINTER),
        steps("name: a\ntemplate: print\nhooks: {exit: {template: print}}", PRINTER),
        "hook",
    ),
    Case(
        "one-target",
        steps("name: a\ntemplate: print\ntemplateRef: {name: other, template: one}", PRINTER),
        steps("name: a\ntemplateRef: {name: other, template: one}", PRINTER),
    ),
    Case("one-target", steps("name: a", PRINTER), steps("name: a\ntemplate: print", PRINTER), "none"),
    Case(
        "missing-argument",
        steps("name: a\ntemplate: show", SHOW),
        steps("name: a\ntemplate: show\narguments: {parameters: [{name: text, value: x}]}", SHOW),
    ),
    Case(
        "missing-argument",
        steps("name: a\ntemplate: show", SHOW.replace("parameters", "artifacts").replace("text",
        "text, path: /t")),
        steps("name: a\ntemplate: show", SHOW.replace("parameters", "artifacts").replace("text",
        "text, path: /t, optional: true")),
        "artifact",
    ),
    Case("missing-argument", templates(SHOW), templates(SHOW, spec="arguments: {parameters: [{name: text, "
        "value: x}]}"), "entrypoint"),
    Case(
        "misspelt-argument",
        steps("name: a\ntemplate: show\narguments: "
            "{parameters: [{name: texts, value: x}]}", SHOW.replace("text}", "text, default: z}")),
        steps("name: a\ntemplate: show\narguments: "
            "{parameters: [{name: text, value: x}]}", SHOW.replace("text}", "text, default: z}")),
    ),
    Case(
        "no-value",
        steps("name: a\ntemplate: show\narguments: {parameters: [{name: text}]}", SHOW),
        steps("name: a\ntemplate: show\narguments: {parameters: [{name: text, value: ''}]}", SHOW),
    ),
    Case(
        "not-in-enum",
        template(PRINT, "arguments: {parameters: [{name: size, value: xl, enum: [s, m]}]}"),
        template(PRINT, "arguments: {parameters: [{name: size, value: m, enum: [s, m]}]}"),
    ),
    Case(
        "one-loop",
        steps("name: a\ntemplate: print\nwithItems: [1]\nwithParam: '[1]'", PRINTER),
        steps("name: a\ntemplate: print\nwithItems: [1]", PRINTER),
    ),
    Case(
        "hook-expression",
        steps("name: a\ntemplate: print\nhooks: {running: {template: print}}", PRINTER),
        steps("name: a\ntemplate: print\nhooks: {running: {template: print, expression: 'steps.a.status == "
            "\"Running\"'}}", PRINTER),
    ),
    Case(
        "step-exit-hook",
        steps("name: a\ntemplate: "
            "print\nhooks: {exit: {template: clean}}", PRINTER, "name: clean\nplugin: {other: {}}"),
        templates(PRINTER, "name: clean\nplugin: {other: {}}", spec="hooks: {exit: {template: clean}}"),
    ),
    Case(
        "step-exit-hook",
        steps("name: a\ntemplate: print\nhooks: {exit: {template: all}}", PRINTER,
              "name: all\nsteps:\n- - {name: b, template: call}", "name: call\nhttp: {url: 'http://a'}"),
        steps("name: a\ntemplate: print\nhooks: {exit: {template: all}}", PRINTER,
              "name: all\nsteps:\n- - {name: b, template: print}", "name: call\nhttp: {url: 'http://a'}"),
        "indirect",
    ),
    Case(
        "reference-and-templates",
        template(PRINT, "workflowTemplateRef: {name: elsewhere}"),
        workflow("entrypoint: main\nworkflowTemplateRef: {name: elsewhere}"),
    ),
)  # fmt: skip

DAGS = (
    Case("unknown-task", dag("name: a", "name: b, depends: c"), dag("name: a", "name: b, depends: a")),
    Case("unknown-task", dag("name: a", "name: b, "
        "dependencies: [c]"), dag("name: a", "name: b, dependencies: [a]"), "list"),
    Case("unknown-task", dag("name: a", target="b"), dag("name: a", target="a"), "target"),
    Case(
        "unknown-task",
        template("containerSet: {containers: [{name: a, image: b, dependencies: [c]}]}"),
        template("containerSet: {containers: [{name: a, image: b, dependencies: [c]}, {name: c, image: d}]}"),
        "container",
    ),
    Case("bad-depends", dag("name: a", "name: b, depends: 'a &&'"), dag("name: a", "name: b, depends: 'a "
        "&& !a.Failed'")),
    Case("bad-depends", dag("name: a", "name: b, depends: '(a'"), dag("name: a", "name: b, "
        "depends: '(a)'"), "parentheses"),
    Case("bad-depends", dag("name: a", "name: b, "
        "depends: 'a and a'"), dag("name: a", "name: b, depends: a||a"), "word"),
    Case("unknown-result", dag("name: a", "name: b, depends: a.Success"), dag("name: a", "name: b, "
        "depends: a.Succeeded")),
    Case(
        "result-of-items",
        dag("name: a", "name: b, depends: a.AnySucceeded"),
        dag("name: a, withItems: [1]", "name: b, depends: a.AnySucceeded"),
    ),
    Case("dependency-cycle", dag("name: a, "
        "depends: b", "name: b, depends: a"), dag("name: a", "name: b, depends: a")),
    Case("dependency-cycle", dag("name: a, dependencies: [a]"), dag("name: a"), "itself"),
    Case(
        "not-awaited",
        dag("name: a", "name: b, arguments: {parameters: [{name: x, value: '{{tasks.a.outputs.result}}'}]}"),
        dag("name: a", "name: b, depends: a, arguments: {parameters: [{name: x, value: "
            "'{{tasks.a.outputs.result}}'}]}"),
    ),
)  # fmt: skip

_PRODUCED = "name: main\nsteps:\n- - {name: a, template: make}\n- - {name: b, template: use}"
_MADE = f"name: make\noutputs: {{parameters: [{{name: b, globalName: a, valueFrom: {{path: /b}}}}]}}\n{PRINT}"
ECHO = "container: {{image: busybox, args: ['{}']}}"
PLACEHOLDERS = (
    Case(
        "unresolved-placeholder",
        template("inputs: "
            f"{{parameters: [{{name: text, value: a}}]}}\n{ECHO.format('{{inputs.parameters.txt}}')}"),
        template("inputs: "
            f"{{parameters: [{{name: text, value: a}}]}}\n{ECHO.format('{{inputs.parameters.text}}')}"),
    ),
    Case(
        "unresolved-placeholder",
        template(ECHO.format("{{workflow.parameters.b}}"), "arguments: {parameters: [{name: a, value: x}]}"),
        template(ECHO.format("{{workflow.parameters.a}}"), "arguments: {parameters: [{name: a, value: x}]}"),
        "workflow",
    ),
    Case("unresolved-placeholder", template(ECHO.format("{{workflow.nam}}")),
    template(ECHO.format("{{workflow.name}}")), "variable"),
    Case("unresolved-placeholder", template(ECHO.format("{{item.a}}")), template(ECHO.format("{{other.a}}")),
    "item"),
    Case(
        "unresolved-placeholder",
        template(ECHO.format("{{=inputs.parameters.a}}")),
        template("inputs: "
            f"{{parameters: [{{name: a, value: b}}]}}\n{ECHO.format('{{=inputs.parameters.a}}')}"),
        "expression",
    ),
    Case(
        "unresolved-placeholder",
        dag("name: a", "name: b, depends: a, when: '{{tasks.a.outputs.parameters.x}} == 1'"),
        dag("name: a", "name: b, depends: a, when: '{{tasks.a.outputs.result}} == 1'"),
        "output",
    ),
    Case("unresolved-placeholder", dag("name: a", target="'{{workflow.parameters.x}}'"),
    dag("name: a", target="a"), "target"),
    Case(
        "unresolved-placeholder",
        templates(_PRODUCED, _MADE.replace("globalName: a, ", ""),
        f"name: use\n{ECHO.format('{{workflow.outputs.parameters.a}}')}"),
        templates(_PRODUCED, _MADE, f"name: use\n{ECHO.format('{{workflow.outputs.parameters.a}}')}"),
        "global",
    ),
    Case(
        "unresolved-placeholder",
        template("inputs: {parameters: [{name: a, value: b}]}\n"
            f"{ECHO.format('{{workflow.labels.{{inputs.parameters.c}}}}')}"),
        template(
            "inputs: {parameters: [{name: a, value: b}]}\n"
            f"{ECHO.format('{{workflow.labels.{{inputs.parameters.a}}}}')}",
            "workflowMetadata: {labels: {b: c}}",
        ),
        "nested",
    ),
    Case("unclosed-placeholder", template(ECHO.format("{{workflow.name}")),
    template(ECHO.format("{{workflow.name}}"))),
    Case(
        "retries-without-strategy",
        template(ECHO.format("{{retries}}")),
        template(f"retryStrategy: {{limit: 3}}\n{ECHO.format('{{retries}}')}"),
    ),
    Case(
        "hyphen-in-expression",
        template(ECHO.format("{{=workflow.parameters.a-b}}"), "arguments: {parameters: [{name: a-b, value: "
            "c}]}"),
        template(ECHO.format("{{=workflow.parameters[``a-b``]}}").replace("``", "''"), "arguments: "
            "{parameters: [{name: a-b, value: c}]}"),
        "workflow",
    ),
    Case(
        "unresolved-placeholder",
        templates(SHOW, spec="arguments: {parameters: [{name: text, value: x}]}\nhooks: {exit: {template: "
            "show, arguments: {parameters: [{name: text, value: '{{workflow.state}}'}]}}}"),
        templates(SHOW, spec="arguments: {parameters: [{name: text, value: x}]}\nhooks: {exit: {template: "
            "show, arguments: {parameters: [{name: text, value: '{{workflow.status}}'}]}}}"),
        "exit-hook",
    ),
    Case(
        "unresolved-placeholder",
        dag("name: a", "name: b, depends: a, when: \"{{=tasks['c'].status == 'x'}}\""),
        dag("name: a", "name: b, depends: a, when: \"{{=tasks['a'].status == 'x'}}\""),
        "task-in-expression",
    ),
    Case(
        "unresolved-placeholder",
        steps("name: a\ntemplate: print\nhooks: {running: {template: print, expression: steps.b.status == "
            "'x'}}", PRINTER),
        steps("name: a\ntemplate: print\nhooks: {running: {template: print, expression: steps.a.status == "
            "'x'}}", PRINTER),
        "hook",
    ),
    Case(
        "hyphen-in-expression",
        template("inputs: "
            f"{{parameters: [{{name: a-b, value: c}}]}}\n{ECHO.format('{{=inputs.parameters.a-b}}')}"),
        template("inputs: {parameters: [{name: a-b, value: c}]}\n"
            + ECHO.format("{{=inputs.parameters[`a-b`]}}").replace("`", "''")),
    ),
)  # fmt: skip

OUTPUTS = (
    Case(
        "output-source",
        template(f"{PRINT}\noutputs: {{parameters: [{{name: a}}]}}"),
        template(f"{PRINT}\noutputs: {{parameters: [{{name: a, valueFrom: {{path: /a}}}}]}}"),
    ),
    Case(
        "output-source",
        plugin(WAIT, "timeout: 24h\noutputs: {parameters: [{name: phase, valueFrom: {default: ''}}]}"),
        plugin(WAIT, "timeout: 24h\noutputs: {parameters: [{name: phase, valueFrom: {supplied: {}, "
            "default: ''}}]}"),
        "supplied",
    ),
    Case(
        "output-source",
        resource("action: get", JOB, "outputs: {parameters: [{name: a, valueFrom: {path: /a}}]}"),
        resource("action: get", JOB, "outputs: {parameters: [{name: a, valueFrom: {jsonPath: '{.a}'}}]}"),
        "resource",
    ),
    Case("bad-duration", template(f"{PRINT}\ntimeout: '30'"), template(f"{PRINT}\ntimeout: 30s")),
    Case("bad-duration", template(f"{PRINT}\nactiveDeadlineSeconds: -1"),
    template(f"{PRINT}\nactiveDeadlineSeconds: 1"), "negative"),
    Case("bad-duration", template("suspend: {duration: 2d}"), template("suspend: {duration: '20'}"), "days"),
    Case(
        "composite-pending-timeout",
        templates("name: main\npendingTimeout: 5s\nsteps:\n- - {name: a, template: print}", PRINTER),
        templates("name: main\nsteps:\n- - {name: a, template: print}", f"{PRINTER}\npendingTimeout: 5s"),
    ),
)  # fmt: skip

CASES = (
    *DOCUMENTS, *STRUCTURE, *CEL, *TEMPLATES, *CALLS, *DAGS, *PLACEHOLDERS, *OUTPUTS, *HANDED, *RESOURCES,
    *PLUGINS, *CRONS,
)  # fmt: skip
