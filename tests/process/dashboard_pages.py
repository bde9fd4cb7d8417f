# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the dashboard: its pages in a headless Chromium, and figures as they show
them."""

import contextlib
import datetime
import importlib.util
import json
import os
import pathlib
import sqlite3
import time
import urllib.request

from chromium import WAIT_MAX_S, Browser, find_browser
from federation import FederationTest

VIEWS = ("overview", "round", "fleet", "metrics", "bytes", "runs", "log", "model")
# The view that is shown, when its tables and charts are filled.
SHOWN = "document.querySelector('main > section:not([hidden])')"
CHECKS = pathlib.Path(__file__).with_name("page_checks.js").read_text()


def axe_script():
    """The text of axe-core, where the package axe-playwright-python is installed, or FL_AXE names
    the file; else None."""
    named = os.environ.get("FL_AXE")
    if named:
        return pathlib.Path(named).read_text()
    spec = importlib.util.find_spec("axe_playwright_python")
    path = spec and pathlib.Path(spec.origin).with_name("axe.min.js")
    return path.read_text() if path and path.exists() else None


def human_bytes(value):
    """The size as the page writes it."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    if unit == "B":
        return f"{value} B"
    whole = len(str(int(value)))
    return f"{value:.{max(0, 3 - whole)}f} {unit}"


def human_number(value, digits=4):
    if value is None:
        return "–"
    if value == int(value):
        return f"{int(value):,}"
    return repr(float(f"{value:.{digits}g}")).removesuffix(".0")


def human_seconds(value):
    if value is None:
        return "–"
    if value < 1:
        return f"{int(value * 1000 + 0.5)} ms"
    if value < 99.5:
        return f"{value:.1f} s" if value < 9.95 else f"{int(value + 0.5)} s"
    return f"{int(value / 60 + 0.5)} min" if value < 5400 else f"{value / 3600:.1f} h"


def human_percent(value):
    return f"{100 * value:.2f} %"


def human_time(at):
    """The time of day, with the date if it is not today's."""
    date = datetime.datetime.fromtimestamp(at)
    clock = f"{date:%H:%M:%S}"
    return clock if date.date() == datetime.date.today() else f"{date:%Y-%m-%d} {clock}"


class Pages(FederationTest):
    """A test class with a browser."""

    def browser(self):
        browser = Browser(find_browser())
        self.addCleanup(browser.close)
        browser.show(1280, 900)
        return browser

    def open(self, browser, server, view=""):
        browser.open(f"http://{server.ready['admin']}/#{view}")
        self.await_live(browser)

    def await_live(self, browser):
        browser.wait_for(
            "a live page", "document.querySelector('#connection')?.textContent === 'live'"
        )

    def show(self, browser, view, run=""):
        browser.run(f"location.hash = '{view}/{run}'")
        browser.wait_for(view, f"{SHOWN}?.getAttribute('aria-labelledby') === 'view-{view}'")

    def api(self, server, path):
        with urllib.request.urlopen(f"http://{server.ready['admin']}{path}", timeout=10) as answer:
            return json.load(answer)

    def panel(self, title):
        """The part of the view with this heading."""
        return (
            f"[...{SHOWN}.querySelectorAll('section.panel')]"
            f".find((each) => each.querySelector('h3').textContent === {title!r})"
        )

    def expect_rows(self, browser, title, labels, expected):
        """Waits until these columns of the panel's table have these texts, row by row."""
        script = (
            f"[...({self.panel(title)}?.querySelectorAll('tbody tr') ?? [])].map((row) =>"
            f" {json.dumps(labels)}.map((label) =>"
            " [...row.cells].find((cell) => cell.dataset.label === label)?.textContent))"
        )
        expected = [list(row) for row in expected]
        found, end = None, time.monotonic() + WAIT_MAX_S
        while found != expected and time.monotonic() < end:
            time.sleep(0.02)
            found = browser.run(script)
        self.assertEqual(found, expected, title)

    def write(self, federation, *statements):
        with contextlib.closing(
            sqlite3.connect(federation.state / "history.sqlite", timeout=30)
        ) as db:
            for sql, rows in statements:
                db.executemany(sql, rows)
            db.commit()

    def check_page(self, browser, what):
        """No finding of our own checks, and none of axe-core's."""
        with self.subTest(what):
            self.assertEqual(browser.run(f"({CHECKS})()"), [], what)
            axe = axe_script()
            if axe is None:
                return
            if not browser.run("typeof axe === 'object'"):
                browser.run(axe + "; undefined")
            found = browser.run(
                "axe.run().then((found) => found.violations.map((each) =>"
                " each.id + ': ' + each.nodes.map((node) => node.html).slice(0, 3).join(' ')))"
            )
            self.assertEqual(found, [], what)

    def look_at(self, browser, views):
        """Each view, in light and dark, wide and as a phone has it."""
        for is_dark in (False, True):
            for width in (1280, 360):
                browser.show(width, 780, is_dark=is_dark, is_phone=width == 360)
                for view in views:
                    self.show(browser, view)
                    what = f"{view}, {width} wide, {'dark' if is_dark else 'light'}"
                    browser.wait_for(
                        "the view at rest", f"!{SHOWN}.querySelector('[aria-busy=true]')"
                    )
                    self.check_page(browser, what)
                    wide = browser.run("document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width, f"{what}: it must not scroll sideways")
