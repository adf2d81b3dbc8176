"""A `kube.Cluster` from an Airflow connection of type ``kubernetes``: the provider's own hook resolves it.

It works alike in a worker and in a triggerer: `ElasticJobHook.load` asks Airflow for the connection, and all
later calls go from this process to the cluster. In an event loop, call its methods in a thread.
"""

import hashlib
import json
from typing import Any

import yaml
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes import client, config
from pydantic import BaseModel, ConfigDict

from edl_workflows.airflow.hooks.airflow_versions import AirflowException, AirflowNotFoundException
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube import errors, proxies
from edl_workflows.runtime.kube.connect import (
    DEFAULT_NAMESPACE,
    Cluster,
    ClusterSource,
    default_kubeconfig,
    read_kubeconfigs,
)


class ConnectionSettings(BaseModel):
    """The connection and the settings that an operator overrides. They must contain no secrets, because they
    are stored with the trigger's arguments.

    Attributes:
        kubernetes_conn_id: id of the Airflow connection, whose extra says how to reach the cluster.
        config_file: a kubeconfig on the machine of the worker and of the triggerer, in place of the
            connection's.
        in_cluster: use the service account of the pod that the process runs in.
        cluster_context: context within the kubeconfig.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kubernetes_conn_id: str = KubernetesHook.default_conn_name
    config_file: str | None = None
    in_cluster: bool | None = None
    cluster_context: str | None = None


class ElasticJobHook(KubernetesHook):
    """Reaches the cluster that a connection of type ``kubernetes`` names.

    In addition to the provider's fields, the connection's extra may contain ``edl_dashboard_url``: a template
    such as ``https://dashboard.example/{namespace}/{kind}/{name}`` for the link on the task;
    ``edl_installation``: a name for this Airflow, needed if several Airflows with DAGs of the same names use
    one namespace; ``edl_brain_url`` and ``edl_brain_token``: the Brain whose history the tab shows.

    Args:
        settings: the connection.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        # The client's default configuration is shared by all connections of the process, so each hook has its
        # own.
        configuration = client.Configuration()
        configuration.retries = False  # our own calls are retried where that is safe
        configuration.proxy = None  # `get_conn` decides
        super().__init__(
            conn_id=settings.kubernetes_conn_id,
            config_file=settings.config_file,
            in_cluster=settings.in_cluster,
            cluster_context=settings.cluster_context,
            client_configuration=configuration,
        )
        self._settings = settings

    def load(self) -> None:
        """Ask Airflow for the connection. Everything else of this class then works without Airflow.

        Raises:
            InvalidError: there is no such connection.
        """
        try:
            _ = self.conn_extras
        except AirflowNotFoundException as error:
            raise InvalidError(
                f"Airflow has no connection {self.conn_id!r}; add one of type kubernetes, "
                "or set kubernetes_conn_id to another"
            ) from error

    def get_conn(self) -> Any:
        """A new client, as in the provider's hook. But an in-cluster account is also stored in the client's
        own configuration instead of the default one, and the proxy is the one that kubectl would use."""
        in_cluster = self._coalesce_param(self.in_cluster, self._get_field("in_cluster"))
        if in_cluster and not self._kubeconfig:
            config.load_incluster_config(client_configuration=self.client_configuration)
        api_client = super().get_conn()
        configuration: Any = self.client_configuration
        if api_client.configuration is not configuration:  # in the provider's older releases
            is_unverified = str(self._get_field("disable_verify_ssl")).lower() == "true"
            configuration.verify_ssl = configuration.verify_ssl and not is_unverified
            api_client = client.ApiClient(configuration)
        proxies.use_proxy(api_client, "" if self._is_in_cluster else self._proxy_url())
        return api_client

    def cluster(self) -> Cluster:
        """A new handle of the cluster.

        Raises:
            InvalidError: the connection's settings contradict each other, or lead to no cluster.
        """
        self.load()
        try:
            with errors.mapping_errors(f"connect by the Airflow connection {self.conn_id!r}"):
                api_client = self.get_conn()
        except (AirflowException, InvalidError) as error:
            cause = str(error.__cause__ or error).strip()
            raise InvalidError(
                f"the Airflow connection {self.conn_id!r} leads to no cluster: {cause} "
                f"(kubeconfig: {self._kubeconfig or 'none'}); correct kube_config_path, kube_config or "
                "in_cluster in its extra, or config_file of the operator"
            ) from error
        namespace = self._get_field("namespace") or DEFAULT_NAMESPACE
        return Cluster.from_api_client(api_client, str(namespace), self._key())

    @property
    def _kubeconfig(self) -> str:
        """The path of the kubeconfig, or a note that the connection contains it, for messages."""
        path = self._coalesce_param(self.config_file, self._get_field("kube_config_path"))
        return str(path or ("in the connection" if self._get_field("kube_config") else ""))

    def _proxy_url(self) -> str:
        """The ``proxy-url`` of the kubeconfig, which the client has read before; "" if there is none."""
        context = self._coalesce_param(self.cluster_context, self._get_field("cluster_context"))
        content = self._get_field("kube_config")
        if content:
            document = content if isinstance(content, dict) else yaml.safe_load(content)
            return proxies.kubeconfig_proxy([document], context)
        return proxies.kubeconfig_proxy(read_kubeconfigs(self._kubeconfig or default_kubeconfig()), context)

    def source(self) -> ClusterSource:
        """The cluster for a shared watch, which connects again whenever that is necessary."""
        self.load()
        return ClusterSource(self._key(), self.cluster)

    @property
    def installation(self) -> str:
        """The name that distinguishes this Airflow from others that use the cluster; "" if the connection
        gives none."""
        self.load()
        return str(self.conn_extras.get("edl_installation") or "")

    @property
    def brain(self) -> tuple[str, str]:
        """URL of the Brain whose history the tab shows, and a token for it; "" for none."""
        self.load()
        extra = self.conn_extras
        return str(extra.get("edl_brain_url") or ""), str(extra.get("edl_brain_token") or "")

    def link(self, kind: str, namespace: str, name: str) -> str:
        """URL of the object in the connection's dashboard; "" if the connection names no dashboard or an
        invalid URL."""
        self.load()
        template = str(self.conn_extras.get("edl_dashboard_url") or "")
        try:
            link = template.format(kind=kind.lower(), namespace=namespace, name=name)
        except (LookupError, ValueError, AttributeError) as error:
            # The object has been created already, so the task must not fail because of a link.
            self.log.warning("edl_dashboard_url of the connection %r is no template: %r", self.conn_id, error)
            return ""
        if link and not link.startswith(("https://", "http://")):
            self.log.warning("edl_dashboard_url of the connection %r is no URL: %s", self.conn_id, link)
            return ""
        return link

    def _key(self) -> str:
        # The key depends on the connection's content, not its id: an edited connection, or another team's
        # with the same id, needs a watch of its own.
        text = json.dumps([self._settings.model_dump(), self.conn_extras], sort_keys=True, default=str)
        return f"airflow:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
