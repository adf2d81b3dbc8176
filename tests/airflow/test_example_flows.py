"""The examples of whole flows, with everything real: jobs train the functions of the DAGs on the embedded
cluster, and what is published depends on what they learned."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW
from tests.clients.environments import python_environment
from tests.local_cluster import LocalCluster, Settings
from tests.local_cluster import cluster as local_cluster

pytestmark = [*IN_AIRFLOW, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).resolve().parents[2] / "dags"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One embedded cluster with its controller for all tests here."""
    with local_cluster(tmp_path_factory.mktemp("cluster"), Settings(controller=True)) as found:
        yield found


@pytest.fixture
def example(
    airflow_db: None, embedded: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """Loads an example DAG whose jobs run on the embedded cluster."""
    from airflow.dag_processing.dagbag import DagBag

    extra = {"kube_config_path": str(embedded.kubeconfig), "namespace": "default"}
    text = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)
    monkeypatch.setenv("AIRFLOW_VAR_EDL_PYTHON", sys.executable)
    monkeypatch.setenv("AIRFLOW_VAR_EDL_WORK_DIR", str(tmp_path))
    return lambda name: DagBag(str(FOLDER / f"{name}.py")).dags[name]


def events(asset: str) -> list[dict[str, Any]]:
    """What was published of an asset, oldest first."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(
            select(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.name == asset)
            .order_by(AssetEvent.id)
        )
        return [dict(event.extra) for event in found]


def test_a_night_that_is_worse_is_not_published(example: Callable[[str], Any]) -> None:
    """The first model is published. One that learned from wrong clicks does not pass the gate. One that
    passed it because the held-out clicks were wrong, too, is rolled back: the first one is published
    again."""
    dag = example("example_nightly_recommender")

    good = dags.run(dag)
    kept = dags.run(dag, run_conf={"broken": "training"})
    undone = dags.run(dag, run_conf={"broken": "day"})

    assert [good.state, kept.state, undone.state] == ["success", "success", "success"]
    assert dags.states(good) | {"publish": "success", "roll_back": "skipped"} == dags.states(good)
    assert dags.states(kept) | {"publish": "skipped", "judge_later": "skipped"} == dags.states(kept)
    assert dags.states(undone) | {"publish": "success", "roll_back": "success"} == dags.states(undone)
    first, wrong, again = events("recommender_model")
    assert first["auc"] > 0.75
    assert wrong["model"] != first["model"]
    assert again["model"] == first["model"]


def test_the_better_configuration_is_promoted(example: Callable[[str], Any]) -> None:
    """A better challenger becomes the champion of the next run, in which a worse challenger does not win."""
    dag = example("example_champion_challenger")

    first = dags.run(dag)
    second = dags.run(dag, run_conf={"challenger": {"rate": 0.0001, "epochs": 1}})

    assert [first.state, second.state] == ["success", "success"]
    assert dags.result(first, "promote")["promoted"] == "challenger"
    assert dags.result(second, "promote")["promoted"] == "champion"
    promoted = events("digits_champion")
    assert [event["config"]["rate"] for event in promoted] == [0.5, 0.5]
    assert [Path(event["checkpoint"]).is_dir() for event in promoted] == [True, True]


@pytest.mark.long
def test_a_published_model_is_fine_tuned(
    example: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers fine-tune with PyTorch a model that another training saved. The published checkpoint is a
    new one, and better on the new data than the old model."""
    python = tmp_path / "python"  # the environment of the tests has PyTorch, but not this project
    path = shlex.quote(str(FOLDER.parent))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {python_environment("torch")} "$@"\n')
    python.chmod(0o755)
    base = tmp_path / "base"
    subprocess.run([python, "-c", SAVE_BASE, base], check=True, cwd=FOLDER / "training", timeout=240)
    (checkpoint,) = base.glob("checkpoint-*")
    monkeypatch.setenv("AIRFLOW_VAR_EDL_PYTHON", str(python))

    run = dags.run(example("example_fine_tuning"), run_conf={"base": str(checkpoint)})

    assert run.state == "success"
    published = dags.result(run, "publish")
    assert published["accuracy"] > max(0.7, published["before"])
    assert Path(published["checkpoint"]).is_dir()
    assert published["checkpoint"] != str(checkpoint)
    assert events("scanner_torch_model") == [published]


SAVE_BASE = """
import sys
import torch
from pathlib import Path
from train_digits_torch import build, load
from edl_workflows.training import CheckpointStore, tensors
from edl_workflows.training.frameworks.torch_state import to_saved_state

parts = build()
images, labels, *_ = load()
for _epoch in range(30):
    parts.optimizer.zero_grad()
    for rows in torch.arange(len(labels)).split(64):
        parts.losses(images[rows], labels[rows]).mean().backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
state = {"model": parts.model.state_dict(), "optimizer": parts.optimizer.state_dict(), "more": {}}
CheckpointStore(Path(sys.argv[1])).publish(
    1, lambda folder: tensors.save(folder, to_saved_state(state, 1, {}))
)
"""
"""Trains the base model without a job, in seconds, and saves it as a job would."""
