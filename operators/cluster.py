"""The base class of all tasks that connect to a cluster."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from edl_workflows.airflow.hooks.elastic_job import ElasticJobHook

CLUSTER_FIELDS = ("namespace", "kubernetes_conn_id", "config_file", "cluster_context")
"""Template fields of all operators and sensors."""


class ClusterTask(BaseOperator):
    """A task that connects to a cluster with an Airflow connection.

    Args:
        namespace: namespace of the job; by default the manifest's, else the connection's.
        kubernetes_conn_id: Airflow connection of type ``kubernetes``.
        config_file: kubeconfig that replaces the connection's.
        in_cluster: use the service account of the worker's and the triggerer's pod.
        cluster_context: context within the kubeconfig.
        kwargs: arguments of `BaseOperator`.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        config_file: str | None = None,
        in_cluster: bool | None = None,
        cluster_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self.config_file = config_file
        self.in_cluster = in_cluster
        self.cluster_context = cluster_context

    @property
    def connection(self) -> dict[str, Any]:
        """The arguments of `hooks.elastic_job.ConnectionSettings`."""
        return {
            "kubernetes_conn_id": self.kubernetes_conn_id,
            "config_file": self.config_file,
            "in_cluster": self.in_cluster,
            "cluster_context": self.cluster_context,
        }

    @cached_property
    def hook(self) -> "ElasticJobHook":
        """The connection to the cluster."""
        from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings, ElasticJobHook

        return ElasticJobHook(ConnectionSettings(**self.connection))
