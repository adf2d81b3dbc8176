"""``edl monitoring``: writes alert rules and dashboards as files."""

from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.output import print_line

app = typer.Typer()

RULES_FILE = "rules.yaml"


@app.command()
def monitoring(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; it is created if it is missing.")],
) -> None:
    """Write the alert rules for Prometheus and the dashboards for Grafana as files, for installations without
    Prometheus' operator. With the operator, `edl install --monitoring` installs them.
    """
    from edl_workflows.pipelines.install.crds import render_yaml
    from edl_workflows.pipelines.install.monitoring.manifests import dashboard_files, rules

    files = {RULES_FILE: render_yaml([rules()]), **dashboard_files()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"{folder}: {error.strerror}: choose a folder that can be written to") from error
    for name in files:
        print_line(str(folder / name))
