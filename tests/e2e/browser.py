"""A real headless Chromium, asked through the pipe of its DevTools protocol: nothing but the standard library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The browser's program; None: there is none here."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """One page of the browser. What it logs as an error, or may not load, is in `problems`."""

    def __init__(self, reads: int, writes: int) -> None:
        self.problems: list[str] = []
        self.requested: list[str] = []
        """Addresses that the page asked for."""
        self._reads, self._writes = reads, writes
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + DEADLINE_S
        while (answer := self._receive(deadline_s)).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, address: str, *, width: int = 1440, height: int = 900) -> None:
        """Go there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "it threw"))
        return result["result"].get("value")

    def until(self, expression: str, what: str) -> Any:
        """Wait until an expression is true; its value. What it names need not be there yet."""
        deadline_s = time.monotonic() + DEADLINE_S
        guarded = f"(() => {{ try {{ return {expression} }} catch (missing) {{ return null }} }})()"
        while not (value := self.evaluate(guarded)):
            shown = self.evaluate("document.body ? document.body.innerText.slice(0, 2000) : ''")
            assert time.monotonic() < deadline_s, f"never seen: {what}; the page says: {shown}; {self.problems}"
        return value

    def screenshot(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._reads, 1 << 20)
            if not piece:
                raise EOFError("the browser ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if parameters["entry"]["source"] in ("security", "violation", "javascript"):
                self.problems.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])


@contextlib.contextmanager
def page(profile: Path, network: str) -> Iterator[Page]:
    """A browser with one empty page, in the network at a path of /proc; it is gone afterwards.

    `profile`: an empty directory for what it keeps.
    """
    program = find()
    if program is None:
        raise RuntimeError("no Chromium here")
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    arguments = [
        "--headless=new",
        "--no-sandbox",  # which root cannot have; the page is our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--force-color-profile=srgb",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
        "--remote-debugging-pipe",
    ]
    # It reads commands from descriptor 3 and answers on 4.
    script = f'exec nsenter --net="$0" "$@" 3<&{commands_read} 4>&{answers_write}'
    browser = subprocess.Popen(
        ["/bin/bash", "-c", script, network, program, *arguments],
        pass_fds=(commands_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_read)
    os.close(answers_write)
    try:
        yield Page(answers_read, commands_write)
    finally:
        os.close(commands_write)
        os.close(answers_read)
        browser.terminate()
        try:
            browser.wait(10)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
