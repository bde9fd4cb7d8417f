# SPDX-License-Identifier: Apache-2.0
"""Clients behind proxies and middleboxes: they get through, or say what is in the way."""

import contextlib
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import unittest

from federation import BIN, FederationTest, free_port, wait_until
from tunnels import Middlebox, Proxy

FLAGS = ("--new-run", "--model", "synthetic:100", "--rounds", 1, "--stay", "--min-clients")
RUN = (*FLAGS, 1)
WAITING = (*FLAGS, 2)
READY = "synthetic:100: 100 parameters"
VARIABLES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@contextlib.contextmanager
def variables(**values):
    """Programs that are started inside have these variables about proxies, and no others."""
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def readdress(federation, name, server):
    """Gives the client another address of its server."""
    path = federation.folder / name / "identity" / "identity.json"
    identity = json.loads(path.read_text())
    identity["server"] = server
    path.write_text(json.dumps(identity))


class Proxies(FederationTest):
    names = ("a",)

    def setUp(self):
        self.enterContext(variables())

    def enterContext(self, context):  # Python 3.11 has it; older ones not.
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def proxy(self, **options):
        proxy = Proxy(**options)
        self.addCleanup(proxy.close)
        return proxy

    def served(self):
        """The server's run waits for a second client: it is not over when a client comes again."""
        federation = self.make()
        federation.server(*WAITING)
        return federation

    def test_a_client_joins_and_trains_through_a_proxy_that_resolves_the_name(self):
        federation = self.make()
        federation.server(*RUN, "--advertise", "fed.site.invalid")
        proxy = self.proxy(login="us@er:pa:ss word", names={"fed.site.invalid": "127.0.0.1"})
        there = f"fed.site.invalid:{federation.port}"
        login = f"http://us%40er:pa%3Ass%20word@{proxy.place}"
        token = federation.token("b")
        with variables(HTTPS_PROXY=login):
            code, _, err = federation.command(
                "fl-client", "join", token, "--state", federation.folder / "b"
            )
            self.assertEqual(code, 0, err)
            client = federation.client("b", "--verbose")
        client.wait_for("round 1: update accepted")
        self.assertEqual(set(proxy.targets), {there})
        self.assertNotIn("pa:ss", client.stderr() + err)
        self.assertNotIn("pa%3Ass", client.stderr() + err)

    def test_a_client_comes_back_through_the_proxy_and_waits_for_its_repair(self):
        federation = self.make()
        federation.server(*RUN, "--min-clients", 2)
        federation.join("b")
        proxy = self.proxy()
        client = federation.client("a", "--stay", "--proxy", f"http://{proxy.place}")
        client.wait_for(READY)
        proxy.answer = b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\n\r\n"
        asked = len(proxy.targets)
        proxy.cut()
        # It would have ended at its start, but not after it was connected.
        wait_until("it tries again", lambda: len(proxy.targets) >= asked + 3)
        client.wait_for("wants a user name and a password")
        self.assertTrue(client.running())
        proxy.answer = None
        federation.client("b", "--proxy", "none")
        client.wait_for("round 1: update accepted")

    def test_the_login_is_asked_for_or_rejected_in_plain_words(self):
        federation = self.served()
        proxy = self.proxy(login="user:right")
        for login, says in (
            ("", "wants a user name and a password: write http://USER:PASSWORD@"),
            ("user:wr0ng@", "rejected the user name or the password"),
        ):
            client = federation.client("a", "--proxy", f"http://{login}{proxy.place}")
            self.expect_exit(client, 1)
            self.assertIn(says, client.stderr())
            self.assertNotIn("wr0ng", client.stderr())

    def test_no_proxy_and_the_flag_none_go_past_it(self):
        federation = self.served()
        dead = f"127.0.0.1:{free_port()}"
        for number, (environment, flags) in enumerate(
            (
                ({"https_proxy": dead, "NO_PROXY": "127.0.0.0/8"}, ()),
                ({"ALL_PROXY": dead, "no_proxy": "*"}, ()),
                ({"HTTPS_PROXY": dead}, ("--proxy", "none")),
            )
        ):
            with self.subTest(number=number), variables(**environment):
                client = federation.client("a", "--stay", *flags)
                client.wait_for(READY)
                client.kill()
        with variables(HTTPS_PROXY=dead):
            client = federation.client("a", "--stay")
        client.wait_for(f"connecting to the proxy http://{dead} (from HTTPS_PROXY)")
        self.assertTrue(client.running())

    def test_the_proxy_may_stand_in_a_file(self):
        federation = self.served()
        proxy = self.proxy(login="u:p")
        config = federation.folder / "client.toml"
        config.write_text(f'proxy = "http://u:p@{proxy.place}"\nstay = true\n')
        client = federation.client("a", "--config", config)
        client.wait_for(READY)
        self.assertEqual(proxy.targets, [f"127.0.0.1:{federation.port}"])

    def test_the_proxy_has_an_ipv6_address(self):
        with contextlib.suppress(OSError):
            proxy = self.proxy(host="::1")
            federation = self.served()
            client = federation.client("a", "--stay", "--proxy", f"http://{proxy.place}")
            client.wait_for(READY)
            return
        self.skipTest("this machine has no IPv6 loopback")

    def test_a_middlebox_is_named(self):
        federation = self.served()
        box = Middlebox(federation.folder / "box")
        self.addCleanup(box.close)
        readdress(federation, "a", box.place)
        client = federation.client("a", "--stay")
        self.expect_exit(client, 1)
        self.assertIn(f"the certificate that {box.place} shows is not the federation's", client.stderr())
        self.assertIn("CN=Example Firewall Inspection", client.stderr())
        self.assertIn(f"an exception for {box.place}", client.stderr())

    def test_a_middlebox_is_named_to_who_joins(self):
        federation = self.make()
        box = Middlebox(federation.folder / "box")
        self.addCleanup(box.close)
        federation.server(*RUN, "--advertise", box.place)
        token = federation.token("b")
        code, _, err = federation.command(
            "fl-client", "join", token, "--state", federation.folder / "b"
        )
        self.assertEqual(code, 1)
        self.assertIn("CN=Example Firewall Inspection", err)

    def test_a_middlebox_with_an_old_tls_and_a_port_without_tls_are_named(self):
        federation = self.served()
        old = Middlebox(federation.folder / "box", versions=ssl.TLSVersion.TLSv1_2)
        self.addCleanup(old.close)
        web = self.proxy(answer=b"HTTP/1.1 400 Bad Request\r\n\r\n")
        web.serve = lambda client: client.sendall(web.answer)
        for place in (old.place, web.place):
            readdress(federation, "a", place)
            client = federation.client("a", "--stay")
            client.wait_for("does not speak TLS 1.3: it is no Tributary server, or a firewall")
            client.kill()

    @unittest.skipUnless(shutil.which("tinyproxy"), "Debian's package tinyproxy is not installed")
    def test_tinyproxy(self):
        federation = self.served()
        port = free_port()
        config = federation.folder / "tinyproxy.conf"
        config.write_text(
            f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 20\nBasicAuth user secret\n"
            f"ConnectPort {federation.port}\nLogLevel Info\n"
        )
        self.get_through(federation, port, ["tinyproxy", "-d", "-c", config])

    @unittest.skipUnless(shutil.which("squid"), "Debian's package squid is not installed")
    def test_squid(self):
        federation = self.served()
        port = free_port()
        # Squid gives up the rights of root before it reads what is in here.
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="squid-")))
        folder.chmod(0o755)
        hashed = subprocess.run(
            ["openssl", "passwd", "-apr1", "secret"], capture_output=True, text=True, check=True
        )
        (folder / "users").write_text(f"user:{hashed.stdout}")
        config = folder / "squid.conf"
        config.write_text(
            f"http_port 127.0.0.1:{port}\npid_filename none\ncache_log /dev/null\n"
            "access_log none\ncache deny all\nshutdown_lifetime 1 seconds\n"
            f"auth_param basic program /usr/lib/squid/basic_ncsa_auth {folder}/users\n"
            f"acl federation port {federation.port}\nacl known proxy_auth REQUIRED\n"
            "http_access deny !federation\nhttp_access allow CONNECT known\n"
            "http_access deny all\n"
        )
        self.get_through(federation, port, ["squid", "-N", "-f", config])

    def get_through(self, federation, port, command):
        """The proxy listens there, knows user:secret, and lets through to the server's port only."""
        proxy = federation.start("proxy", command)
        wait_until("the proxy listens", lambda: listens(port) or not proxy.running())
        self.assertTrue(proxy.running(), str(proxy))
        place = f"127.0.0.1:{port}"
        client = federation.client("a", "--proxy", f"http://user:secret@{place}")
        client.wait_for("round 1: update accepted")
        client.kill()
        for login, says in (("", "wants a user name"), ("user:wrong@", "rejected the user name")):
            client = federation.client("a", "--proxy", f"http://{login}{place}")
            self.expect_exit(client, 1)
            self.assertIn(says, client.stderr())
        readdress(federation, "a", "127.0.0.1:444")
        client = federation.client("a", "--proxy", f"http://user:secret@{place}")
        self.expect_exit(client, 1)
        self.assertIn("allow CONNECT to 127.0.0.1:444", client.stderr())


def listens(port):
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def can_change_hosts():
    """Whether programs may have names of their own, in a mount namespace."""
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_change_hosts(), "this machine allows no mount namespaces")
class Names(FederationTest):
    """A client whose /etc/hosts the test writes."""

    names = ("a",)

    def client_with_names(self, federation, *flags):
        hosts = federation.folder / "hosts"
        script = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        program = [BIN / "fl-client", "--state", federation.folder / "a", *flags]
        return federation.start("client", ["unshare", "-rm", "sh", "-c", script, "sh", *program])

    def test_a_name_that_moves_is_looked_up_anew_and_dead_addresses_are_passed_over(self):
        federation = self.make()
        federation.server(*RUN)
        hosts = pathlib.Path(federation.folder / "hosts")
        readdress(federation, "a", f"fed.test:{federation.port}")
        hosts.write_text("127.0.0.9 fed.test\n")  # Nobody is there.
        client = self.client_with_names(federation, "--stay", "--proxy", "none")
        client.wait_for(f"connecting to fed.test:{federation.port}: Connection refused")
        with hosts.open("r+") as file:  # Writes into the mounted file itself.
            file.write("127.0.0.8 fed.test\n127.0.0.1 fed.test\n")
        client.wait_for("round 1: update accepted")


def has_ipv6():
    import socket

    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@unittest.skipUnless(has_ipv6(), "this machine has no IPv6")
class Ipv6(FederationTest):
    """Servers that listen on IPv6 alone, and on both."""

    names = ("a",)

    def test_a_server_on_ipv6_gets_its_address_into_tokens_and_its_clients_join_and_train(self):
        for name, advertise in (("one", "::1"), ("two", "[::1]"), ("three", None)):
            with self.subTest(advertise=advertise):
                federation = FederationTest.make(self, name)
                place = f"[::1]:{federation.port}"
                flags = ("--advertise", advertise) if advertise else ()
                server = federation.server(*RUN, "--listen", place, *flags)
                self.assertEqual((server.ready["listen"], server.ready["advertise"]), (place, place))
                federation.join("b")
                client = federation.client("b")
                client.wait_for("round 1: update accepted")
                self.assertIn(place, client.stderr())
                client.kill()
                server.kill()

    def test_a_server_on_any_ipv6_address_takes_ipv4_too(self):
        federation = self.make()
        federation.server(*RUN, "--min-clients", 2, "--listen", f"[::]:{federation.port}", "--advertise", "::1")
        federation.join("b")
        clients = [federation.client("a"), federation.client("b")]  # "a" knows 127.0.0.1.
        for client, place in zip(clients, ("127.0.0.1", "[::1]")):
            client.wait_for("round 1: update accepted")
            self.assertIn(f"{place}:{federation.port}", client.stderr())

    @unittest.skipUnless(can_change_hosts(), "this machine allows no mount namespaces")
    def test_a_name_whose_ipv6_address_does_not_work_costs_one_attempt(self):
        federation = self.make()
        federation.server(*RUN)  # On IPv4 alone.
        (federation.folder / "hosts").write_text("::1 fed.test\n127.0.0.1 fed.test\n")
        readdress(federation, "a", f"fed.test:{federation.port}")
        client = Names.client_with_names(self, federation, "--proxy", "none")
        client.wait_for("round 1: update accepted")
        self.assertNotIn("refused", client.stderr())


if __name__ == "__main__":
    unittest.main()
