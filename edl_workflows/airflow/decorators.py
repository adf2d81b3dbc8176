"""``@task.elastic``: a Python function of a DAG is the training program of an ElasticJob.

The engine's modules are imported only when a task runs, because Airflow parses DAG files again and again.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.operators.cluster import CLUSTER_FIELDS
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.rendered import read_path, rendered_map

FrameworkName = Literal["numpy", "torch", "tensorflow"]
_OPTIONS = (
    "workers",
    "max_workers",
    "servers",
    "image",
    "python",
    "checkpoints",
    "env",
    "requests",
    "limits",
    "template",
)
"""Arguments that say how the program is run, all templated. Each is a field of `ProgramOptions`, where
``requests`` is called ``resources``; that name means something else in Airflow."""
_COUNTS = frozenset({"workers", "max_workers", "servers"})
_MAPS = frozenset({"env", "requests", "limits", "template"})


class ElasticTaskOperator(DecoratedOperator, SubmitElasticJobOperator):
    """The operator of ``@task.elastic``: runs a Python function as the training program of an ElasticJob, and
    waits until the job has succeeded.

    Each worker calls the function. Its source travels to the pods in a ConfigMap, and its arguments travel as
    JSON; nothing is pickled. So the function must import what it uses inside its body, and can't use names of
    its module. A function that uses them is refused before a job is created.

    Returns (XCom) what `SubmitJobOperator` returns and, unless it is None, ``result``: the value that the
    function returned in the worker of rank 0. Each is an XCom of its own, such as ``trained["result"]``.

    Args:
        python_callable: the function.
        workers: initial number of workers.
        max_workers: the most workers that train together; 0: as many as ``workers``.
        servers: number of parameter servers.
        framework: ``numpy``, ``torch`` or ``tensorflow``; by default the one that the function imports.
        image: image of the pods, with this package and the framework. The embedded cluster needs none.
        python: Python interpreter in the pods.
        checkpoints: folder or URI of checkpoints.
        env: further environment variables of the training containers, as strings. Put secrets into
            ``template``, by reference.
        requests: resource requests of a training container, such as ``{"cpu": "1", "memory": "2Gi"}``.
        limits: resource limits likewise, such as ``{"nvidia.com/gpu": "1"}``.
        template: a pod template with volumes, secrets, node selectors and so on, as a map, or as the path of
            a ``.yaml``, ``.yml`` or ``.json`` file relative to the DAG file, or as the `Path` of any file.
            Its first container is the training container.
        kwargs: arguments of `SubmitJobOperator` except ``manifest``.
    """

    custom_operator_name = "@task.elastic"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *_OPTIONS, *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "op_args": "py",
        "op_kwargs": "py",
        "template": "yaml",
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        workers: int | str = 1,
        max_workers: int | str = 0,
        servers: int | str = 0,
        framework: FrameworkName | None = None,
        image: str = "",
        python: str = "python",
        checkpoints: str = "",
        env: Mapping[str, str] | str = "",
        requests: Mapping[str, str] | str = "",
        limits: Mapping[str, str] | str = "",
        template: Mapping[str, Any] | str | PurePath = "",
        **kwargs: Any,
    ) -> None:
        kwargs.pop("multiple_outputs", None)  # each output is an XCom, whatever the function returns
        super().__init__(python_callable=python_callable, manifest={}, **kwargs)
        self.workers = workers
        self.max_workers = max_workers
        self.servers = servers
        self.framework = framework
        self.image = image
        self.python = python
        self.checkpoints = checkpoints
        self.env = env
        self.requests = requests
        self.limits = limits
        self.template = read_path(template)

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request: the job, and the program that is submitted with it.

        Raises:
            InvalidError: the function can't run in the pods, or the options contradict each other.
        """
        from edl_workflows.core.jobs.elastic_job.adapters import Framework
        from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, render_job
        from edl_workflows.core.jobs.elastic_job.separate_copies import CONDITION, find_copies
        from edl_workflows.pipelines.manifests.travelling import function_program

        program = function_program(self.python_callable, self._arguments())
        framework = Framework(self.framework) if self.framework else None
        values = {name: self._option(name) for name in _OPTIONS}
        options = ProgramOptions(framework=framework, resources=values.pop("requests"), **values)
        if warning := find_copies(program, options):
            self.log.warning("%s: %s", CONDITION, warning)
        return {
            "manifest": render_job(program, options),
            "program": program,
            "hint": f"{self.dag_id}-{self.task_id}",
        }

    def _option(self, name: str) -> Any:
        value = getattr(self, name)
        if name in _MAPS:
            return rendered_map(value, name) if value else {}
        if name not in _COUNTS:
            return value
        try:
            return int(value)
        except ValueError:
            raise InvalidError(f"{name}: a whole number is required, this is {str(value)[:80]!r}") from None

    def _arguments(self) -> dict[str, Any]:
        """The function's arguments by name."""
        function = self.python_callable
        try:
            bound = inspect.signature(function).bind(*self.op_args, **self.op_kwargs)
        except TypeError as error:
            raise InvalidError(f"{function.__name__}: {error}") from error
        arguments: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                raise InvalidError(f"{function.__name__}: arguments travel by name, so it can't have *{name}")
            arguments |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return arguments


def elastic_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function the training program of an ElasticJob; Airflow offers it as ``@task.elastic``.

    Args:
        python_callable: the function.
        kwargs: arguments of `ElasticTaskOperator`.
    """
    return task_decorator_factory(python_callable, decorated_operator_class=ElasticTaskOperator, **kwargs)
