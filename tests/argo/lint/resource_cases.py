"""Broken and good manifests of steps that create and change objects or call a plugin, and CronWorkflows."""

from tests.argo.lint.cases import (
    ELASTIC_JOB,
    JOB,
    OWNED,
    WAIT,
    Case,
    changed_by_agent,
    changed_by_reference,
    cron,
    patched,
    plugin,
    resource,
    template,
    templates,
)  # fmt: skip

_ENDS = "action: create\nsuccessCondition: {}"
_PATCH = (
    "apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob\nmetadata: {name: mnist}\nspec: "
    "{suspend: true}"
)
_RETRY = "retryStrategy: {limit: 3}"
RESOURCES = (
    Case(
        "failure-without-success",
        resource("action: create\nfailureCondition: status.failed > 3", JOB),
        resource("action: create\nsuccessCondition: "
            "status.succeeded > 0\nfailureCondition: status.failed > 3", JOB),
    ),
    Case("condition-syntax", resource(_ENDS.format("status.phase ~ Done"), JOB),
    resource(_ENDS.format("status.phase = Done"), JOB)),
    Case(
        "condition-syntax",
        resource(_ENDS.format("'status.conditions.#(type==\"Done\").status == True'"), JOB),
        resource(_ENDS.format("status.conditions.0.status == True"), JOB),
        "array",
    ),
    Case(
        "condition-syntax",
        resource(_ENDS.format("status.message = All is well"), JOB),
        resource(_ENDS.format("status.message in (all,well)"), JOB),
        "space",
    ),
    Case("condition-syntax", resource(_ENDS.format("status.a "
        f"= {'a' * 64}"), JOB), resource(_ENDS.format(f"status.a = {'a' * 63}"), JOB), "long"),
    Case("absent-key", resource(_ENDS.format("status.phase != Running"), JOB),
    resource(_ENDS.format("status.phase in (Done)"), JOB)),
    Case("absent-key", resource(_ENDS.format("status.phase "
        "notin (Running,Pending)"), JOB), resource(_ENDS.format("status.phase"), JOB), "notin"),
    Case("never-true", resource(_ENDS.format("a.b = C,a.b = D"), JOB), resource(_ENDS.format("'a.b in "
        "(C,D),a.c = E'"), JOB)),
    Case(
        "failure-list",
        resource(_ENDS.format("a.b = C\nfailureCondition: a.b = D,a.b = E"), JOB),
        resource(_ENDS.format("a.b = C\nfailureCondition: 'a.b in (D,E)'"), JOB),
    ),
    Case("strategic-patch", resource("action: patch", _PATCH), resource("action: "
        "patch\nmergeStrategy: merge", _PATCH)),
    Case("strategic-patch", resource("action: patch", _PATCH), resource("action: patch", JOB), "built-in"),
    Case("no-manifest", resource("action: create"), resource("action: delete\nflags: [pod, one]")),
    Case(
        "no-manifest",
        resource("action: create\nmanifestFrom: {artifact: {name: m}}"),
        resource("action: create\nmanifestFrom: {artifact: {name: m}}", rest="inputs: {artifacts: [{name: "
            "m, path: /m, raw: {data: x}}]}"),
        "artifact",
    ),
    Case("second-job", resource("action: create", JOB.replace("name", "generateName"), _RETRY),
    resource("action: create", JOB.replace("name", "generateName"))),
    Case("same-name-retry", resource("action: create", JOB, _RETRY), resource("action: apply", JOB, _RETRY)),
    Case("same-name-retry", resource("action: create", JOB, _RETRY),
    resource("action: create", JOB.replace("one", '"one-{{retries}}"'), _RETRY), "another"),
    Case("apply-generate-name", resource("action: apply", JOB.replace("name", "generateName")),
    resource("action: apply", JOB)),
    Case(
        "cross-namespace-owner",
        resource(OWNED, JOB.replace("one", "one, namespace: other")),
        resource(OWNED, JOB.replace("one", "one, namespace: ml")),
    ),
    Case(
        "owner-of-artifact",
        resource(f"{OWNED}\nmanifestFrom: {{artifact: {{name: m}}}}", rest="inputs: {artifacts: [{name: m, "
            "path: /m, raw: {data: x}}]}"),
        resource("action: create\nmanifestFrom: {artifact: {name: m}}", rest="inputs: {artifacts: [{name: "
            "m, path: /m, raw: {data: x}}]}"),
    ),
    Case("manifest-yaml", resource("action: create", "a: ["), resource("action: create", JOB)),
    Case("manifest-yaml", resource("action: create", "kind: Job\nmetadata: {name: a}"),
    resource("action: create", JOB), "version"),
    Case(
        "manifest-schema",
        resource(OWNED, ELASTIC_JOB.format(replicas=2).replace("distributionStrategy",
        "distributedStrategy")),
        resource(OWNED, ELASTIC_JOB.format(replicas=2)),
    ),
)  # fmt: skip

_SUBMIT = (
    "stage: submit\nwait: false\nrequest:\n  manifest:\n    kind: ElasticJob\n    metadata: {name: mnist}"
)
_MANY = "name: main\nparallelism: 2\nsteps:\n- - {name: a, template: wait, withItems: [1, 2]}"
_AGENT = "name: wait\ntimeout: 24h\nplugin: {edl: {stage: wait, request: {name: mnist}}}"
PLUGINS = (
    Case("plugin-keys", template("plugin: {}"), template("plugin: {other: {}}")),
    Case("plugin-keys", template("plugin: {one: {}, two: {}}"), template("plugin: {one: {}}"), "two"),
    Case("plugin-body", plugin("stage: wayt\nrequest: {name: mnist}"), plugin(WAIT)),
    Case("plugin-body", plugin("stage: wait\nrequest: {nam: mnist, name: a}"), plugin(WAIT), "field"),
    Case(
        "plugin-body",
        plugin("stage: wait\nrequest: {}"),
        plugin("stage: wait\nrequest: {name: '{{workflow.name}}'}"),
        "missing",
    ),
    Case(
        "plugin-body",
        plugin("stage: wait\nrequest: {name: 5}"),
        plugin("stage: wait\nrequest: {name: '5'}"),
        "type",
    ),
    Case("plugin-body", plugin(f"{WAIT}\nonCancel: explode"), plugin(f"{WAIT}\nonCancel: suspend"), "cancel"),
    Case("plugin-without-timeout", plugin(WAIT, ""), plugin(WAIT)),
    Case(
        "plugin-output",
        plugin(WAIT, "timeout: 24h\noutputs: {parameters: [{name: fase, valueFrom: {supplied: {}}}]}"),
        plugin(WAIT, "timeout: 24h\noutputs: {parameters: [{name: phase, valueFrom: {supplied: {}}}]}"),
    ),
    Case(
        "plugin-parallelism",
        templates(_MANY, _AGENT),
        templates(_MANY, f"{_AGENT}\nsynchronization: {{mutexes: [{{name: one}}]}}"),
    ),
    Case("change-after-success", changed_by_reference("submit"), changed_by_reference("start")),
    Case(
        "change-after-success",
        changed_by_reference("start", "wait"),
        changed_by_reference("start", "wait", phases="Running"),
        "wait",
    ),
    Case(
        "change-after-success",
        changed_by_agent("submit", "wait: true"),
        changed_by_agent("submit", "wait: false\nonCancel: keep"),
        "agent",
    ),
    Case("change-after-success", patched("Succeeded"), patched("Running"), "resource"),
    Case("unowned-job", plugin(_SUBMIT), plugin(_SUBMIT.replace("wait: false", "wait: true"))),
    Case(
        "unowned-job",
        resource("action: create", ELASTIC_JOB.format(replicas=2)),
        resource("action: create", ELASTIC_JOB.format(replicas=2), spec="onExit: main"),
        "resource",
    ),
)

CRONS = (
    Case("cron-schedule", cron("schedules: ['0 25 * * *']"), cron("schedules: ['0 23 * * *']")),
    Case(
        "cron-schedule", cron("schedules: ['0 2 * * 5-1']"), cron("schedules: ['0 2 * * mon-fri']"), "range"
    ),
    Case(
        "cron-timezone",
        cron("schedules: ['@daily']\ntimezone: Europe/Zurick"),
        cron("schedules: ['@daily']\ntimezone: Europe/Zurich"),
    ),
)
