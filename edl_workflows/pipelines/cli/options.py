"""Options that several commands share.

Options that belong together are the fields of a dataclass. A command has a parameter of this type, and
`expand_options` passes the fields to typer::

    @app.command()
    @expand_options
    def get(name: str, *, cluster: ClusterFlags, output: Output = OutputFormat.TABLE) -> None:
        found = client.list_objects(cluster.connect(), ...)
"""

import dataclasses
import functools
import inspect
import logging
import shlex
from collections.abc import Callable, Mapping, MutableMapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from edl_workflows.core.exceptions import InvalidError, NoClusterError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.reported_text import escape_controls

if TYPE_CHECKING:
    from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
    from edl_workflows.runtime.kube.connect import Cluster
    from edl_workflows.runtime.process.leader import Election

CLUSTER_PANEL = "Cluster"


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a dataclass by the dataclass's fields.

    Args:
        command: a typer command. Its dataclass parameters are keyword-only; the fields of each are annotated
            as options.

    Returns:
        The command as typer calls it, with one parameter per option.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group = groups.get(name)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(group)
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
        command(**values)

    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class OutputFormat(StrEnum):
    """The format of a command's output."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class LogFormat(StrEnum):
    """How a long-running process logs."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="Kubeconfig file; default $KUBECONFIG or ~/.kube/config, or in a pod its service account.",
        rich_help_panel=CLUSTER_PANEL,
        show_default=False,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context of the kubeconfig; by default the current one.",
        rich_help_panel=CLUSTER_PANEL,
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace; by default that of the context.",
        rich_help_panel=CLUSTER_PANEL,
        show_default=False,
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]
Logs = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", help="Format of the log on stderr; auto: console on a terminal, otherwise JSON."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]

Kinds = Annotated[
    str,
    typer.Option(
        "--kinds",
        help="Comma-separated kinds to reconcile, such as ElasticJob,ScalePlan,TFJob, or `all`. Other "
        "operators may handle the other kinds.",
        show_default="ElasticJob,ScalePlan",
    ),
]
LeaderElect = Annotated[
    bool,
    typer.Option(
        "--leader-elect/--no-leader-elect",
        help="Wait for a Lease, so that only one of several replicas works.",
    ),
]
LeaderElectNamespace = Annotated[
    str | None,
    typer.Option(
        "--leader-elect-namespace",
        help="Namespace of the Lease; by default that of the context.",
        show_default=False,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        help="Address of /healthz, /readyz and /metrics. In a pod, 0.0.0.0 admits its probes.",
    ),
]
MetricsPort = Annotated[
    int, typer.Option("--metrics-port", min=0, max=65535, help="Port of these endpoints; 0 to disable them.")
]


def kinds_of(text: str) -> tuple[str, ...]:
    """Split the value of `Kinds` into names."""
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def read_template(option: str, path: Path | None) -> dict[str, Any]:
    """Read a partial pod template; {} without a path.

    Raises:
        InvalidError: the file can't be read, or holds no map.
        ManifestError: the template is not valid.
    """
    from edl_workflows.core.exceptions import ManifestError
    from edl_workflows.core.jobs import validation
    from edl_workflows.pipelines.manifests import manifest

    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{option}: can't read {path}: {error}") from error
    template = manifest.parse_values(text, str(path))
    if not isinstance(template, dict):
        raise InvalidError(f"{path}: a pod template must be a map with metadata and spec, not a list")
    if problems := list(validation.template_problems(template, partial=True)):
        raise ManifestError(f"pod template {path}", problems)
    return template


def connect_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, log_retries: bool = False
) -> "Cluster":
    """The cluster that the three options mean.

    Args:
        kubeconfig: value of the option.
        context: value of the option.
        namespace: value of the option.
        log_retries: whether to log retries of API calls. Only long-running processes should.

    Raises:
        InvalidError: there is no cluster, or the kubeconfig is invalid.
    """
    import stamina.instrumentation

    from edl_workflows.runtime.kube.connect import NO_CLUSTER, Cluster

    if not log_retries:
        stamina.instrumentation.set_on_retry_hooks(())
        configure_logs(LogFormat.CONSOLE, verbose=False)  # structlog would print to stdout
    try:
        return Cluster.connect(kubeconfig, context).in_namespace(namespace)
    except NoClusterError:
        if (local_kubeconfig := _find_local_kubeconfig()) is None:
            raise
        line = f"export KUBECONFIG={shlex.quote(str(local_kubeconfig))}"
        raise NoClusterError(f"{NO_CLUSTER}; for the embedded cluster of this machine: {line}") from None


def _find_local_kubeconfig() -> Path | None:
    """The kubeconfig of the embedded cluster, if one runs in its default folder."""
    try:
        from edl_workflows.local import daemon
    except ModuleNotFoundError:  # without the extra "local" there is no such cluster
        return None
    cluster = daemon.find(daemon.default_folder().absolute())
    return cluster.kubeconfig if cluster is not None else None


def configure_logs(
    log_format: LogFormat, *, verbose: bool, whose: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Set up logging: each event is a line on stderr with its fields.

    Args:
        log_format: value of the option.
        verbose: value of the option.
        whose: fields that are added to every line in every thread, such as the job and the pod.
    """
    import sys

    import structlog

    level = logging.DEBUG if verbose else logging.INFO
    as_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not sys.stderr.isatty())
    last: tuple[structlog.typing.Processor, ...] = (structlog.processors.JSONRenderer(),)
    if not as_json:
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        last = (_escape_texts, renderer)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, event: {**event, **whose},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _escape_texts(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in the texts of an event, which may come from objects and pods. Line feeds in
    tracebacks are kept."""
    kept = {"exception": "\n\t"}
    return {
        key: escape_controls(value, keep=kept.get(key, "\t")) if isinstance(value, str) else value
        for key, value in event.items()
    }


@dataclasses.dataclass(frozen=True)
class ClusterFlags:
    """The API server and the namespace that a command uses."""

    kubeconfig: Kubeconfig = None
    context: Context = None
    namespace: Namespace = None

    def connect(self, *, log_retries: bool = False) -> "Cluster":
        """See `connect_cluster`."""
        return connect_cluster(self.kubeconfig, self.context, self.namespace, log_retries=log_retries)


@dataclasses.dataclass(frozen=True)
class NamespacesFlags:
    """The namespaces that a process serves."""

    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Serve all namespaces.")] = (
        False
    )
    jobs_namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--jobs-namespace",
            help="Serve this namespace; may be repeated. By default that of --namespace is served.",
            show_default=False,
        ),
    ] = None
    jobs_namespace_selector: Annotated[
        str,
        typer.Option(
            "--jobs-namespace-selector",
            metavar="SELECTOR",
            help="Serve the namespaces with these labels (`team=vision,env in (test,prod)`), while they have "
            "them. Needs the right to list and watch namespaces and, in all of them, what is served.",
            show_default=False,
        ),
    ] = ""

    def selection(self, cluster: "Cluster") -> "NamespaceSelection":
        """The namespaces.

        Args:
            cluster: the cluster, whose namespace is the default.

        Raises:
            InvalidError: options contradict each other, or one is malformed.
        """
        from edl_workflows.core.exceptions import InvalidError
        from edl_workflows.core.kubernetes.namespaces import NamespaceSelection

        named = tuple(self.jobs_namespace or ())
        if self.all_namespaces and (named or self.jobs_namespace_selector):
            raise InvalidError(
                "--all-namespaces serves every namespace: leave out --jobs-namespace and "
                "--jobs-namespace-selector, or this option"
            )
        if self.all_namespaces or self.jobs_namespace_selector:
            return NamespaceSelection(named, self.jobs_namespace_selector)
        return NamespaceSelection(named or (cluster.namespace,))


@dataclasses.dataclass(frozen=True)
class LogFlags:
    """How a long-running process logs."""

    log_format: Logs = LogFormat.AUTO
    verbose: Verbose = False

    def configure(self, whose: Mapping[str, str] = MappingProxyType({})) -> None:
        """See `configure_logs`."""
        configure_logs(self.log_format, verbose=self.verbose, whose=whose)


@dataclasses.dataclass(frozen=True)
class LeaderFlags:
    """Whether a process waits for a Lease, so that only one of several replicas works."""

    leader_elect: LeaderElect = True
    leader_elect_namespace: LeaderElectNamespace = None

    def election(self, cluster: "Cluster", lease: str | None = None) -> "Election | None":
        """The election in which the process takes part; None if election is disabled.

        Args:
            cluster: the cluster, whose namespace is the default for the Lease.
            lease: name of the Lease; by default that of the controller.
        """
        from edl_workflows.runtime.process.leader import Election

        if not self.leader_elect:
            return None
        where = self.leader_elect_namespace or cluster.namespace
        return Election(where) if lease is None else Election(where, lease)


@dataclasses.dataclass(frozen=True)
class MetricsFlags:
    """Address and port of a process's health and metrics endpoints."""

    metrics_host: MetricsHost = "127.0.0.1"
    metrics_port: MetricsPort = names.CONTROLLER_PORT


def parse_pairs(option: str, text: str) -> dict[str, str]:
    """Parse ``a=b,c=d``, perhaps with blanks around names and values.

    Raises:
        InvalidError: it is malformed.
    """
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    pairs = [(name.strip(), value.strip()) for name, _, value in parts]
    if not all(name and value for name, value in pairs):
        raise InvalidError(f"{option}: {text!r} is not a list of NAME=VALUE, separated by commas")
    return dict(pairs)
