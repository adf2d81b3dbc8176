"""Renders the manifest of an ElasticJob whose program travels with it. Pure.

`edl run` and the client make their jobs here. The user need not choose a distribution strategy: it follows
from what the program imports.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS, FRAMEWORKS, PACKAGES, Adapter, Framework
from edl_workflows.core.jobs.elastic_job.model import KIND, DistributionStrategy
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.manifests import overlay_template
from edl_workflows.core.kubernetes import names

CONTAINER = "main"
DEFAULT_IMAGE = "edl-workflows:latest"
"""Used where the image does not matter: on the embedded cluster."""
WAITING_SECONDS = 10
"""Seconds for which the workers of a collective job wait for another worker, after the last one has joined,
before they begin."""

_LIBRARY = "edl_workflows.training"
_CALLER = "edl_workflows.training.function"
"""Every program that was made from a function imports it."""
_COORDINATED = frozenset({"ClusterCoordinator", "ParameterServerStrategy", "ParameterServerStrategyV2"})
"""TensorFlow's names for parameter servers with one coordinator."""
_SESSIONS = re.compile(r"\b(v1|tf1|edl_workflows)\b")
"""The namespaces in which these names stand for something else: workers with sessions of their own."""
_REPORTS = frozenset({f"{_LIBRARY}.progress", f"{_LIBRARY}.report_result"})
"""Functions for programs that don't use the library otherwise."""


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is run.

    Attributes:
        workers: number of workers at the beginning.
        max_workers: the most workers that train together, in a collective job; 0: as many as at the
            beginning. The global batch has this number of mini-batches.
        servers: number of parameter servers.
        framework: None: the framework that the program imports.
        strategy: None: chosen by the program's imports (`choose_strategy`).
        arguments: command-line arguments of the program.
        python: the interpreter in the pods.
        folder: working directory of the program; "" for that of the image. A template's goes before it.
        image: image of the pods, with this package and the framework.
        checkpoints: folder or URI of checkpoints, which the program finds in the environment; "" for none.
        env: further variables of the training containers.
        resources: requests of each training container by resource, as ``{"cpu": "1", "memory": "2Gi"}``.
        limits: limits likewise, as ``{"nvidia.com/gpu": "1"}``.
        template: a pod template of the user's, with volumes, node selectors or secrets. Its first container
            is the training container, whose image, command, variables and resources are completed here.
        ttl_seconds: how long after its end the job is deleted; None: it stays.
    """

    workers: int = 1
    max_workers: int = 0
    servers: int = 0
    framework: Framework | None = None
    strategy: DistributionStrategy | None = None
    arguments: Sequence[str] = ()
    python: str = "python"
    folder: str = ""
    image: str = ""
    checkpoints: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    ttl_seconds: int | None = None


def render_job(program: TrainingProgram, options: ProgramOptions) -> dict[str, Any]:
    """The manifest of an ElasticJob that runs a program. It has no name and does not contain the program:
    submit it together with the program (`edl_workflows.pipelines.stages.submit.SubmitRequest`).

    Args:
        program: the program.
        options: how to run it.

    Raises:
        InvalidError: the options contradict each other or the program.
    """
    _refuse_coordinator(program)
    strategy = choose_strategy(program, options)
    if options.servers and strategy is not DistributionStrategy.PARAMETER_SERVER:
        served = " or ".join(
            adapter.module
            for adapter in ADAPTERS
            if adapter.served or adapter.strategy is DistributionStrategy.PARAMETER_SERVER
        )
        raise InvalidError(
            f"a job with {strategy} has no parameter servers; leave them out, or use {served} in the program"
        )
    if options.max_workers and options.max_workers < options.workers:
        raise InvalidError(
            f"{options.workers} workers are more than the maximum of {options.max_workers}; raise the maximum"
        )
    template = _template(options)
    roles: dict[str, Any] = {names.WORKER_TYPE: {"replicas": options.workers, "template": template}}
    if options.servers:
        roles[names.PS_TYPE] = {"replicas": options.servers, "template": template}
    spec: dict[str, Any] = {
        "distributionStrategy": str(strategy),
        "optimizeMode": "manual",
        "replicaSpecs": roles,
    }
    if strategy is DistributionStrategy.ALLREDUCE:
        most = {"maxNodes": options.max_workers} if options.max_workers else {}
        spec["rendezvous"] = {**most, "waitingTimeoutSeconds": WAITING_SECONDS}
    if options.ttl_seconds is not None:
        spec["ttlSecondsAfterFinished"] = options.ttl_seconds
    return {"apiVersion": names.API_VERSION, "kind": KIND, "metadata": {}, "spec": spec}


def choose_strategy(program: TrainingProgram, options: ProgramOptions) -> DistributionStrategy:
    """The strategy of a program's job.

    The first that applies: the strategy in `options`; all-reduce if the program imports an adapter for
    collective jobs; parameter servers if there are any, if the program imports an adapter for them, or if it
    uses the library without a framework (its workers share the data); else all-reduce, with which unchanged
    programs find their group in the environment.

    Raises:
        InvalidError: the program imports an adapter that is not in the registry, and none that is.
    """
    if options.strategy is not None:
        return options.strategy
    adapters = imported_adapters(program)
    if options.servers and any(adapter.served for adapter in adapters):
        return DistributionStrategy.PARAMETER_SERVER
    strategies = {adapter.strategy for adapter in adapters}
    if DistributionStrategy.ALLREDUCE in strategies:
        return DistributionStrategy.ALLREDUCE
    if options.servers or DistributionStrategy.PARAMETER_SERVER in strategies:
        return DistributionStrategy.PARAMETER_SERVER
    framework = options.framework or recognize_framework(program)
    used = {module for module in imported_modules(program) if is_within(module, _LIBRARY)}
    only_reports = used - {_LIBRARY} and used - {_LIBRARY} <= _REPORTS
    if framework is Framework.NUMPY and not only_reports and not all(is_within(m, _CALLER) for m in used):
        return DistributionStrategy.PARAMETER_SERVER
    return DistributionStrategy.ALLREDUCE


def recognize_framework(program: TrainingProgram) -> Framework:
    """The framework that a program imports; NumPy if it imports no other."""
    imported = {PACKAGES.get(module.partition(".")[0]) for module in imported_modules(program)}
    imported |= {Framework.NUMPY, *(adapter.framework for adapter in imported_adapters(program))}
    return [framework for framework in Framework if framework in imported][-1]


def imported_adapters(program: TrainingProgram) -> list[Adapter]:
    """The adapters that a program imports.

    Raises:
        InvalidError: it imports an adapter that is not in the registry, and none that is.
    """
    modules = set(imported_modules(program))
    adapters = [
        adapter for adapter in ADAPTERS if any(is_within(module, adapter.module) for module in modules)
    ]
    unregistered = sorted(module for module in modules if module.startswith(f"{FRAMEWORKS}."))
    if unregistered and not adapters:
        registered = ", ".join(adapter.module for adapter in ADAPTERS)
        raise InvalidError(
            f"the program imports {unregistered[0]}, which is not a registered adapter, so the strategy of "
            f"its job is not known; import one of {registered}, or add a row for the module to "
            "edl_workflows/core/jobs/elastic_job/adapters.py"
        )
    return adapters


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imported_modules(program: TrainingProgram) -> Iterator[str]:
    """All modules that a program's files import anywhere. ``from a import b`` counts as ``a`` and ``a.b``."""
    for text in program.files.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _refuse_coordinator(program: TrainingProgram) -> None:
    """Refuse a program whose one coordinator drives servers for a fixed set of tasks: the processes of an
    ElasticJob come and go, so that each finds only the parameter servers and itself in ``TF_CONFIG``."""
    for name, text in program.files.items():
        for node in ast.walk(ast.parse(text)):
            used = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.ImportFrom):
                used = next((f"{node.module}.{a.name}" for a in node.names if a.name in _COORDINATED), "")
            if used.rpartition(".")[2] in _COORDINATED and not _SESSIONS.search(used):
                raise InvalidError(
                    f"{name} uses {used}, whose coordinator needs a cluster that does not change; submit it "
                    "as a TFJob, where it runs as it is, or use edl_workflows.training.frameworks.tensorflow"
                )


def _template(options: ProgramOptions) -> dict[str, Any]:
    """The pod template of workers and parameter servers alike. The agent's log is text, because people read
    it."""
    # With -P, modules in the working directory, which may be the user's, don't replace Python's own.
    agent = [options.python, "-P", "-m", "edl_workflows", "agent"]
    command = [*agent, "run", "--log-format=console", "--", *agent, "program"]
    variables = dict(options.env)
    if options.checkpoints:
        variables[names.ENV_CHECKPOINT_DIR] = options.checkpoints
    amounts = {"requests": dict(options.resources), "limits": dict(options.limits)}
    containers = list((options.template.get("spec") or {}).get("containers") or ())
    given: Mapping[str, Any] = containers[0] if containers else {}
    image = options.image or given.get("image") or DEFAULT_IMAGE
    container: dict[str, Any] = {
        "name": given.get("name") or CONTAINER,
        "image": image,
        "command": command,
        "args": [_literal(argument) for argument in options.arguments],
    }
    if options.folder and not given.get("workingDir"):
        container["workingDir"] = options.folder
    if variables:
        container["env"] = [{"name": key, "value": _literal(value)} for key, value in variables.items()]
    if any(amounts.values()):
        container["resources"] = {key: value for key, value in amounts.items() if value}
    rendered = overlay_template(options.template, {"spec": {"containers": [container]}})
    rendered["spec"]["containers"] += containers[1:]
    return rendered if rendered["metadata"] else {"spec": rendered["spec"]}


def _literal(text: str) -> str:
    """The text, escaped so that Kubernetes does not expand ``$(NAME)`` in it."""
    return text.replace("$", "$$")
