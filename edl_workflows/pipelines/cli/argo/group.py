"""``edl argo``: the stages as steps of Argo Workflows."""

import typer

from edl_workflows.pipelines.cli.lazy import Command, lazy_group

COMMANDS = (
    Command("build", "argo.build", "Write the WorkflowTemplates as YAML.", extra="argo"),
    Command("lint", "argo.lint", "Check Argo manifests.", extra="argo"),
    Command("submit", "argo.runs", "Start a workflow from a template."),
    Command("watch", "argo.runs", "Follow a workflow until it has ended."),
    Command("agent", "argo.agent", "Serve the plugin steps of all workflows."),
    Command("executor-plugin", "argo.agent", "Print the plugin for Argo's own agent pods."),
    Command("plugin-server", "argo.agent", "Serve the plugin steps of one agent pod."),
)
"""To add a command, add a row here and a module with a typer application named ``app``."""

app = typer.Typer(
    cls=lazy_group(COMMANDS), help="The stages as steps of Argo Workflows.", no_args_is_help=True
)


@app.callback()
def _argo() -> None:
    """The stages as steps of Argo Workflows."""
