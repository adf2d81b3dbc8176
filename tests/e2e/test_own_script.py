"""`edl run` and the Python client: a script or a function becomes a job, with everything real."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from edl_workflows.local import daemon
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.cluster.bed.wait import until
from tests.docs.read_weights import read_weights

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "dags" / "training" / "own_script.py"
SCALED = SCRIPT.with_name("own_script_workers.py")
COPIES = "each worker trains its own copy of the model, and only the chief's is saved"
GUARD = 240
PLAIN = """
import time
import numpy as np
data = np.loadtxt("data.csv")
weights = np.zeros(2)
for epoch in range(20):
    gradient = weights - data
    weights -= 0.1 * gradient
    for step in range(20):
        print(f"\\repoch {epoch} {'#' * step}", end="", flush=True)
        time.sleep(0.05)
np.save("weights.npy", weights)
print("\\ndone", end="")
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose embedded cluster is the test's own. Ctrl-C reaches the commands even if a shell
    started the tests in the background, where processes ignore it."""
    folder = tmp_path / "state"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield {**os.environ, "EDL_LOCAL_DIR": str(folder), "TMPDIR": str(temporary)}
    signal.signal(signal.SIGINT, before)
    daemon.down(folder, seconds=30)


def edl_run(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "edl_workflows", "run", *arguments]


def runs(environment: dict[str, str]) -> bool:
    return daemon.find(Path(environment["EDL_LOCAL_DIR"])) is not None


def slow_until(file: Path, script: Path) -> Path:
    """Write the tutorial's script so that it trains slowly until a file is there: however late its log is
    read, the training has not ended."""
    pause, text = "time.sleep(PAUSE)", SCRIPT.read_text()
    assert pause in text
    slow = f"time.sleep(PAUSE if __import__('os').path.exists({str(file)!r}) else 0.5)"
    script.write_text(text.replace(pause, slow))
    return script


def test_a_script_is_trained_with_one_command(environment: dict[str, str], tmp_path: Path) -> None:
    """On Ctrl-C the chief saves and the job is cancelled. The same command continues from there and succeeds,
    with the log on stdout. Its cluster is stopped each time."""
    script, hurry = tmp_path / SCRIPT.name, tmp_path / "hurry"
    command = edl_run(str(slow_until(hurry, script)), "--checkpoints", str(tmp_path / "checkpoints"))
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    guard = threading.Timer(GUARD, first.kill)
    guard.start()
    assert first.stdout is not None
    step = next((line for line in first.stdout if re.match(r"step \d+ loss", line)), "")
    first.send_signal(signal.SIGINT)
    first.communicate()
    guard.cancel()
    assert step.startswith("step 50 ")
    assert first.returncode == 130
    assert not runs(environment)

    hurry.touch()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GUARD)
    assert second.returncode == 0, second.stderr
    began = re.search(r"^continue from step (\d+)$", second.stdout, re.MULTILINE)
    assert began is not None, second.stdout
    assert int(began[1]) >= 50
    assert re.search(r"^phase +Succeeded$", second.stdout, re.MULTILINE)
    assert not runs(environment)


def test_two_workers_without_an_adapter(environment: dict[str, str]) -> None:
    """The tutorial's first script, run with two workers against its advice, trains copies of the model. The
    log of the command warns once, and the result has the warning."""
    command = edl_run(str(SCRIPT), "--workers", "2")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"warning: SeparateCopies: {COPIES}")
    assert done.stderr.count(f"warns: {COPIES}") == 1, done.stderr
    assert COPIES in done.stdout


def test_a_plain_script_in_two_workers(environment: dict[str, str], tmp_path: Path) -> None:
    """A script that knows nothing of the job runs in the user's folder, whose files are no modules for the
    agent. Its progress bar gives lines every few seconds, and its last line stays whole. Before the start and
    in log, status and result it is said that the workers train separate copies; with --strict nothing is
    started."""
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "data.csv").write_text("1 2\n")
    (tmp_path / "typing.py").write_text("raise SystemExit('this is no module of Python')\n")
    command = edl_run("plain.py", "--workers", "2", "--name", "plain")
    command[1:1] = ["-P"]
    refused = subprocess.run([*command, "--strict"], env=environment, cwd=tmp_path, capture_output=True)
    assert (refused.returncode, refused.stderr[:20]) == (2, b"edl: SeparateCopies:")
    trained = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    guard = threading.Timer(GUARD, trained.kill)
    guard.start()
    assert trained.stderr is not None
    said = next(iter(trained.stderr))
    assert said.startswith("warning: SeparateCopies: ")
    assert next((line for line in trained.stderr if "plain warns: each worker" in line), "")
    cluster = Cluster.from_kubeconfig(Path(environment["EDL_LOCAL_DIR"]) / "kubeconfig")
    until(lambda: "SeparateCopies" in true_conditions(cluster, "plain"), "the condition is True")
    output, _ = trained.communicate()
    guard.cancel()
    assert trained.returncode == 0, output
    for worker in ("worker-0", "worker-1"):
        lines = re.findall(rf"^{worker} \| (.*)$", output, re.MULTILINE)
        bars = [line for line in lines if re.fullmatch(r"epoch \d+ #*", line)]
        assert 2 <= len(bars) <= 10, output
        assert "done" in lines
        assert any(" WARNING each worker trains its own copy of the model" in line for line in lines)
    assert re.search(r"^warnings +each worker trains its own copy", output, re.MULTILINE)
    assert (tmp_path / "weights.npy").is_file()


def true_conditions(cluster: Cluster, job: str) -> set[str]:
    status = client.get(cluster, ELASTIC_JOBS, job)["status"]
    return {condition["type"] for condition in status["conditions"] if condition["status"] == "True"}


def test_a_script_is_scaled_to_two_workers(environment: dict[str, str], tmp_path: Path) -> None:
    """The tutorial's second script begins with one worker and goes on with two that train one model, without
    a warning. The model is read as the tutorial says."""
    command = edl_run(str(SCALED), "--max-workers", "2", "--checkpoints", str(tmp_path / "checkpoints"))
    trained = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    guard = threading.Timer(2 * GUARD, trained.kill)
    guard.start()
    assert trained.stdout is not None
    said = [trained.stdout.readline()]
    while "step 50, 1 workers" not in said[-1]:
        said.append(trained.stdout.readline())
        assert said[-1], "".join(said)
    job = re.search(r"default/(own-script-workers-\w+)", "".join(said))
    assert job is not None
    scale = [sys.executable, "-m", "edl_workflows", "scale", job[1], "worker=2"]
    config = {"KUBECONFIG": str(Path(environment["EDL_LOCAL_DIR"]) / "kubeconfig")}
    scaled = subprocess.run(scale, env=environment | config, capture_output=True, text=True, timeout=GUARD)
    rest, _ = trained.communicate()
    guard.cancel()
    assert scaled.returncode == 0, scaled.stderr
    assert trained.returncode == 0, rest
    losses = [float(loss) for loss in re.findall(r"step \d+, 2 workers, loss (\S+)", rest)]
    assert losses, rest
    assert losses[-1] < 0.5
    assert "warns:" not in "".join(said) + rest
    saved = re.search(r"^checkpoint +uri (\S+)", rest, re.MULTILINE)
    assert saved is not None, rest
    digits = load_digits()
    assert (np.argmax(digits.data / 16.0 @ read_weights(saved[1]), axis=1) == digits.target).mean() > 0.8


def test_a_script_that_fails(environment: dict[str, str], tmp_path: Path) -> None:
    """The command exits with the code of a failed job, and its output has the script's message. It tells how
    a second terminal reaches the cluster, and in the end that it is stopped. No copy of the script is left
    behind."""
    script = tmp_path / "broken.py"
    script.write_text("import helper\nhelper.fail()\n")
    (tmp_path / "helper.py").write_text("def fail():\n    raise SystemExit('the data is missing')\n")
    done = subprocess.run(
        edl_run(str(script)), env=environment, capture_output=True, text=True, timeout=2 * GUARD
    )
    assert done.returncode == 7, done.stderr
    assert "the data is missing" in done.stdout
    assert f"export KUBECONFIG={environment['EDL_LOCAL_DIR']}/kubeconfig\n" in done.stderr
    assert "the embedded cluster is stopped; " in done.stderr
    assert not list(Path(environment["TMPDIR"]).glob("edl-programs-*/*"))
    assert not runs(environment)


def test_a_function_is_trained_from_python(environment: dict[str, str]) -> None:
    """In the program of the how-to page, each of two workers calls the function with its arguments."""
    program = ROOT / "tests" / "docs" / "from_python.py"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=GUARD
    )
    assert done.returncode == 0, f"{done.stderr} after {time.monotonic() - began:.0f} s"
    lines = [line.partition(" | ") for line in done.stdout.splitlines() if "rank" in line]
    assert {node for node, _, _ in lines} == {"worker-0", "worker-1"}
    assert {said for _, _, said in lines} == {"rank 0 of 2: 2.0", "rank 1 of 2: 2.0"}
    assert done.stdout.splitlines()[-1] == "{'product': 2.0}"
    assert not runs(environment)
