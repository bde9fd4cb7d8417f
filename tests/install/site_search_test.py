# SPDX-License-Identifier: Apache-2.0
"""The documents as a site (./dev site): its search, read from a disk, in a browser. Takes the MkDocs of
build/site-venv, which `./dev site` makes; without it, or without a Chromium, the test is skipped."""

import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "process"))

from chromium import Browser, find_browser  # noqa: E402

PYTHON = SOURCE / "build" / "site-venv" / "bin" / "python"
if find_browser() is None or not PYTHON.exists():
    print("SKIPPED: no Chromium, or ./dev site has not been called: THE DOCUMENTS' SEARCH WAS NOT TRIED")
    sys.exit(77)


class Search(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        builder = SOURCE / "deploy" / "site" / "build_site.py"
        subprocess.run(
            [PYTHON, builder], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def test_it_finds_pages_without_a_server_and_fetches_nothing_from_elsewhere(self):
        browser = Browser(find_browser())
        self.addCleanup(browser.close)
        for page in "index.html", "docs/guide/data.html":
            browser.open((SOURCE / "build" / "site" / page).as_uri() + "?q=doctor")
            found = browser.wait_for(
                "results of the search",
                "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join(' ')",
            )
            self.assertIn("docs/guide/networks.html", found)
            fetched = browser.run(
                "performance.getEntriesByType('resource').map(each => each.name)"
                ".filter(name => !name.startsWith('file:') && !name.startsWith('data:'))"
            )
            self.assertEqual(fetched, [])
        self.assertEqual(browser.errors, [])


if __name__ == "__main__":
    unittest.main()
