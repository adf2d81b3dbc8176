"""What the plugin costs the processes that only load it."""

import subprocess
import sys

PROGRAM = """
import sys
from importlib.metadata import entry_points
from airflow.plugins_manager import AirflowPlugin
before = set(sys.modules)
[one] = [one for one in entry_points(group="airflow.plugins") if one.name == "edl_workflows"]
plugin = one.load()
assert issubclass(plugin, AirflowPlugin)
print(*sorted(set(sys.modules) - before - {"edl_workflows"}))
"""


def test_loading_the_plugin_imports_next_to_nothing() -> None:
    """DAG processors and workers load the plugin, too, so it imports the endpoints only at the first
    request."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240)

    assert run.returncode == 0, run.stderr
    loaded = run.stdout.splitlines()[-1].split()
    assert loaded == [
        "edl_workflows.airflow",
        "edl_workflows.airflow.tab",
        "edl_workflows.airflow.tab.address",
        "edl_workflows.airflow.tab.plugin",
    ]
