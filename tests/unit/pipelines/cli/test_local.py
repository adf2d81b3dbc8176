"""What commands say of the embedded cluster of this machine."""

from pathlib import Path

import pytest

from edl_workflows.local import daemon
from edl_workflows.pipelines.cli.root import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder of the embedded cluster; no other cluster is known."""
    folder = tmp_path / "my state"
    monkeypatch.setenv(daemon.FOLDER_VARIABLE, str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def test_a_command_without_a_cluster_names_the_one_that_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While an embedded cluster runs in its default folder, the error has the line that selects it;
    otherwise the command that starts one."""
    assert run(["get"]) == 2
    without = capsys.readouterr().err
    kubeconfig = folder / "kubeconfig"
    found = daemon.Daemon(pid=1, url="https://x", kubeconfig=kubeconfig, controller=True)
    monkeypatch.setattr(daemon, "find", lambda where: found if where == folder else None)
    assert run(["get"]) == 2
    running = capsys.readouterr().err

    assert "no cluster to talk to" in without
    assert "run `edl local up`" in without
    assert "no cluster to talk to" in running
    assert f"export KUBECONFIG='{kubeconfig}'" in running
    assert "edl local up" not in running


@pytest.mark.parametrize(
    ("runs", "exists", "says"),
    [
        pytest.param(True, True, "the embedded cluster is stopped; {} is deleted", id="running"),
        pytest.param(False, True, "no embedded cluster runs; {} is deleted", id="stopped"),
        pytest.param(False, False, "no embedded cluster runs; there is no {} to delete", id="none"),
    ],
)
def test_a_deletion_of_the_state_is_told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runs: bool,
    exists: bool,
    says: str,
) -> None:
    """`edl local down --delete` says what it has deleted, whether or not the cluster ran."""
    monkeypatch.setattr(daemon, "down", lambda *_, **__: runs)
    if exists:
        (folder / "pods").mkdir(parents=True)

    assert run(["local", "down", "--delete"]) == 0

    assert capsys.readouterr().out == f"{says.format(folder)}\n"
    assert not folder.exists()


def test_a_script_that_does_not_exist_is_named_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`edl run` with a wrong name is one short line, and starts nothing."""
    monkeypatch.chdir(folder.parent)

    assert run(["run", "nosuch.py"]) == 2

    assert capsys.readouterr().err == "edl: can't read nosuch.py: No such file or directory\n"
    assert not folder.exists()
