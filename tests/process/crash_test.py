# SPDX-License-Identifier: Apache-2.0
"""After `kill -9` at any point and a restart, a run ends with the same model as an undisturbed run.

Synthetic updates depend only on the client's name, the run's seed and the round, and every client
is asked in every round. So the digests of all model versions must be equal.
"""

import concurrent.futures
import itertools
import random
import re
import shutil
import signal
import time
import unittest

from federation import (
    BIN,
    PARALLEL,
    FederationTest,
    failpoints,
    memory_folder,
    wait_until,
    write_images,
)

# "lossy" depends on the clients' residuals and the server's carry, "delta" on both ends'
# references. Both keep updates: whatever was killed, the last two rounds are made again.
CODECS = {
    "plain": ("--codec", "none"),
    "lossy": ("--codec", "ecuq:4+ef", "--downlink-codec", "qsgd:127", "--keep-updates", 2),
    "delta": ("--codec", "delta+kbit:8", "--keep-updates", 2),
}
# 400 kB: an update has more than one chunk.
MODEL = "synthetic:100000"
IS_OVER = f"SELECT 1 FROM run WHERE model = '{MODEL}' AND state = 'finished'"
RUN = ("--new-run", "--model", MODEL, "--min-clients", 3, "--deadline", 0)
# Two clients are enough for walks over disk steps: a third one adds no new kind of step.
PAIR = ("a", "b")


def run_of(names):
    return (*RUN, "--min-clients", len(names))


def keep_alive(federation, server, clients, limit_s=120, flags=()):
    """Restarts killed programs until the server has finished the run. While there is no run, the
    server restarts with `flags`. Returns the number of restarts. Raises AssertionError if a program
    ends with an error other than SIGKILL."""
    restarts = 0
    end = time.monotonic() + limit_s
    while (code := server.process.poll()) != 0:
        if code == -signal.SIGKILL:
            if federation.query(IS_OVER):
                return restarts + 1  # All clients already know that the run is over.
            has_run = federation.query(f"SELECT 1 FROM run WHERE model = '{MODEL}'")
            server, restarts = federation.server(*(() if has_run else flags)), restarts + 1
        elif code is not None:
            raise AssertionError(f"the server failed: {server}")
        for name, client in clients.items():
            code = client.process.poll()
            if code == -signal.SIGKILL:
                clients[name], restarts = federation.client(name), restarts + 1
            elif code not in (None, 0):
                raise AssertionError(f"{name} failed: {client}")
        if time.monotonic() > end:
            raise AssertionError(
                f"the run does not end: {server}\n" + "\n".join(map(str, clients.values()))
            )
        time.sleep(0.01)
    return restarts


class Undisturbed(FederationTest):
    place = memory_folder()

    @classmethod
    def reference(cls, codec, rounds, names=None):
        """Returns the digests of an undisturbed run of these clients, by default of all."""
        names = names or cls.names
        federation = cls.template.copy(cls.root / f"undisturbed-{codec}-{rounds}-{len(names)}")
        try:
            server = federation.server(*run_of(names), *CODECS[codec], "--rounds", rounds)
            programs = [server] + [federation.client(name) for name in names]
            codes = [program.wait() for program in programs]
            if any(codes):
                raise AssertionError("\n".join(map(str, programs)))
            return federation.digests()
        finally:
            federation.close()


class Crashes(Undisturbed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = {name: cls.reference(name, 3) for name in CODECS}
        cls.undisturbed_pair = cls.reference("lossy", 3, PAIR)

    def crash_of_pair(self, where, failpoint):
        return self.crash("lossy", where, failpoint, PAIR, self.undisturbed_pair)

    def crash(self, codec, where, failpoint, names=None, wanted=None):
        """Makes a run in which program `where` dies at `failpoint`. Returns whether it died."""
        names, wanted = names or self.names, wanted or self.undisturbed[codec]
        name = f"{codec}-{where}-{failpoint}".replace(":", "-")
        federation = self.template.copy(self.root / name)
        try:
            armed = failpoint if where == "server" else ""
            flags = [*run_of(names), *CODECS[codec], "--rounds", 3]
            server = federation.server_or_killed(*flags, failpoint=armed)
            clients = {
                client: federation.client(client, failpoint=failpoint if where == client else "")
                for client in names
            }
            first = clients.get(where)
            keep_alive(federation, server, clients, flags=flags)
            for name, client in clients.items():
                if client.wait() != 0:
                    raise AssertionError(f"a client did not end with the run: {client}")
            if federation.digests() != wanted:
                raise AssertionError(
                    f"the models differ after a crash of {where} at {failpoint}, codec {codec}"
                )
            if "--keep-updates" in CODECS[codec]:
                self.replay_last_rounds(federation)
            killed = first.process if first else server.process
            return killed.poll() == -signal.SIGKILL
        finally:
            federation.close()
            shutil.rmtree(federation.folder, ignore_errors=True)

    def replay_last_rounds(self, federation):
        (run,) = federation.query("SELECT max(id) FROM run")[0]
        code, out, err = federation.server_command("replay", run)
        if code != 0 or re.findall(r"^round \d+", out, re.MULTILINE) != ["round 2", "round 3"]:
            raise AssertionError(f"the kept rounds are not made again ({code}): {out}{err}")

    def test_every_failpoint(self):
        points = [("server", point) for point in failpoints("server")]
        points += [("a", point) for point in failpoints("client")]
        # Tests below cover the generic failpoint, and those that need an update that is not used, or
        # is missing. A test of trainer_test.py covers that of a version that is no longer the best,
        # masked_test.py those of masked rounds.
        elsewhere = (
            *("disk.step", "update.put_back", "run.versions_dropped"),
            *("replacement.before_added", "replacement.added"),
        )
        points = [
            (where, point)
            for where, point in points
            if point not in elsewhere and not point.startswith(("masked.", "attempt."))
        ]
        self.assertGreater(len(points), 14, "the failpoints were not found in the sources")
        cases = [
            (codec, where, f"{point}:{passage}")
            for codec, (where, point), passage in itertools.product(CODECS, points, (1, 2))
            # initial.committed is passed once in a run, delta.synced only if model steps are coded.
            if (point, passage) != ("initial.committed", 2)
            and (point != "delta.synced" or codec == "lossy")
            and (not point.startswith("kept.") or codec != "plain")
            # Updates of the first round have no reference.
            and (codec, passage) != ("delta", 1)
        ]
        # At the last passage the run is over, but no client knows it.
        cases += [(codec, "server", "round.committed:3") for codec in CODECS]
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            crashes = {pool.submit(self.crash, *case): case for case in cases}
            for done in concurrent.futures.as_completed(crashes):
                with self.subTest(case=crashes[done]):
                    self.assertTrue(done.result(), "the failpoint was never reached")
        print(
            f"{len(cases)} crashes at {len(points)} failpoints in {time.monotonic() - began:.1f} s"
        )

    def test_the_server_at_every_step_on_the_disk(self):
        self.walk_disk_steps(100, lambda failpoint, _: self.crash_of_pair("server", failpoint))

    def test_a_client_at_every_step_on_the_disk(self):
        self.walk_disk_steps(50, lambda failpoint, _: self.crash_of_pair("a", failpoint))

    def test_the_server_as_it_asks_another_client_in_place_of_one(self):
        """c is asked in each round but stopped, so at the deadline b or a is asked instead. The
        model is then that of a and b alone."""
        flags = [*RUN, "--rounds", 2, "--min-clients", 2, "--clients-per-round", 2]
        alone = self.make("alone")
        server = alone.server(*flags, "--keep-checkpoints", 0)
        for program in [server, alone.client("a"), alone.client("b")]:
            self.expect_exit(program)
        flags += ["--deadline", 0.5, "--sampling", "round-robin"]
        # With an initial model from a file, the server does not wait for c before the first round.
        flags += ["--initial-weights", alone.checkpoints / "round-000000.safetensors"]
        for point in ("replacement.before_added", "replacement.added"):
            federation = self.make(point)
            clients = {"c": federation.client("c")}
            server = federation.server(*flags, failpoint=point)
            server.wait_for("c is here")
            clients["c"].pause()
            clients |= {name: federation.client(name) for name in ("a", "b")}
            self.assertEqual(keep_alive(federation, server, clients, flags=flags), 1)
            self.assertEqual(federation.digests(), alone.digests(), point)

    def test_a_client_killed_while_it_puts_an_unused_update_back(self):
        """Each round asks all three clients and needs one update, so the other two are late. There
        are many rounds, because the first ones are over before all clients have connected."""
        federation = self.make()
        flags = "--rounds 60 --min-clients 1 --clients-per-round 1 --over-select 3"
        server = federation.server(*RUN, *CODECS["lossy"], *flags.split())
        clients = {
            name: federation.client(name, failpoint="update.put_back") for name in self.names
        }
        self.assertGreater(keep_alive(federation, server, clients), 0)
        self.assertEqual(federation.rounds_done(), 60)
        for name, client in clients.items():
            client.kill()
            # A client that was killed in the last round has not been restarted.
            again = federation.client(name)
            again.wait_for("trying again")
            again.signal(signal.SIGTERM)
            self.expect_exit(again)
        for state in (federation.folder / name for name in self.names):
            # The manifest also names the files from before a pending update until its verdict.
            manifest = (state / "client.json").read_text()
            strays = [file.name for file in state.glob("*-*") if f'"{file.name}"' not in manifest]
            self.assertEqual(strays, [], "files that a crash left were not removed")

    def test_killing_at_random(self):
        rounds = 300
        wanted = self.reference("lossy", rounds)
        federation = self.make()
        seed = random.SystemRandom().randrange(1 << 32)
        draw = random.Random(seed)
        victims = {"server": federation.server(*RUN, *CODECS["lossy"], "--rounds", rounds)}
        victims |= {name: federation.client(name) for name in self.names}
        kills, is_over = 0, False
        chaos_end = time.monotonic() + 12
        while time.monotonic() < chaos_end and victims["server"].running():
            time.sleep(draw.uniform(0.02, 0.15))
            name = draw.choice(sorted(victims))
            code = victims[name].process.poll()
            self.assertIn(code, (None, 0), f"seed {seed}: {victims[name]}")
            if code is None and victims["server"].running():
                victims[name].kill()
                kills += 1
                # IS_OVER does not match the template's run, which this run has stopped.
                is_over = federation.query(IS_OVER) != []
                if name == "server" and is_over:
                    break  # A server whose run is finished would not start again.
                victims[name] = federation.server() if name == "server" else federation.client(name)
        server = victims.pop("server")
        self.addCleanup(lambda: print(f"killed at random {kills} times, seed {seed}"))
        if not is_over:
            keep_alive(federation, server, victims)
        self.assertGreater(kills, 5)
        self.assertEqual(federation.digests(), wanted, f"seed {seed}")


class Interruptions(Undisturbed):
    """After SIGINT, or a server that is down for a while, the run also ends with the same model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wanted = cls.reference("plain", 4)

    def start(self, federation, rounds=4):
        server = federation.server(*RUN, "--rounds", rounds)
        return server, {name: federation.client(name) for name in self.names}

    def mid_round(self, federation):
        """Waits until two updates of a round are accepted. The third client must be stopped."""

        def is_half():
            return federation.query(
                "SELECT 1 FROM task WHERE run_id = (SELECT max(id) FROM run) AND state = 'accepted'"
                " AND round = (SELECT max(round) FROM round WHERE ended_at IS NULL"
                " AND run_id = (SELECT max(id) FROM run)) GROUP BY round HAVING count(*) = 2"
            )

        wait_until("two updates of three are accepted", is_half)

    def test_interrupting_the_server_in_a_round(self):
        federation = self.make()
        server, clients = self.start(federation)
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        clients["c"].pause()
        self.mid_round(federation)
        began = time.monotonic()
        server.signal(signal.SIGINT)
        self.expect_exit(server, limit_s=20)
        print(f"interrupted in a round: the server ended after {time.monotonic() - began:.2f} s")
        self.assertIn("goes on with the run", server.stderr())
        accepted = "SELECT run_id, round, client FROM task WHERE state = 'accepted'"
        before = set(federation.query(accepted))

        clients["c"].signal(signal.SIGCONT)
        server = federation.server()
        server.wait_for("goes on with 2 accepted updates")
        for program in [server, *clients.values()]:
            self.expect_exit(program)
        self.assertLessEqual(before, set(federation.query(accepted)))
        self.assertEqual(federation.digests(), self.wanted)

    def test_interrupting_a_client(self):
        federation = self.make()
        server, clients = self.start(federation)
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        clients["b"].signal(signal.SIGINT)
        self.expect_exit(clients["b"], limit_s=10)
        clients["b"] = federation.client("b")
        for program in [server, *clients.values()]:
            self.expect_exit(program)
        self.assertEqual(federation.digests(), self.wanted)

    def test_a_server_that_is_down_for_twenty_seconds(self):
        federation = self.make()
        server, clients = self.start(federation)
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        server.kill()
        time.sleep(20)
        for name, client in clients.items():
            self.assertTrue(client.running(), f"{name} gave up: {client}")
        began = time.monotonic()
        server = federation.server()
        for program in [server, *clients.values()]:
            self.expect_exit(program)
        print(f"down for 20 s: the run ended {time.monotonic() - began:.1f} s after the restart")
        self.assertEqual(federation.digests(), self.wanted)


if __name__ == "__main__":
    unittest.main()
