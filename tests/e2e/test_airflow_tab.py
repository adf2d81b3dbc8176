"""The tab *Elastic job* in a real browser: a real Airflow, the embedded cluster, a training that goes on.

``EDL_SCREENSHOTS=<folder>`` keeps pictures of the pages.
"""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS, Scope
from edl_workflows.testing import ApiServerProcess
from tests import local_cluster
from tests.airflow import support
from tests.airflow.support import eventually
from tests.demo.airflow import Airflow
from tests.unit.airflow.tab.crowded import crowded_plans, crowded_status
from tests.unit.services.brain.browser import CHROMIUM, HOSTILE, Browser

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH"),
]

server = support.server

PROGRAM = """
import sys, time
from pathlib import Path
from edl_workflows.training import connect

end, step = Path(sys.argv[1]), 0
with connect() as job:
    job.wait_until_active()
    for batch in job.batches("numbers", size=64000, batch_size=16, shard_size=64, num_epochs=1):
        step += 1
        job.report(step, {"loss": 2.0 / (1 + step / 40), "accuracy": 1 - 1 / (1 + step / 60)})
        if step % 20 == 0:
            print(f"step {step} loss {2.0 / (1 + step / 40):.3f}", flush=True)
        time.sleep(0 if end.exists() else 0.1)
"""
"""Trains until a file says that it shall hurry."""

DAGS = """
import json
from pathlib import Path
from airflow.sdk import DAG
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator

JOB = json.loads(Path(__file__).with_name("job.json").read_text())

with DAG("training", schedule=None):
    SubmitElasticJobOperator(task_id="train", manifest=JOB, logs="chief")
with DAG("crowded", schedule=None):
    SubmitElasticJobOperator(
        task_id="train",
        manifest=JOB,
        kubernetes_conn_id="crowded",
        wait_for_completion=False,
    )
with DAG("hostile", schedule=None):
    SubmitElasticJobOperator(
        task_id="train",
        manifest=JOB | {"metadata": {"name": "hostile"}},
        kubernetes_conn_id="crowded",
        wait_for_completion=False,
    )
"""
PROPOSAL: dict[str, Any] = {
    "optimizer": "local",
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 2}},
    "reasons": {"worker": "one worker uses 31 % of what the data could feed: a second one pays"},
    "time": "2026-01-01T00:00:00Z",
}


def manifest(folder: Path) -> dict[str, Any]:
    """A job without TensorFlow: the program counts."""
    (folder / "program.py").write_text(PROGRAM)
    agent = ["-m", "edl_workflows", "agent", "run", "--", sys.executable, "-u"]
    container = {
        "name": "main",
        "image": "local",
        "command": [sys.executable, *agent, str(folder / "program.py"), str(folder / "end")],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    role = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "recommender"},
        "spec": {"optimizeMode": "manual", "replicaSpecs": {"worker": role, "chief": role}},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the DAG, the program and the cluster."""
    return tmp_path_factory.mktemp("tab")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """The embedded cluster with its controller."""
    with local_cluster.cluster(folder / "cluster", local_cluster.Settings(controller=True)) as local:
        yield local.client()


def connection(kubeconfig: Path) -> str:
    """An Airflow connection to a cluster."""
    extra = {"kube_config_path": str(kubeconfig), "namespace": "default"}
    return json.dumps({"conn_type": "kubernetes", "extra": extra})


@pytest.fixture(scope="module")
def airflow(folder: Path, cluster: Cluster, server: ApiServerProcess) -> Iterator[Airflow]:
    """A real Airflow with a connection to the cluster, and one to an API server where nobody changes a
    status."""
    (folder / "dags").mkdir()
    (folder / "dags" / "training.py").write_text(DAGS)
    (folder / "dags" / "job.json").write_text(json.dumps(manifest(folder)))
    env = {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": connection(folder / "cluster" / "kubeconfig"),
        "AIRFLOW_CONN_CROWDED": connection(server.kubeconfig),
    }
    with Airflow(folder / "home", folder / "dags", env) as running:
        running.await_dag("training")
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the file."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def keep_picture(browser: Browser, name: str) -> None:
    """Save a picture, if somebody wants it."""
    if kept := os.environ.get("EDL_SCREENSHOTS"):
        browser.screenshot(Path(kept) / f"{name}.png")


def look(browser: Browser, url: str, *, dark: bool = False, height: int = 1500, width: int = 1280) -> None:
    """Open a page of Airflow's in a colour mode, and wait for the tab's document."""
    browser.resize(width, height)
    browser.call("Page.navigate", url=url)
    browser.until("location.origin !== 'null' && document.readyState === 'complete'")
    browser.value(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
    browser.complaints.clear()
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=url)
    browser.until("document.querySelector('.edl[data-ready]')")


def page_of_run(airflow: Airflow, run_id: str, dag_id: str = "training") -> str:
    """The address of a run's page."""
    return f"{airflow.url}/dags/{dag_id}/runs/{quote(run_id, safe='')}"


def click(browser: Browser, label: str) -> None:
    """Press a button of the tab by its text."""
    buttons = "[...document.querySelectorAll('.edl button')]"
    browser.value(f"{buttons}.find((one) => one.innerText === {json.dumps(label)}).click()")


def number_of_steps(browser: Browser) -> int:
    """The step that the page shows."""
    words = browser.text(".edl .progress strong").replace(",", "").split()
    return int(words[1]) if len(words) > 1 else 0


def test_a_training_is_watched_and_its_plan_approved(
    airflow: Airflow, cluster: Cluster, browser: Browser, folder: Path
) -> None:
    """The extra link leads to the tab, and the step, which the job's master gives, advances without a click.
    An approved plan becomes a
    ScalePlan, and the second worker appears. The tab of the run shows the same job until it ends."""
    run_id = airflow.trigger("training", {})
    task = f"/dags/training/dagRuns/{run_id}/taskInstances/train"

    def link() -> str:
        return str(airflow.call("GET", f"{task}/links")["extra_links"].get("Elastic job") or "")

    eventually(link, "the extra link")
    assert link() == f"{page_of_run(airflow, run_id)}/tasks/train/plugin/elastic-job"

    look(browser, link())
    browser.until("document.querySelector('.edl [data-phase=Running] .progress strong')")
    before = number_of_steps(browser)
    eventually(lambda: number_of_steps(browser) > before, "progress on the page")
    browser.until("document.querySelector('.edl header .chip.good')?.innerText === 'live'")
    browser.until("document.querySelector('.edl .figures').innerText.includes('Memory')")
    browser.until("document.querySelectorAll('.edl-chart path.line').length >= 3")
    browser.until("document.querySelector('.edl pre')?.innerText.includes('loss')")
    client.patch_status(cluster, ELASTIC_JOBS, "recommender", {"autoscaling": PROPOSAL}, "default")
    browser.until("document.querySelector('.edl .ask')")
    keep_picture(browser, "live")

    click(browser, "Approve")

    browser.until("document.querySelector('.edl').innerText.includes('approved by')")
    plans = client.list_objects(cluster, Scope(SCALE_PLANS, "default")).items
    assert any("approved by" in plan["spec"].get("reason", "") for plan in plans)
    browser.until("document.querySelector('.edl').innerText.includes('worker 2/2')")
    keep_picture(browser, "approved")
    look(browser, f"{page_of_run(airflow, run_id)}/plugin/elastic-jobs")
    assert browser.texts(".edl h2") == ["ElasticJob default/recommender"]
    assert browser.text(".edl header .end").startswith("train")

    (folder / "end").touch()
    look(browser, link())
    browser.until("document.querySelector('.edl [data-phase=Succeeded]')")
    assert browser.complaints == []


def test_a_long_life_renders_in_both_modes(
    airflow: Airflow, server: ApiServerProcess, browser: Browser
) -> None:
    """The page of a job of 10,000 steps and 200 restarts shows counts, charts and tables, light, dark and
    narrow, without an error and without scrolling sideways."""
    where, now = server.cluster(), datetime.now(UTC)
    run_id = airflow.trigger("crowded", {})
    eventually(lambda: client.find(where, ELASTIC_JOBS, "recommender", "default"), "the job")
    client.patch_status(where, ELASTIC_JOBS, "recommender", crowded_status(now), "default")
    for plan in crowded_plans("recommender", now)[:-1]:
        client.create(where, plan, "default")
        name = plan["metadata"]["name"]
        client.patch_status(where, SCALE_PLANS, name, plan["status"], "default")
    eventually(lambda: airflow.tasks("crowded", run_id)[0]["state"] == "success", "the task's end")

    tab = f"{page_of_run(airflow, run_id, 'crowded')}/tasks/train/plugin/elastic-job"
    for dark in (False, True):
        look(browser, tab, dark=dark, height=2600)
        browser.until("document.querySelectorAll('.edl-chart path.line').length >= 4")
        keep_picture(browser, f"crowded-{'dark' if dark else 'light'}")
        assert "Restarts (200, the newest 20)" in browser.text(".edl")
        assert browser.value(
            "document.querySelector('.edl').scrollWidth <= document.querySelector('.edl').clientWidth"
        )
        ground = browser.value(
            "getComputedStyle(document.querySelector('.edl .panel:not(.ask)')).backgroundColor"
        )
        assert (ground != "rgb(255, 255, 255)") is dark
        assert browser.complaints == []
    look(browser, tab, width=700)
    assert browser.value(
        "document.querySelector('.edl').scrollWidth <= document.querySelector('.edl').clientWidth"
    )
    keep_picture(browser, "crowded-narrow")


def test_hostile_texts_are_texts(airflow: Airflow, server: ApiServerProcess, browser: Browser) -> None:
    """Whatever a program's messages, a reason or a warning contain is shown as text and never executed."""
    where, now = server.cluster(), datetime.now(UTC)
    run_id = airflow.trigger("hostile", {})
    eventually(lambda: client.find(where, ELASTIC_JOBS, "hostile", "default"), "the job")
    restart = {"time": now.isoformat(), "subject": HOSTILE, "cause": "error", "message": HOSTILE}
    status = crowded_status(now) | {
        "message": HOSTILE,
        "warnings": [HOSTILE],
        "restarts": {"counts": {"error": 1}, "recent": [restart]},
        "autoscaling": PROPOSAL | {"reasons": {"worker": HOSTILE}},
    }
    client.patch_status(where, ELASTIC_JOBS, "hostile", status, "default")
    eventually(lambda: airflow.tasks("hostile", run_id)[0]["state"] == "success", "the task's end")

    look(browser, f"{page_of_run(airflow, run_id, 'hostile')}/tasks/train/plugin/elastic-job")
    browser.until("document.querySelectorAll('.edl-chart path.line').length >= 4")

    assert browser.text(".edl").count(HOSTILE) >= 4
    assert browser.value("document.querySelectorAll('.edl img, .edl iframe, .edl script').length") == 0
    assert browser.value("window.hacked") is None
    assert browser.complaints == []
