"""All processes that export metrics."""

from edl_workflows.core.monitoring.controller import CONTROLLER
from edl_workflows.core.monitoring.master import MASTER
from edl_workflows.core.monitoring.servers import ARGO_AGENT, BRAIN, DI_SERVER

PROCESSES = (CONTROLLER, DI_SERVER, BRAIN, ARGO_AGENT, MASTER)
"""In the order of the reference."""
