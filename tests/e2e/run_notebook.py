"""Executes a notebook with a real Jupyter kernel, in the environment of `requirements/jupyter.txt`.

``python run_notebook.py NOTEBOOK FOLDER [INTERRUPTED]`` writes to the folder: ``executed.ipynb``;
``notebook.html``, as nbconvert renders it; ``displays.json``, what a browser was sent to show, in order. The
kernel is interrupted when the cell of the index ``INTERRUPTED`` has shown a step.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

SECONDS = 240
"""For each cell."""


class Watched(NotebookClient):
    """A client that notes what is displayed."""

    def note_displays(self, interrupted: int | None) -> None:
        self.displays: list[dict[str, Any]] = []
        self.interrupted = interrupted

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            html = msg["content"]["data"].get("text/html", "")
            shown = {"cell": cell_index, "type": msg["msg_type"], "html": html}
            self.displays.append(shown | {"id": msg["content"]["transient"].get("display_id")})
            if cell_index == self.interrupted and re.search(r">step</th>", html):
                self.interrupted = None
                self.interrupt = asyncio.ensure_future(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


def main(source: str, folder: Path, interrupted: int | None) -> None:
    """Execute, and write what came of it, also if a cell fails."""
    notebook = nbformat.read(source, as_version=4)
    client = Watched(notebook, timeout=SECONDS, kernel_name="python3", allow_errors=interrupted is not None)
    client.note_displays(interrupted)
    try:
        client.execute()
    finally:
        nbformat.write(notebook, folder / "executed.ipynb")
        (folder / "displays.json").write_text(json.dumps(client.displays))
    html, _ = HTMLExporter().from_notebook_node(notebook)
    (folder / "notebook.html").write_text(html)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
