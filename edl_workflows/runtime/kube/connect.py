"""How a `Cluster` is reached: a kubeconfig, the service account of a pod, or a client that somebody else
made.

The `kubernetes` package is imported when a cluster is connected and not before: it takes more than a second.
"""

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from edl_workflows.core.exceptions import InvalidError, NoClusterError
from edl_workflows.runtime.kube import errors, proxies

DEFAULT_NAMESPACE = "default"
_HOME_CONFIG = Path("~/.kube/config")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_CLUSTER = "no cluster to talk to: no --kubeconfig, no $KUBECONFIG, no ~/.kube/config, not in a pod"
"""Beginning of the message of NoClusterError."""
_LOCAL_UP = "it starts the local cluster unless that runs, and prints the line that sets KUBECONFIG"
_READING_KUBECONFIG = threading.Lock()
"""The client writes certificates into files that all threads share, and names a file before it is written."""


@dataclass(frozen=True)
class RequestRecord:
    """One request that was answered or failed.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        plural: the resource's path segment.
        code: HTTP status; 0 where there was no answer.
        seconds: until the answer (a watch: until its first byte).
    """

    verb: str
    plural: str
    code: int
    seconds: float


@dataclass(frozen=True)
class CallPolicy:
    """Retries and time-outs of calls.

    Attributes:
        attempts: how often a call is made at most; see `transport.retry_after` for which failures are
            repeated.
        retry_seconds: after which no further attempt begins. With a back-off from 0.1 s an API server that
            restarts is not noticed, and one that is down is reported while the user still looks.
        read_seconds: to wait for bytes of an answer; a server gives requests up after 60 s by default (504).
    """

    attempts: int = 5
    retry_seconds: float = 20.0
    read_seconds: float = 60.0


Observer = Callable[[RequestRecord], None]
"""Called after each request, from the thread that made it; it must be quick and must not raise."""


def _no_observer(_record: RequestRecord) -> None:
    """The default: requests are not observed."""


class WatchOpener(Protocol):
    """Opens watches otherwise than the `kubernetes` package."""

    def open(self, request: Any) -> Any:
        """Send a `transport.ApiRequest`; the open answer, with those methods of ``urllib3.HTTPResponse`` that
        `transport` calls."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """Handle of one API server with one identity; safe to use from many threads.

    Attributes:
        api_client: a ``kubernetes.client.ApiClient``.
        namespace: what a call without a namespace means.
        key: equal for two handles of the same server and identity; watches are shared by it.
        policy: retries and time-outs.
        observer: called after each request.
        watches: opens watches; None: each has a connection of its own.
    """

    api_client: Any
    namespace: str
    key: str
    policy: CallPolicy = CallPolicy()
    observer: Observer = field(default=_no_observer, repr=False)
    watches: WatchOpener | None = field(default=None, repr=False)

    @classmethod
    def from_kubeconfig(cls, path: str | Path | None = None, context: str | None = None) -> Self:
        """Connect by a kubeconfig.

        Args:
            path: the file; default as kubectl's (``$KUBECONFIG``, ``~/.kube/config``).
            context: default: the file's current one.

        Raises:
            InvalidError: the file is missing or malformed, or has no such context.
        """
        from kubernetes import config

        file = str(path or default_kubeconfig())
        _check_exists(file)
        configuration = _new_configuration()
        reading = f"read the kubeconfig {file}"
        with _READING_KUBECONFIG, errors.mapping_errors(reading), _well_formed(file):
            config.load_kube_config(file, context, client_configuration=configuration, persist_config=False)
            contexts, current = config.list_kube_config_contexts(file)
            chosen = next((c for c in contexts if c["name"] == context), current)
            proxy = proxies.kubeconfig_proxy(read_kubeconfigs(file), chosen["name"])
        details = chosen.get("context") or {}
        identity = f"{configuration.host}|{chosen['name']}|{details.get('user', '')}|{file}"
        return cls(
            _api_client(configuration, proxy),
            details.get("namespace") or DEFAULT_NAMESPACE,
            _digest(identity),
        )

    @classmethod
    def in_cluster(cls) -> Self:
        """Connect as the service account of the pod that this process runs in.

        Raises:
            InvalidError: the process runs in no pod.
        """
        from kubernetes import config

        configuration = _new_configuration()
        with errors.mapping_errors("read the pod's service account"):
            config.load_incluster_config(client_configuration=configuration)
            namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
        return cls(_api_client(configuration), namespace, _digest(f"{configuration.host}|in-cluster"))

    @classmethod
    def from_api_client(
        cls, api_client: Any, namespace: str = DEFAULT_NAMESPACE, key: str | None = None
    ) -> Self:
        """Use an existing client, such as that of Airflow's Kubernetes hook.

        Args:
            api_client: a ``kubernetes.client.ApiClient``; the caller closes it.
            namespace: what a call without a namespace means.
            key: identity for sharing watches, such as ``airflow:<connection id>``; default: watches are not
                shared.
        """
        return cls(api_client, namespace, key or f"client-{id(api_client)}")

    @classmethod
    def connect(cls, path: str | Path | None = None, context: str | None = None) -> Self:
        """Connect as kubectl would: the given kubeconfig, the default one, else the pod's service account.

        Raises:
            NoClusterError: none of them is there; the message names what was tried.
            InvalidError: the kubeconfig is invalid.
        """
        if path is not None or context is not None or _has_default_kubeconfig():
            return cls.from_kubeconfig(path, context)
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return cls.in_cluster()
        raise NoClusterError(f"{NO_CLUSTER}; name a kubeconfig, or run `edl local up`: {_LOCAL_UP}")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self.api_client.configuration.host)

    @property
    def route(self) -> str:
        """The API server's URL, and the proxy on the way to it, for messages."""
        proxy = self.api_client.configuration.proxy
        return f"{self.server} through the proxy {proxy}" if proxy else self.server

    @property
    def direct(self) -> bool:
        """Whether the API server is reached by TLS without a proxy and by its own name."""
        configuration = self.api_client.configuration
        renamed = configuration.tls_server_name or configuration.assert_hostname is not None
        return self.server.startswith("https://") and not configuration.proxy and not renamed

    def with_one_connection(self) -> Self:
        """The same cluster, whose requests wait for each other, so that they need one connection.

        An open watch keeps its connection, so it needs `watches`. Call this before the first request.
        """
        self.api_client.rest_client.pool_manager.connection_pool_kw.update(maxsize=1, block=True)
        return self

    def observed_by(self, observer: Observer) -> Self:
        """The same cluster, with `observer` told of each request."""
        return replace(self, observer=observer)

    def with_policy(self, policy: CallPolicy) -> Self:
        """The same cluster with other retries and time-outs."""
        return replace(self, policy=policy)

    def in_namespace(self, namespace: str | None) -> Self:
        """The same cluster with another default namespace; None or "" changes nothing."""
        return replace(self, namespace=namespace) if namespace else self


@dataclass(frozen=True)
class ClusterSource:
    """A cluster that is connected when it is first needed, in the thread that needs it.

    Attributes:
        key: as `Cluster.key`.
        connect: makes the handle; may block and may raise an EdlError.
    """

    key: str
    connect: Callable[[], Cluster] = field(compare=False)

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """The source of a cluster that is connected already."""
        return cls(cluster.key, lambda: cluster)


def _has_default_kubeconfig() -> bool:
    return bool(os.environ.get("KUBECONFIG")) or _HOME_CONFIG.expanduser().exists()


def _check_exists(file: str) -> None:
    """Raise if none of the files is there; $KUBECONFIG may list several."""
    if not any(Path(path).expanduser().exists() for path in file.split(os.pathsep) if path):
        raise InvalidError(
            f"cannot read the kubeconfig {file}: there is no such file; name another with --kubeconfig or "
            f"$KUBECONFIG, or run `edl local up`: {_LOCAL_UP}"
        )


def default_kubeconfig() -> str:
    """The kubeconfig that kubectl reads by default; $KUBECONFIG may list several files."""
    return os.environ.get("KUBECONFIG") or str(_HOME_CONFIG.expanduser())


def read_kubeconfigs(file: str) -> list[Any]:
    """The contents of the files of a kubeconfig that exist.

    Args:
        file: the path, or several as in $KUBECONFIG.
    """
    import yaml

    paths = [Path(path).expanduser() for path in file.split(os.pathsep) if path]
    return [yaml.safe_load(path.read_bytes()) for path in paths if path.exists()]


@contextmanager
def _well_formed(file: str) -> Iterator[None]:
    """Map the arbitrary exceptions that the client raises for an unreadable or malformed kubeconfig."""
    import yaml

    try:
        yield
    except OSError as error:
        raise InvalidError(
            f"cannot read the kubeconfig {file}: {error}; make it a readable file, or name another with "
            "--kubeconfig or $KUBECONFIG"
        ) from error
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidError(
            f"cannot read the kubeconfig {file}: it is malformed ({type(error).__name__}: {error}); correct "
            "it"
        ) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _new_configuration() -> Any:
    from kubernetes.client import Configuration

    configuration = Configuration()
    # `transport` retries, and knows which calls may be repeated; urllib3 underneath would multiply the
    # attempts.
    configuration.retries = False
    configuration.connection_pool_maxsize = 32
    # A watch can be silent for minutes. Keepalives tell a dead peer from a quiet one within a minute.
    configuration.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *(
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
            if hasattr(socket, name)
        ),
    ]
    return configuration


def _api_client(configuration: Any, proxy: str = "") -> Any:
    from kubernetes.client import ApiClient

    from edl_workflows import __version__

    configuration.proxy = None  # `use_proxy` decides
    client = ApiClient(configuration)
    proxies.use_proxy(client, proxy)
    client.user_agent = f"edl-workflows/{__version__}"
    return client
