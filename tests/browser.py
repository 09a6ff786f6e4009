"""A browser for tests: one tab of Chromium, and what axe finds wrong with the page that it shows."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)

AS_3_AND_4 = (
    "import os, sys; _, hears, says, *command = sys.argv; "
    "os.dup2(int(hears), 3); os.dup2(int(says), 4); os.execv(command[0], command)"
)
"""The browser reads what it is told from descriptor 3 and writes to 4."""


class Browser:
    """One tab, told what to do over the browser's own pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        hears, self._to = os.pipe()
        self._from, says = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (hears, says)]
        started = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        command = [sys.executable, "-c", AS_3_AND_4, *map(str, ends), *started]
        self._process = subprocess.Popen(command, pass_fds=ends, stderr=subprocess.DEVNULL)
        for end in (hears, says, *ends):
            os.close(end)
        self._left = b""
        self._calls = 0
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                piece = os.read(self._from, 1 << 20)
                assert piece, "the browser is gone"
                self._left += piece
            line, _, self._left = self._left.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def run(self, script: str) -> Any:
        """What a script of the page gives, awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.run("window.isLeft = true")  # the same page may be opened again
        self.call("Page.navigate", url=url)
        self.until("!window.isLeft && document.readyState === 'complete'")

    def reload(self) -> None:
        self.run("window.isLeft = true")
        self.call("Page.reload")
        self.until("!window.isLeft && document.readyState === 'complete'")

    def until(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not in {seconds} s: {condition}"
            time.sleep(0.05)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in a file input, as its dialogue does."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self.call("DOM.setFileInputFiles", files=list(map(str, files)), objectId=found["result"]["objectId"])

    def press(self, key: str, *, shift: bool = False) -> None:
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " ")}
        code, text = codes[key]
        said = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **said)
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)


AXE = files("axe_core_python") / "axe.min.js"

RULES = "axe.run(document, {resultTypes: ['violations']})"


def serious_faults(browser: Browser) -> list[str]:
    """What axe finds in the open page that keeps people out, with the first three places."""
    browser.run(AXE.read_text(encoding="utf-8") + "; 0")
    found = browser.run(f"{RULES}.then(one => one.violations)")
    return [
        f"{one['id']}: {[node['html'][:120] + node['failureSummary'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]
