# SPDX-License-Identifier: Apache-2.0
"""Follows the tutorials of the coordinator and of a site's administrator word for word, and compares what
they print with what the pages show (document_reader.py). The data scientist's page, docs/guide/own-model.md,
needs PyTorch: tests/python/tutorial_test.py follows it.

Here stand-ins do what needs root or systemd (stand_in.py). FL_INSTALLED=1 says that this machine has the
packages, and systemd: then everything is real, which tests/install/deb_test.sh makes use of."""

import json
import os
import pathlib
import tempfile
import unittest

import stand_in
from document_reader import Block, Reader, blocks_of, difference
from federation import BIN, SOURCE, Federation, free_port
from proxy_test import variables
from tunnels import Proxy

INSTALLED = os.environ.get("FL_INSTALLED") == "1"
GUIDE = SOURCE / "docs" / "guide"
NAME = "federation.example.org"  # In both pages.
PROXY_NAME, PROXY_PORT = "proxy.hospital.example", 3128


HAS_MODELS = any((folder / "libfl-torch.so").exists() for folder in (BIN, pathlib.Path("/usr/lib/tributary")))


@unittest.skipUnless(HAS_MODELS, "built without libtorch")
class Tutorial(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        no_proxies = variables()
        no_proxies.__enter__()
        self.addCleanup(no_proxies.__exit__, None, None, None)
        self.root = pathlib.Path(folder.name)
        self.root.chmod(0o755)  # The services' users come through.
        self.port = 8443 if INSTALLED else free_port()
        self.address = f"{NAME}:{self.port}" if INSTALLED else f"127.0.0.1:{self.port}"

    def reader(self, places=()):
        """Somebody whose machine this is. `places`: more of what is elsewhere here."""
        page = self.root / "page"
        if INSTALLED:
            reader = Reader(page)
            for package in pathlib.Path(os.environ["FL_PACKAGES"]).glob("*.deb"):
                (page / package.name).symlink_to(package)
        else:
            system = self.root / "system"
            places = {
                "the server " + NAME: "the server 127.0.0.1",
                f"{NAME}:8443": self.address,
                "0.0.0.0:8443": self.address,
                "join tokens name " + NAME: "join tokens name 127.0.0.1",
                "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
                **{place: f"{system}{place}" for place in ("/etc/tributary", "/var/lib/tributary", "/srv/")},
                **dict(places),
            }
            own = page / ".own"
            tools = stand_in.tools(own)
            for program in ("fl-server", "fl-client"):
                tools[program] = f'#!/bin/sh\nexec {BIN / program} "$@"\n'
            reader = Reader(page, tools, places)
            for folder in ("etc/tributary", "var/lib/tributary", "srv"):
                (system / folder).mkdir(parents=True)
            units = {**reader.places, "/usr/bin/": f"{own}/"}
            (own / "places.json").write_text(json.dumps({k: str(v) for k, v in units.items()}))
        self.addCleanup(reader.close)
        return reader

    def follow(self, page, reader, meanwhile=()):
        """`meanwhile`: what others do when the reader comes to the section with this heading."""
        meanwhile = dict(meanwhile)
        for block in blocks_of((GUIDE / page).read_text()):
            act = meanwhile.pop(block.heading, None)
            if act:
                act()
            reader.follow(block)
        self.assertEqual(list(meanwhile), [], "no such heading")


class Coordinator(Tutorial):
    def test_the_page_is_right(self):
        reader = self.reader()
        self.follow("tutorial-coordinator.md", reader)
        model = reader.folder / "model.safetensors"
        self.assertIn(b"input.running_mean", model.read_bytes()[:4096])
        self.assertIn("revoked", (reader.folder / "west.log").read_text())


class Site(Tutorial):
    def coordinator(self):
        """The other end, and what it does while the reader goes on."""
        federation = Federation(self.root / "coordinator")
        self.addCleanup(federation.close)
        federation.port = self.port
        federation.server(
            *("--model", "synthetic:1000", "--rounds", 3, "--min-clients", 1, "--stay"),
            *("--advertise", self.address),
        )
        return federation

    def test_the_page_is_right(self):
        federation = self.coordinator()
        proxy = Proxy(port=PROXY_PORT) if INSTALLED else Proxy()
        self.addCleanup(proxy.close)
        reader = self.reader(
            {
                f"the proxy {PROXY_NAME}": "the proxy 127.0.0.1",
                f"{PROXY_NAME}:{PROXY_PORT}": proxy.place,
            }
        )

        def token(file):
            (reader.folder / file).write_text(federation.token("north") + "\n")

        def begin_run():
            flags = "--model linear:2-1 --rounds 100000 --local-seconds 0.2 --min-clients 1 --lr 0.05"
            code, _, err = federation.server_command("queue", *flags.split())
            self.assertEqual(code, 0, err)

        self.follow(
            "tutorial-site.md",
            reader,
            {
                "2. Look before you join": lambda: token("north.token"),
                "4. The data": begin_run,
                "8. A new key, or another machine": lambda: token("new.token"),
            },
        )
        self.assertIn(self.address, proxy.targets)
        rows = federation.query("SELECT kind, client FROM audit WHERE client = 'north' ORDER BY id")
        self.assertIn(("takeover", "north"), rows)


class TheReader(unittest.TestCase):
    """Checks that the reader does not accept everything."""

    def test_what_is_shown_must_be_printed(self):
        for shown, said, fits in (
            ("a\nb\n", "a\nb\n", True),
            ("a\nb\n", "a\n", False),
            ("a\n", "a\nb\n", False),
            ("…\nb\n", "a\nb\n", True),
            ("…\nb\n", "b\n", True),
            ("…\nb\n", "b\na\n", False),
            ("a\n…\n", "a\nb\nc\n", True),
            ("a\n…\n", "b\na\n", False),
            ("a\n…\nb\n…\nc\n", "a\nx\nb\nc\n", True),
            ("a\n…\nb\n…\nc\n", "a\nx\nc\nb\n", False),
            ("a\n…\na\n", "a\n", False),
            ("…\n", "", True),
            ("a…\n", "abc\n", True),
            ("a b\n", "a    b\n", True),
            ("a b\n", "ab\n", False),
            ("3/3 clients\n", "2/3 clients\n", False),
            ("1.2 kB in 3 s\n", "77 B in 0.25 s\n", True),
            ("1.2 kB\n", "1.2 rows\n", False),
            ("2026-11-26 08:00:00  ok\n", "2031-01-01 23:59:59  ok\n", True),
            ("2026-11-26 08:00:00  ok\n", "never  ok\n", False),
            ("flj1.abc\n", "flj1.d-_\n", True),
            ("flj1.abc\n", "flo1.abc\n", False),
            ("key 2808164cf6a157bd\n", "key 0000000000000000\n", True),
            ("key 2808164cf6a157bd\n", "key none\n", False),
        ):
            with self.subTest(shown=shown, said=said):
                self.assertEqual(not difference(shown, said), fits)

    def test_blocks_are_found_with_what_they_print(self):
        page = "# T\n```sh\na\n```\n```text\nA\n```\n## U `v`\n\n```toml\nx = 1\n```\n```text\nno\n```\n```python\n# p.py\n```\n"
        blocks = blocks_of(page)
        self.assertEqual(
            [(b.language, b.text, b.shown, b.heading, b.line) for b in blocks],
            [("sh", "a\n", "A\n", "T", 2), ("python", "# p.py\n", None, "U `v`", 16)],
        )

    def test_a_command_that_fails_or_prints_something_else_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            reader = Reader(pathlib.Path(folder) / "page")
            self.addCleanup(reader.close)
            block = Block("sh", "x=1\necho $x\n", 1, "")
            block.shown = "1\n"
            reader.follow(block)
            block.shown = "2\n"
            with self.assertRaisesRegex(AssertionError, "line 1"):
                reader.follow(block)
            with self.assertRaisesRegex(AssertionError, "failed"):
                reader.follow(Block("sh", "no-such-command\n", 1, ""))

    def test_looking_is_told_from_doing(self):
        for text, looks in (
            ("fed history --runs\n", True),
            ("sudo journalctl -u fl-server -o cat\n", True),
            ("fed enroll --name a\n", False),
            ("fed history\nfed revoke a\n", False),
            ("sudo systemctl restart fl-server\n", False),
        ):
            self.assertEqual(Block("sh", text, 1, "").only_looks, looks, text)


if __name__ == "__main__":
    unittest.main()
