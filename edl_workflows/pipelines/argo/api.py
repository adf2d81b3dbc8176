"""The kinds of Argo Workflows 4.1 as the API serves them, and the labels that its controller sets."""

from edl_workflows.core.kubernetes.api import ApiResource

GROUP = "argoproj.io"
VERSION = "v1alpha1"

WORKFLOWS = ApiResource(GROUP, VERSION, "workflows", "Workflow")
WORKFLOW_TEMPLATES = ApiResource(GROUP, VERSION, "workflowtemplates", "WorkflowTemplate")
CLUSTER_WORKFLOW_TEMPLATES = ApiResource(
    GROUP, VERSION, "clusterworkflowtemplates", "ClusterWorkflowTemplate", namespaced=False
)
CRON_WORKFLOWS = ApiResource(GROUP, VERSION, "cronworkflows", "CronWorkflow")
WORKFLOW_TASK_SETS = ApiResource(GROUP, VERSION, "workflowtasksets", "WorkflowTaskSet")

COMPLETED_LABEL = "workflows.argoproj.io/completed"
"""Set to ``true`` on a Workflow and its WorkflowTaskSet when it has ended."""
INSTANCE_LABEL = "workflows.argoproj.io/controller-instanceid"
"""Says which of a cluster's Argo controllers owns an object."""
