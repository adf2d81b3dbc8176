"""Training in a notebook, with a real Jupyter kernel and the embedded cluster.

``EDL_SCREENSHOTS=<folder>`` keeps the rendered notebook.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.local import daemon
from tests.clients.environments import python_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "train-in-a-notebook.ipynb"
COUNT = """
from edl_workflows.pipelines.client import train

def count():
    import time
    from edl_workflows.training import connect
    with connect() as job:
        for step in range(1_000_000):
            job.report(step, {"loss": 1.0})
            time.sleep(0.05)
"""
STEP = re.compile(r">step</th><td [^>]*>([\d,]+)")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The folder of the embedded cluster."""
    yield tmp_path / "state"
    daemon.down(tmp_path / "state", seconds=30)


def execute(notebook: Path, folder: Path, *interrupted: str) -> dict[str, list[dict[str, Any]]]:
    """Run a notebook with `run_notebook`, and return the outputs of each cell by its source."""
    program = ROOT / "tests" / "e2e" / "run_notebook.py"
    command = [*map(str, (python_environment("jupyter"), program, notebook, folder)), *interrupted]
    environment = os.environ | {
        "EDL_LOCAL_DIR": str(folder / "state"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    cells = json.loads((folder / "executed.ipynb").read_text())["cells"]
    return {"".join(cell["source"]): cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def test_the_notebook_of_the_guide(state: Path, tmp_path: Path) -> None:
    """`watch` shows one output, which is updated in place with growing steps and ends as Succeeded. The
    result and a picture of the history follow; the embedded cluster is stopped at the end."""
    outputs = execute(GUIDE, tmp_path)
    if kept := os.environ.get("EDL_SCREENSHOTS"):
        shutil.copy(tmp_path / "notebook.html", kept)

    (view,) = outputs["training.watch();"]
    final = "".join(view["data"]["text/html"])
    assert re.search(r">phase</th><td [^>]*>Succeeded", final)
    shown = json.loads((tmp_path / "displays.json").read_text())
    views = [one for one in shown if one["id"] == shown[0]["id"]]
    assert [one["type"] for one in views] == ["display_data"] + ["update_display_data"] * (len(views) - 1)
    assert views[-1]["html"] == final
    steps = [int(found[1]) for one in views if (found := STEP.search(one["html"]))]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    assert steps[-1] == 270
    assert "accuracy" in "".join(outputs["training.result()"][0]["data"]["text/plain"])
    assert "image/png" in outputs["training.history()"][0]["data"]
    assert daemon.find(state) is None


def test_an_interrupted_kernel_leaves_the_training(state: Path, tmp_path: Path) -> None:
    """After *Interrupt kernel* the job is still running. After `close` the embedded cluster has stopped."""
    sources = [
        COUNT,
        "training = train(count)",
        "training.watch();",
        "training.status().phase",
        "training.close()",
    ]
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "execution_count": None, "id": f"cell-{index}", "metadata": {}, "outputs": [],
         "source": source}
        for index, source in enumerate(sources)
    ]  # fmt: skip
    notebook = tmp_path / "count.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))

    outputs = execute(notebook, tmp_path, str(sources.index("training.watch();")))

    view, interrupt = outputs["training.watch();"]
    assert STEP.search("".join(view["data"]["text/html"]))
    assert interrupt["ename"] == "KeyboardInterrupt"
    assert "Running" in "".join(outputs["training.status().phase"][0]["data"]["text/plain"])
    assert outputs["training.close()"] == []
    assert daemon.find(state) is None
