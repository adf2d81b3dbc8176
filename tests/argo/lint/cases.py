"""For every rule a manifest that breaks it and nothing else, and its good twin: the smallest change that
makes it right."""

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One rule, broken and kept.

    Attributes:
        rule: its name.
        broken: YAML in which the linter finds this rule broken and nothing else.
        good: YAML in which it finds nothing.
        note: which of a rule's several forms this is.
    """

    rule: str
    broken: str
    good: str
    note: str = ""

    @property
    def id(self) -> str:
        """As pytest names it."""
        return f"{self.rule}-{self.note}" if self.note else self.rule


HEAD = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: train-, namespace: ml}\n"
PRINT = "container: {image: busybox, command: [echo, hello]}"


def workflow(spec: str, head: str = HEAD) -> str:
    """A Workflow with this spec."""
    return f"{head}spec:\n{textwrap.indent(textwrap.dedent(spec).strip(), '  ')}\n"


def templates(*bodies: str, spec: str = "") -> str:
    """A Workflow whose first template is its entrypoint. Each body: a template's YAML, without its list's
    dash."""
    blocks = [textwrap.dedent(body).strip().replace("\n", "\n    ") for body in bodies]
    listed = "".join(f"\n  - {block}" for block in blocks)
    first = blocks[0].splitlines()[0].removeprefix("name: ").strip()
    return workflow(f"entrypoint: {first}\n{textwrap.dedent(spec).strip()}\ntemplates:{listed}\n")


def template(body: str, spec: str = "") -> str:
    """A Workflow of one template, called main."""
    return templates(f"name: main\n{textwrap.dedent(body).strip()}", spec=spec)


def steps(step: str, *others: str) -> str:
    """A Workflow whose entrypoint has one step, beside other templates."""
    block = textwrap.dedent(step).strip().replace("\n", "\n    ")
    return templates(f"name: main\nsteps:\n- - {block}", *others)


def dag(*tasks: str, target: str = "", others: tuple[str, ...] = ()) -> str:
    """A Workflow whose entrypoint is a dag of tasks, each YAML of a flow map's inside."""
    listed = "".join(f"\n  - {{{task}, template: print}}" for task in tasks)
    goal = f"\n  target: {target}" if target else ""
    return templates(f"name: main\ndag:{goal}\n  tasks:{listed}", f"name: print\n{PRINT}", *others)


def resource(fields: str, manifest: str = "", rest: str = "", spec: str = "") -> str:
    """A Workflow of one resource template."""
    lines = f"resource:\n{textwrap.indent(textwrap.dedent(fields).strip(), '  ')}"
    if manifest:
        lines += "\n  manifest: |\n" + textwrap.indent(textwrap.dedent(manifest).strip(), "    ")
    return template(f"{textwrap.dedent(rest).strip()}\n{lines}" if rest else lines, spec=spec)


def cron(spec: str) -> str:
    """A CronWorkflow that prints."""
    inner = f"workflowSpec:\n  entrypoint: main\n  templates:\n  - name: main\n    {PRINT}\n"
    return workflow(textwrap.dedent(spec).strip() + "\n" + inner, HEAD.replace("Workflow", "CronWorkflow"))


def plugin(body: str, rest: str = "timeout: 24h", spec: str = "") -> str:
    """A Workflow of one template for our agent."""
    block = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return template(f"{textwrap.dedent(rest).strip()}\nplugin:\n  edl:\n{block}".strip(), spec=spec)


def changed_by_reference(*before: str, phases: str = "") -> str:
    """A Workflow that runs these templates of edl-stages in turn for one job, and then scales it."""
    stages = "templateRef: {{name: edl-stages, template: {}}}"
    given = ["{name: name, value: digits}", *([f"{{name: phases, value: {phases}}}"] if phases else [])]
    tasks = [
        f"- {{name: {name}, {stages.format(name)}, arguments: {{parameters: [{', '.join(given)}]}}"
        + (f", dependencies: [{before[index - 1]}]}}" if index else "}")
        for index, name in enumerate(before)
    ]
    job = f"{{{{tasks.{before[0]}.outputs.parameters.name}}}}" if len(before) == 1 else "digits"
    tasks.append(
        f"- {{name: scale, {stages.format('scale')}, dependencies: [{before[-1]}], "
        f"arguments: {{parameters: [{{name: job, value: '{job}'}}]}}}}"
    )
    listed = "".join(f"\n    {task}" for task in tasks)
    return templates(f"name: main\ndag:\n  tasks:{listed}".replace("\n    -", "\n  -"))


def changed_by_agent(stage: str, task: str) -> str:
    """A Workflow whose first step is a task of our agent about a job, and whose second scales the job."""
    manifest = "{apiVersion: elastic.iml.github.io/v1alpha1, kind: ElasticJob, metadata: {name: digits}}"
    first = f"stage: {stage}\nrequest: {{manifest: {manifest}}}\n{task}"
    inputs = "inputs: {parameters: [{name: NAME, default: digits}]}\ntimeout: 1h\nplugin:\n  edl:\n"
    second = "stage: scale\nrequest: {job: digits, replicas: {worker: {replicas: 2}}}"
    return templates(
        "name: main\nsteps:\n- - {name: a, template: first}\n- - {name: b, template: second}",
        f"name: first\n{inputs.replace('NAME', 'name')}{textwrap.indent(first, '    ')}",
        f"name: second\n{inputs.replace('NAME', 'job')}{textwrap.indent(second, '    ')}",
    )


def patched(phase: str) -> str:
    """A Workflow that reads a job until it has a phase, and then suspends it, without our templates."""
    job = "apiVersion: elastic.iml.github.io/v1alpha1, kind: ElasticJob, metadata: {name: digits}"
    get = f"action: get, successCondition: status.phase == {phase}, manifest: '{{{job}}}'"
    patch = f"action: patch, mergeStrategy: merge, manifest: '{{{job}, spec: {{suspend: true}}}}'"
    return templates(
        "name: main\nsteps:\n- - {name: a, template: get}\n- - {name: b, template: patch}",
        f"name: get\nresource: {{{get}}}",
        f"name: patch\nresource: {{{patch}}}",
    )


PRINTER = f"name: print\n{PRINT}"
SHOW = f"name: show\ninputs: {{parameters: [{{name: text}}]}}\n{PRINT}"
JOB = """
    apiVersion: batch/v1
    kind: Job
    metadata: {name: one}
"""
WAIT = "stage: wait\nrequest: {name: mnist}"
ELASTIC_JOB = """
    apiVersion: elastic.iml.github.io/v1alpha1
    kind: ElasticJob
    metadata: {{name: "mnist-{{{{workflow.uid}}}}"}}
    spec:
      distributionStrategy: ParameterServerStrategy
      replicaSpecs:
        worker:
          replicas: {replicas}
          template:
            spec:
              containers:
              - {{name: main, image: train:1}}
"""
OWNED = "action: create\nsetOwnerReference: true"
INPUT = "inputs: {parameters: [{name: workers, value: '2'}]}"
REPLICAS = "{{inputs.parameters.workers}}"
