"""The web page in a real browser, with a real Brain and a filled store."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows.core.protocol.brain import JobDescription, JobLimits
from edl_workflows.core.scaling.dlrover.samples import JobSample
from edl_workflows.services.brain import auth
from edl_workflows.services.brain.observations import ChangeObservation, JobObservation
from edl_workflows.services.brain.server import BrainOptions, BrainServer
from edl_workflows.services.brain.store.records import JobReport
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain.browser import CHROMIUM, HOSTILE, Browser
from tests.unit.services.brain.filled import fill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH"),
]

TOKEN = "operators-token"
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the file."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a Brain with a store that a function has filled. Returns its URL."""
    with ExitStack() as running:

        def start(filled: Callable[[BrainStore], object] = lambda _store: None, **options: Any) -> str:
            url = f"sqlite:///{tmp_path}/brain.db"
            server = BrainServer(BrainOptions(database_url=url, **{"port": 0} | options))
            filled(server.store)
            return running.enter_context(server.serving())

        yield start


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Brain of a cluster with 1,000 jobs, which no test changes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('full')}/brain.db"
    server = BrainServer(BrainOptions(database_url=url, port=0))
    fill(server.store, time.time(), jobs=1000)
    with server.serving() as found:
        yield found


def again(browser: Browser) -> None:
    """Make the page refresh, as it does every few seconds and when its tab becomes visible."""
    browser.value("document.dispatchEvent(new Event('visibilitychange'))")


def job(name: str, **more: Any) -> JobObservation:
    """A running job."""
    return replace(
        JobObservation(f"uid-{name}", "ElasticJob", "team", name, "Running", created=time.time() - 60), **more
    )


def plan(name: str, **more: Any) -> ChangeObservation:
    """A plan that was carried out."""
    made = ChangeObservation(
        f"plan-{name}", "team", name, "mnist", ("worker: 4 replicas",), "more workers pay", "Succeeded"
    )
    return replace(made, created=time.time() - 30, **more)


def test_the_cluster_now_and_over_time(browser: Browser, full: str) -> None:
    """The page has current figures and curves with units. A resource and a period can be selected."""
    browser.open(full)

    assert browser.texts("#figures dt") == [
        "Nodes ready",
        "CPU requested",
        "Memory requested",
        "GPU requested",
        "Pods running",
    ]
    assert re.search(r"\d+ of \d+ cores", browser.text("#figures"))
    assert "18 of 32 GPUs" in browser.text("#figures")
    assert re.search(
        r"CPU\s*allocatable \d+ cores\s*requested \d+ cores\s*used [\d.]+ cores", browser.text("#cluster")
    )
    assert "cores" in browser.texts("#cluster .chart text")
    assert browser.value("document.querySelectorAll('#cluster path.line').length") >= 3

    browser.value("document.querySelector('#resources [data-key=\"resource memory\"]').click()")
    browser.until("document.querySelector('#cluster figcaption').innerText.includes('GiB')")
    browser.value("document.querySelector('#ranges [data-key=\"seconds 21600\"]').click()")
    browser.until("document.querySelector('#ranges [aria-pressed=true]').innerText === '6 h'")
    assert browser.complaints == []


def test_jobs_are_listed_by_pages(browser: Browser, full: str) -> None:
    """A thousand jobs are split into pages; they can be searched and filtered by phase."""
    browser.open(full)

    assert len(browser.texts("#jobs tbody tr")) == 25
    assert browser.text("#jobs .pages span") == "1–25 of 1,000 jobs"
    first = browser.texts("#jobs .name a")
    browser.value("document.querySelector('#jobs [data-key=\"jobs older\"]').click()")
    browser.until("document.querySelector('#jobs .pages span').innerText.startsWith('26–50 of')")
    assert not set(first) & set(browser.texts("#jobs .name a"))

    browser.value("document.getElementById('search').focus()")
    browser.write("recommend")
    browser.until("document.querySelector('#jobs .pages span').innerText === '1–1 of 1 jobs'")
    assert browser.texts("#jobs .name a") == ["recommend-wide"]
    browser.write("-nobody")
    browser.until("document.getElementById('jobs').innerText.includes('No job is like this')")

    browser.open(full)
    browser.value(
        "{ const it = document.getElementById('phase'); it.value = 'Failed'; it.dispatchEvent(new "
        "Event('change')) }"
    )
    browser.until("document.querySelector('#jobs .pages span').innerText.includes('of 125')")
    assert set(browser.texts("#jobs .phase")) == {"Failed"}


def test_a_row_says_what_a_job_does_and_why(browser: Browser, serve: Serve) -> None:
    """A row shows phase, replicas, speed, step and the reason; unknown values are a dash."""
    fails = {"phase": "Failed", "reason": "WorkerFailed", "message": "worker-1 ended with exit code 1"}
    grows = {"speed": 12.34, "step": 45_678, "reasons": {"worker": "more workers pay"}}

    def filled(store: BrainStore) -> None:
        store.record_jobs([job("fails", **fails, created=1.0), job("grows", **grows)], [], time.time())

    browser.open(serve(filled))

    grown, failed = browser.texts("#jobs tbody tr")
    assert all(text in grown for text in ("grows", "Running", "12.3", "45,678", "more workers pay"))
    assert all(text in failed for text in ("Failed", "worker-1 ended with exit code 1", "–"))


def test_plans_with_their_reasons(browser: Browser, serve: Serve) -> None:
    """The page shows each plan with its changes, reason, phase, and the message of its executor."""
    failed = {"phase": "Failed", "message": "rolled back", "reason": "ps-0 is hot", "finished": time.time()}

    def filled(store: BrainStore) -> None:
        store.record_plans([plan("good"), plan("bad", **failed, changes=("replace ps 0",))], [], time.time())
        store.record_plans([plan("gone", phase="Pending")], [], time.time())
        store.record_plans([], ["plan-gone"], time.time())

    browser.open(serve(filled))

    rows = "\n---\n".join(browser.texts("#plans tbody tr"))
    for text in (
        "worker: 4 replicas",
        "more workers pay",
        "Succeeded",
        "replace ps 0",
        "ps-0 is hot",
        "rolled back",
    ):
        assert text in rows
    assert "Deleted" in rows
    assert re.search(r"after \d+ s", rows)


def test_one_job_by_the_keyboard(browser: Browser, full: str) -> None:
    """A job's link leads to its history: curves with units, and plans as marks, whose values can be read with
    the arrow keys."""
    browser.open(f"{full}/#/jobs/uid-1")

    assert browser.text("#job h1") == "search/ctr-daily"
    assert "ps 2/2" in browser.text("#job .facts")
    browser.until("document.querySelector('#job figcaption strong')")
    assert {"steps/s", "steps", "nodes"} <= set(browser.texts("#job .chart text"))
    assert browser.texts("#job figcaption strong") == ["Speed", "Step", "loss", "reward", "Nodes"]
    assert browser.value("document.querySelectorAll('#job .chart .mark').length") >= 3
    assert "it is replaced by one of 12 cores" in browser.text("#job table")
    browser.value("document.querySelector('.chart').focus()")
    newest = browser.value("document.querySelector('.chart').getAttribute('aria-valuetext')")
    browser.press("Home")
    oldest = browser.value("document.querySelector('.chart').getAttribute('aria-valuetext')")
    assert oldest != newest
    assert re.fullmatch(r"[^ ]*:\d\d: speed [\d.]+ steps/s", oldest)

    browser.value("document.querySelector('#job a').focus()")
    browser.press("Enter")
    browser.until("document.querySelectorAll('#jobs tbody tr').length === 25")
    browser.value("document.querySelector('#jobs a').focus()")
    browser.press("Enter")
    browser.until("!document.getElementById('job').hidden && document.querySelector('#job h1')")
    assert browser.complaints == []


def test_an_empty_store(browser: Browser, serve: Serve) -> None:
    """Each section of the page says that it is empty, and what would fill it."""
    browser.open(serve())

    assert "Start it with --monitor" in browser.text("#cluster")
    assert "No jobs yet" in browser.text("#jobs")
    assert "No plans yet" in browser.text("#plans")
    assert browser.text("#figures") == ""
    assert browser.complaints == []


def test_hostile_texts_are_texts(browser: Browser, serve: Serve) -> None:
    """Whatever a name, a reason or a message contains is shown as text and never executed."""
    hostile = job(
        HOSTILE, uid="hostile", reasons={HOSTILE: HOSTILE}, notes=(HOSTILE,), message=HOSTILE, stage=HOSTILE
    )

    def filled(store: BrainStore) -> None:
        store.record_jobs([hostile], [], time.time())
        bad = plan(HOSTILE, job=HOSTILE, reason=HOSTILE, message=HOSTILE, changes=(HOSTILE,), phase=HOSTILE)
        store.record_plans([bad], [], time.time())

    url = serve(filled)
    for path in ("", "/#/jobs/hostile"):
        browser.open(url + path)
        assert browser.text().count(HOSTILE) >= 5
        assert browser.value("document.querySelectorAll('img, iframe, script:not([src])').length") == 0
        assert browser.value("window.hacked") is None
    assert browser.complaints == []


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324])
def test_extreme_metrics_are_drawn(browser: Browser, serve: Serve, value: float) -> None:
    """A training program may report any finite number: the page draws it with a limited number of elements,
    and without Infinity or NaN."""

    def filled(store: BrainStore) -> None:
        now = time.time()
        store.record_jobs([job("mnist")], [], now)
        limits = JobLimits(cpu=1, memory=1, gpu=0)
        facts = JobDescription(
            uid="uid-mnist", namespace="team", name="mnist", kind="ElasticJob", limits=limits
        )
        samples = [JobSample(now - ago, 200 - ago, 1.0, (), {"loss": value}) for ago in (120, 60, 0)]
        store.record(JobReport(facts, tuple(samples)), now)

    browser.open(f"{serve(filled)}/#/jobs/uid-mnist")

    browser.until("document.querySelector('figcaption strong')")  # charts are drawn once their width is known
    assert "loss" in browser.texts("figcaption strong")
    assert 0 < browser.value("document.querySelectorAll('svg.chart *').length") < 500
    drawn = browser.value("document.querySelector('main').innerHTML")
    assert "Infinity" not in drawn
    assert "NaN" not in drawn


def test_what_gets_into_the_page_can_not_run(browser: Browser, full: str) -> None:
    """The policy blocks inline scripts and event handlers, wherever they come from."""
    browser.open(full)
    browser.value(f"document.body.insertAdjacentHTML('beforeend', {HOSTILE!r})")
    browser.value(
        "{ const it = document.createElement('script'); it.textContent = 'window.hacked = 1'; "
        "document.body.append(it) }"
    )

    browser.until("document.images.length === 1 && document.images[0].complete")
    assert browser.value("window.hacked") is None
    assert any("Content Security Policy" in text for text in browser.complaints)


def test_a_token_is_asked_for(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    """Without a token nothing is shown, and a wrong one is rejected with a message. The right one is kept for
    the browser tab and can be forgotten."""
    row = auth.TokenRow(tenant="operators", namespaces=["*"], sha256=auth.token_digest(TOKEN))
    auth.add_token(tmp_path / "tokens.json", row)
    url = serve(
        lambda store: store.record_jobs([job("mnist")], [], time.time()), tokens_file=tmp_path / "tokens.json"
    )

    browser.open(url)
    assert "A token is needed" in browser.text("#ask")
    assert browser.value(
        "document.getElementById('overview').hidden && document.getElementById('job').hidden"
    )
    assert browser.value("document.activeElement.id") == "token"
    browser.write("wrong")
    browser.press("Enter")
    browser.until("!document.getElementById('refused').hidden")
    assert "does not know this token" in browser.text("#ask")
    browser.write(f" {TOKEN}\u20ac")
    browser.press("Enter")
    browser.until("document.querySelector('#jobs tbody tr')")

    kept = "[sessionStorage.length, localStorage.length, document.cookie, location.href.includes('token')]"
    assert browser.value(kept) == [1, 0, "", False]
    browser.value("document.getElementById('forget').click()")
    browser.until("!document.getElementById('ask').hidden")
    assert browser.value("sessionStorage.length") == 0
    assert browser.texts("#jobs tbody tr") == []


def test_a_brain_that_is_away(browser: Browser, tmp_path: Path) -> None:
    """The last data stay visible with an error; when the Brain is back, the page continues."""
    options = BrainOptions(database_url=f"sqlite:///{tmp_path}/brain.db", port=0)
    server = BrainServer(options)
    server.store.record_jobs([job("mnist")], [], time.time())
    with server.serving() as url:
        browser.open(url)
    again(browser)
    browser.until("!document.getElementById('problem').hidden")
    assert "Brain can't be reached" in browser.text("#problem")
    assert "mnist" in browser.text("#jobs")

    with BrainServer(replace(options, port=int(url.rpartition(":")[2]))).serving():
        again(browser)
        browser.until("document.getElementById('problem').hidden")


@pytest.mark.parametrize("uid", ["nobody", "%", "a%2Fb", "..%2F..%2Fplans"])
def test_a_job_that_nobody_knows(browser: Browser, full: str, uid: str) -> None:
    """The page says so, and links back."""
    browser.open(f"{full}/#/jobs/{uid}")

    assert "Brain can't answer (404)" in browser.text("#problem")
    assert browser.value("document.querySelector('#problem a').getAttribute('href')") == "#/"


@pytest.mark.parametrize("path", ["", "/#/jobs/uid-1", "/#/jobs/uid-6"])
def test_every_width(browser: Browser, full: str, path: str) -> None:
    """At no width is the page wider than the window, even where the layout changes."""
    browser.open(full + path)
    for width in (320, 390, 760, 860, 861, 1000, 1140, 1141, 1280, 2000):
        browser.resize(width)

        browser.until(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")


@pytest.mark.parametrize("path", ["", "/#/jobs/uid-1"])
def test_everything_has_a_name(browser: Browser, full: str, path: str) -> None:
    """A screen reader finds a name for each control, headings in order, and tables at any width."""
    for width in (1280, 390):
        browser.open(full + path, width=width)
        tree = browser.call("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in tree if not node.get("ignored")]
        roles = [node["role"]["value"] for node in shown]
        nameless = [
            node["role"]["value"]
            for node in shown
            if node["role"]["value"]
            in ("button", "link", "searchbox", "textbox", "combobox", "slider", "table", "region")
            and not node.get("name", {}).get("value")
        ]
        assert nameless == []
        assert roles.count("heading") >= 3
        assert {"table", "row", "columnheader", "cell", "slider", "main"} <= set(roles)


CONTRAST = """(() => {
  const look = getComputedStyle(document.documentElement);
  const paint = document.createElement("canvas").getContext("2d");
  const light = (name) => {
    paint.fillStyle = look.getPropertyValue(name);
    paint.fillRect(0, 0, 1, 1);
    const parts = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
    const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const worst = (names, ground) => Math.min(...names.map((name) => ratio(name, ground)));
  const texts = ["--text", "--quiet", "--accent", "--bad"];
  const series = ["--one", "--two", "--three", "--four", "--five", "--six"];
  const lines = [...series, "--good", "--wait", "--busy", "--bad", "--focus"];
  const bad = ratio("--bad", "--bad-ground");
  return [worst(texts, "--panel"), worst(texts, "--ground"), worst(lines, "--panel"), bad];
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(browser: Browser, full: str, *, dark: bool) -> None:
    """Contrasts meet WCAG 2 AA on both backgrounds: 4.5 for text, 3 for lines and dots."""
    browser.open(full, dark=dark)
    on_panel, on_ground, lines, bad = browser.value(CONTRAST)

    assert min(on_panel, on_ground, bad) >= 4.5
    assert lines >= 3


def test_only_its_own_files(serve: Serve) -> None:
    """All files that the page refers to are served with the content security policy, and no other server is
    contacted."""
    url = serve()
    todo, seen = ["/"], set[str]()
    http = httpx.Client(base_url=url)
    while todo:
        path = todo.pop()
        seen.add(path)
        answer = http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"https?://(?!www\.w3\.org)", answer.text)
        found = re.findall(r"(?:href|src|from)[= ]\"(?:\./)?([a-z]+\.[a-z]+)\"", answer.text)
        todo += [f"/{name}" for name in found if f"/{name}" not in seen | set(todo)]

    http.close()
    expected = {
        "/",
        "/api.js",
        "/charts.js",
        "/dom.js",
        "/format.js",
        "/icon.svg",
        "/page.css",
        "/page.js",
        "/shapes.js",
        "/views.js",
    }
    assert seen == expected
