# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium by the DevTools protocol over two pipes (--remote-debugging-pipe):
messages are JSON, each with a zero byte behind it. Needs nothing but the browser."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
# How long a part of the program that is not ours is waited for.
WAIT_MAX_S = 60


def find_browser():
    """Returns the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page. Errors of its console are in `errors`."""

    def __init__(self, path):
        self.folder = tempfile.TemporaryDirectory(
            prefix="tributary-chromium-", ignore_cleanup_errors=True
        )
        to_read, to_write = os.pipe(), os.pipe()
        # The browser reads from file 3 and writes to file 4. Ours must have other numbers.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read[0], to_write[1])]
        command = 'exec 3<&{0} 4>&{1} {0}<&- {1}>&-; exec "$@"'.format(*theirs)
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command, "sh", path, "--headless=new", "--remote-debugging-pipe",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--force-color-profile=srgb", "--hide-scrollbars", "--lang=en-US",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (to_read[0], to_write[1], *theirs):
            os.close(end)
        self.out, self.come = to_read[1], to_write[0]
        self.buffer = b""
        self.last = 0
        self.session = None
        self.errors = []
        self.events = []
        self.attach()

    def attach(self):
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(each for each in pages if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        for pipe in (self.out, self.come):
            os.close(pipe)
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def call(self, method, **parameters):
        """Sends a command, and returns its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_MAX_S
        while True:
            answer = self.receive(end - time.monotonic())
            if answer is None:
                raise AssertionError(f"the browser did not answer {method}")
            if answer.get("id") != self.last:
                continue
            if "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            return answer["result"]

    def receive(self, limit_s):
        """Returns the next message, or None after the limit. Notes events."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.come], [], [], max(0, limit_s))
            if not ready:
                return None
            come = os.read(self.come, 1 << 20)
            if not come:
                raise AssertionError("the browser has ended")
            self.buffer += come
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        if "method" in message:
            self.note(message["method"], message["params"])
        return message

    def note(self, method, parameters):
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            said = details.get("exception", {}).get("description", details["text"])
            self.errors.append(said)
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            said = " ".join(str(each.get("value", each)) for each in parameters["args"])
            self.errors.append(said)
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(
                f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}"
            )

    def run(self, expression):
        """Evaluates JavaScript (a promise is awaited), and returns its value."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, what, expression, limit_s=WAIT_MAX_S):
        """Waits until the expression is true in the page, and returns its value."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = self.run(expression)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(
            f"waited {limit_s} s in vain for: {what}\n{self.run('document.body.innerText')}\n"
            f"console: {self.errors}"
        )

    def open(self, address):
        self.events.clear()
        self.call("Page.navigate", url=address)
        end = time.monotonic() + WAIT_MAX_S
        while "Page.loadEventFired" not in self.events:
            if self.receive(end - time.monotonic()) is None:
                raise AssertionError(f"{address} was not loaded")

    def show(self, width, height, is_dark=False, is_phone=False):
        """Sets the window's size, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}],
        )

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, text="\r" if key == "Enter" else "",
                windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key],
            )  # fmt: skip

    def picture(self, path):
        """Writes what the window shows."""
        taken = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))
