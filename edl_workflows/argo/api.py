"""Argo Workflows' kinds as the API serves them, and the marks that its controller sets. Argo Workflows
4.1."""

from edl_workflows.jobs.api import ApiResource

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
"""Which of several Argo controllers of a cluster owns an object."""
