"""A headless Chromium for tests of pages: one of the machine's, or that of Qt WebEngine, over its debugging port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

from websockets.sync.client import connect

from support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QT = "PyQt6.QtWebEngineWidgets"
SIZE = (1280, 860)
WITHIN_S = 30.0
_QT_PROGRAM = """
import sys
from PyQt6.QtCore import QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication
app = QApplication(sys.argv)
view = QWebEngineView()
view.resize(%d, %d)
view.load(QUrl("about:blank"))
view.show()
app.exec()
"""


def missing():
    """Why there is no browser; None when there is one."""
    if any(map(shutil.which, NAMES)) or (find_spec("PyQt6") and find_spec(QT)):
        return None
    return f"no Chromium: neither {', '.join(NAMES)} nor the package PyQt6-WebEngine is installed"


class Browser:
    """A browser with one page; to be used in a `with`."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        found = next(filter(None, map(shutil.which, NAMES)), None)
        environment = dict(os.environ)
        if found:
            command = [found, "--headless=new", "--no-sandbox", f"--remote-debugging-port={port}"]
            command += [f"--user-data-dir={home}", "--window-size={},{}".format(*SIZE), "about:blank"]
        else:
            command = [sys.executable, "-c", _QT_PROGRAM % SIZE]
            environment |= {
                "QT_QPA_PLATFORM": "offscreen",
                "QTWEBENGINE_DISABLE_SANDBOX": "1",
                "QTWEBENGINE_REMOTE_DEBUGGING": f"127.0.0.1:{port}",
                "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu",
                "HOME": str(home),
            }
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = connect(self._page(port), origin=None, max_size=None).__enter__()
        except BaseException:
            self._process.kill()
            raise
        self._number = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def _page(self, port):
        until_s = time.monotonic() + WITHIN_S
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as answer:
                    for target in json.load(answer):
                        if target["type"] == "page":
                            return target["webSocketDebuggerUrl"]
            except (URLError, ConnectionError):
                pass
            if time.monotonic() > until_s or self._process.poll() is not None:
                raise AssertionError("the browser did not start")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.__exit__(None, None, None)
        self._process.terminate()
        self._process.wait(20)

    def do(self, method, **arguments):
        """A command of the debugging protocol. What pages complain of meanwhile is kept in `problems`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            told = json.loads(self._socket.recv(timeout=WITHIN_S))
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if told.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(told["params"]["exceptionDetails"]))
            elif told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.problems.append(str(told["params"]["entry"]))

    def ask(self, script):
        """What a script in the page returns."""
        result = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script):
        """Wait until a script returns something true, and return that."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            value = self.ask(script)
            if value:
                return value
            assert time.monotonic() < until_s, f"not within {WITHIN_S:g} s: {script}"
            time.sleep(0.05)

    def go(self, url):
        """Load a page."""
        self.ask("window.isOld = true")
        self.do("Page.navigate", url=url)
        self.until("!window.isOld && document.readyState === 'complete'")

    def press(self, *keys):
        """Press keys, one after the other."""
        for key in keys:
            self.do("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} if len(key) == 1 else {}))
            self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    def dark(self, is_dark=True):
        """Prefer dark colors, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path):
        """Keep a picture of what is shown."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))
