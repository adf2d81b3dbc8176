"""A headless Chromium that is controlled by its DevTools pipe (``--remote-debugging-pipe``): JSON messages,
each ended by NUL."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>"
"""A text that runs code wherever a page takes it for HTML."""
SECONDS = 240.0
"""For the browser to start, and for a page to become what it shall be."""


class Browser:
    """One tab.

    Args:
        folder: its profile.
    """

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._requests = os.pipe()
        self._answers, from_browser = os.pipe()
        switches = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        )
        # The browser reads descriptor 3 and writes 4; the shell puts ours there.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                CHROMIUM,
                *switches,
                f"--user-data-dir={folder}",
                "--remote-debugging-pipe",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._ids = itertools.count(1)
        self._arrived = threading.Condition()
        self._results: dict[int, dict[str, Any]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.complaints: list[str] = []
        """What pages wrote to the console as errors, and exceptions that nobody caught."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError):
            self._send("Browser.close")
        try:
            self._process.wait(240)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._requests)
        self._reader.join()
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command to the tab."""
        return self._send(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Change the size of the tab, in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page in a tab of this size, and wait until its script has shown something."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        self.until("document.body && document.body.dataset.ready")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {expression}; {self.text()[:500]}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match a selector."""
        found: list[str] = self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText ?? "
            "one.textContent)"
        )
        return found

    def press(self, key: str) -> None:
        """Press a key in the focused element."""
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "Home": 36}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
            )

    def write(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """A picture of the whole page or of the window, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def _send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        with self._arrived:
            assert self._arrived.wait_for(lambda: number in self._results, SECONDS), f"no answer to {method}"
            answer = self._results.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> None:
        for text in _messages(self._answers):
            message = json.loads(text)
            if "id" in message:
                with self._arrived:
                    self._results[message["id"]] = message
                    self._arrived.notify_all()
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(message["params"]["exceptionDetails"]))
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])


def _messages(descriptor: int) -> Iterator[bytes]:
    rest = b""
    while block := os.read(descriptor, 65536):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
