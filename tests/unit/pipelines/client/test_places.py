"""What is said of the embedded cluster that a training starts or finds."""

from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.local import daemon
from edl_workflows.pipelines.client import places
from edl_workflows.pipelines.client.places import Place, open_place
from edl_workflows.runtime.kube.connect import Cluster


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an embedded cluster, whose process is played."""
    folder = tmp_path / "my state"
    monkeypatch.setenv(daemon.FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(Cluster, "from_kubeconfig", lambda _path: cluster)
    monkeypatch.setattr(daemon, "down", lambda *_, **__: True)
    monkeypatch.setattr(places, "_unfinished_jobs", lambda _: [])
    return folder


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, *, runs: bool) -> list[str]:
    """Open and close a place; what was said.

    Args:
        monkeypatch: the test's.
        folder: the cluster's.
        runs: whether the cluster runs before.
    """
    found = daemon.Daemon(pid=1, url="https://x", kubeconfig=folder / "kubeconfig", controller=True)
    monkeypatch.setattr(daemon, "find", lambda _: found if runs else None)
    monkeypatch.setattr(daemon, "up", lambda _: (found, not runs))
    said: list[str] = []
    place = open_place("local", said.append)
    monkeypatch.setattr(daemon, "find", lambda _: found)
    place.close()
    return said


def test_a_cluster_that_is_started_says_how_to_reach_it_and_what_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start stands the command for a second terminal; at the end that the cluster is being
    stopped, which may take seconds, then that it is, and where its state is."""
    begin, reach, stopping, end = play(monkeypatch, folder, runs=False)

    assert begin == "starting the embedded cluster"
    assert f"export KUBECONFIG='{folder}/kubeconfig'" in reach
    assert stopping == "stopping the embedded cluster"
    assert end.startswith("the embedded cluster is stopped; ")
    assert str(folder) in end
    assert "edl local up" in end
    assert "edl local down --delete" in end


def test_a_cluster_that_ran_before_says_that_it_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that somebody else started keeps running, which the end says with the command that stops
    it."""
    reach, end = play(monkeypatch, folder, runs=True)

    assert "export KUBECONFIG=" in reach
    assert "keeps running" in end
    assert "`edl local down`" in end


def test_unfinished_jobs_keep_the_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started cluster on which a job still runs is not stopped, and is not said to be."""
    monkeypatch.setattr(places, "_unfinished_jobs", lambda _: ["digits"])

    assert "because digits has not ended" in play(monkeypatch, folder, runs=False)[-1]


def test_a_started_cluster_that_can_not_be_reached_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run leaves no cluster behind, even if the cluster's API could not be reached, as through a
    wrong proxy."""

    def fail(_cluster: Cluster) -> list[str]:
        raise UnavailableError("can't connect")

    monkeypatch.setattr(places, "_unfinished_jobs", fail)

    assert "the embedded cluster is stopped" in play(monkeypatch, folder, runs=False)[-1]


@pytest.mark.parametrize("runs", [True, False])
def test_a_cluster_without_a_client(folder: Path, monkeypatch: pytest.MonkeyPatch, *, runs: bool) -> None:
    """A cluster that was started for a run is stopped if no client can be made for it; one that ran before
    stays."""

    def fail(_path: Path) -> Cluster:
        raise InvalidError("can't use the proxy")

    monkeypatch.setattr(Cluster, "from_kubeconfig", fail)
    stopped: list[Path] = []
    monkeypatch.setattr(daemon, "down", lambda folder, **_: stopped.append(folder))

    with pytest.raises(InvalidError, match="proxy"):
        play(monkeypatch, folder, runs=runs)

    assert stopped == ([] if runs else [folder])


def test_another_cluster_says_nothing(cluster: Cluster) -> None:
    """Of a cluster that the user named nothing is said."""
    said: list[str] = []
    Place(cluster, notify=said.append).close()

    assert not said
