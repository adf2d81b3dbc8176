"""The tab's charts and tables in a real browser."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import pytest

from tests.unit.services.brain.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH"),
]

# Airflow brings React; here elements are values.
REACT = """
  globalThis.React = {
    createElement: (type, props, ...children) =>
      typeof type === "function" ? type(props) : { type, props, children },
    useEffect() {}, useRef: () => ({}), useState: (value) => [value, () => {}],
  };
"""
COUNT = """
(async () => {
  REACT
  const { Chart } = await import(`${location.origin}/charts.js`);
  const series = [{ name: "loss", style: "s0", values: VALUES }];
  const chart = Chart({ title: "loss", unit: "", times: TIMES, marks: [], series });
  const count = (one) => one?.children ? 1 + total(one.children.flat(9)) : 0;
  const total = (all) => all.reduce((sum, one) => sum + count(one), 0);
  return count(chart);
})()
""".replace("REACT", REACT)
SHARES = """
(async () => {
  REACT
  const { TimeByCause } = await import(`${location.origin}/parts.js`);
  const seconds = { training: 60, queued: 20, suspended: 120 };
  const spent = Object.entries(seconds).map(([cause, seconds]) => ({ cause, meaning: "", seconds }));
  const [, bar, table] = TimeByCause({ goodput: { ratio: 0.75, spent } }).children;
  const rows = table.children[0].children.flat();
  const widths = bar.children.flat().map((one) => one.props.style.width);
  return [widths, rows.map((row) => row.children.at(-1).children[0])];
})()
""".replace("REACT", REACT)


class _Files(BaseHTTPRequestHandler):
    """Serves the tab's files, and those that it shares with Brain's page."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        folders = [
            resources.files(one) / "files"
            for one in ("edl_workflows.airflow.tab", "edl_workflows.services.brain.page")
        ]
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if not found:
            self.send_error(404)
            return
        content = found[0].read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if name.endswith(".js") else "image/svg+xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Requests are not logged."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser on a server of the tab's files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Browser(tmp_path_factory.mktemp("profile"))
    made.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/icon.svg")
    made.until("location.protocol === 'http:'")
    yield made
    made.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("values", "times"),
    [
        ("[1.7e308, 1.7e308]", "[0, 60]"),
        ("[-1.7e308, 1.7e308]", "[0, 60]"),
        ("[5e-324, 5e-324]", "[0, 60]"),
        ("[null, null]", "[0, 60]"),
        ("[1, 2]", "[0, 253402300799]"),
    ],
    ids=["largest", "far apart", "smallest", "none", "until the year 9999"],
)
def test_every_chart_has_a_handful_of_elements(browser: Browser, values: str, times: str) -> None:
    """Whatever finite numbers a program reports, a chart has few elements, so that the page stays usable."""
    count = browser.value(COUNT.replace("VALUES", values).replace("TIMES", times))

    assert 5 < count < 100


def test_shares_of_time_are_those_of_goodput(browser: Browser) -> None:
    """The time of a suspension is shown, but is not part of the total."""
    widths, shares = browser.value(SHARES)

    assert widths == ["75%", "25%"]
    assert shares == ["75 %", "25 %", "–"]
