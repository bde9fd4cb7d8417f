# SPDX-License-Identifier: Apache-2.0
"""Programs for ARM64 under QEMU get the same models as those for x86_64, bit for bit.

`./dev arm64` makes those programs and runs this. Without them nothing is tested here."""

import shutil
import subprocess
import unittest

from federation import BIN, SOURCE, FederationTest

FOREIGN = SOURCE / "build-arm64"
QEMU = shutil.which("qemu-aarch64")
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
SIZE = ("--model", "synthetic:20000")
# Each codec, each rule, and the methods whose server has arithmetic of its own.
KINDS = (
    ("--codec", "none"),
    ("--codec", "lossless", "--downlink-codec", "lossless"),
    ("--codec", "fp16", "--downlink-codec", "bf16"),
    ("--codec", "qsgd:4"),
    ("--codec", "kbit:4+ef", "--downlink-codec", "kbit:8"),
    ("--codec", "terngrad"),
    ("--codec", "sign+ef"),
    ("--codec", "eden:2"),
    ("--codec", "ecuq:4+ef", "--downlink-codec", "ecuq:2"),
    ("--codec", "powersgd:2+ef"),
    ("--codec", "gradzip:2"),
    ("--codec", "countsketch:5x4000"),
    ("--codec", "topk:0.01+ef"),
    ("--codec", "randk:0.05"),
    ("--aggregate", "median"),
    ("--aggregate", "nnm+trimmed:1"),
    ("--aggregate", "geomedian"),
    ("--aggregate", "centered-clip:10"),
    ("--strategy", "fedadam"),
    ("--strategy", "scaffold"),
)


@unittest.skipUnless(
    QEMU and (FOREIGN / "bin" / "fl-sim").exists(),
    "NOTHING WAS TRIED FOR ARM64: ./dev arm64 builds its programs",
)
class Arm64(FederationTest):
    names = ("a", "b", "c")

    def foreign(self, program):
        """The words that run a program of ARM64."""
        return [QEMU, "-L", FOREIGN / "root", FOREIGN / "bin" / program]

    def simulate(self, federation, program, kind):
        """Returns the digest of the last model, and the bytes of the whole run."""
        folder = federation.folder / f"state-{len(federation.programs)}"
        flags = ("--state", folder, "--clients", 5, "--min-clients", 5, "--rounds", 3, "--threads", 2)
        done = federation.start("sim", [*program, *flags, *SIZE, *kind])
        self.expect_exit(done)
        code, table, err = federation.command("fl-server", "--state", folder, "history", "--json")
        self.assertEqual(code, 0, err)
        return done.stdout().split("model digest ")[1].split()[0], table

    def test_simulated_federations_get_the_same_models(self):
        federation = self.make()
        digests = []
        for kind in KINDS:
            with self.subTest(" ".join(kind)):
                here, _ = self.simulate(federation, [BIN / "fl-sim"], kind)
                there, _ = self.simulate(federation, self.foreign("fl-sim"), kind)
                self.assertEqual(here, there)
                digests.append(here)
        self.assertGreater(len(set(digests)), len(KINDS) // 2)

    def run_real(self, name, foreign_clients, kind):
        """Returns the digests of a federation of this machine's server, and clients of which the
        first `foreign_clients` are programs of ARM64."""
        federation = self.make(name)
        run = (*SIZE, "--rounds", 4, "--deadline", 0, "--min-clients", len(self.names))
        started = [federation.server("--new-run", *run, *kind)]
        for number, client in enumerate(self.names):
            if number < foreign_clients:
                words = [*self.foreign("fl-client"), "--state", federation.folder / client]
                started.append(federation.start(f"client-{client}", words))
            else:
                started.append(federation.client(client))
        for program in started:
            self.expect_exit(program)
        return federation.digests()

    def test_a_client_of_another_processor_changes_no_bit(self):
        for number, kind in enumerate((KINDS[0], KINDS[4], KINDS[8], KINDS[9])):
            with self.subTest(" ".join(kind)):
                alone = self.run_real(f"alone-{number}", 0, kind)
                mixed = self.run_real(f"mixed-{number}", 1, kind)
                self.assertEqual(len(set(alone)), 5)
                self.assertEqual(alone, mixed)

    def test_a_server_of_another_processor_goes_on_with_a_run(self):
        """Killed in its third round, the server's state moves to the other processor."""
        kind = ("--codec", "kbit:4+ef", "--downlink-codec", "kbit:8")
        alone = self.run_real("alone", 0, kind)
        federation = self.make("moved")
        run = (*SIZE, "--rounds", 4, "--deadline", 0, "--min-clients", len(self.names))
        server = federation.server("--new-run", *run, *kind, failpoint="round.committed:2")
        clients = [federation.client(name) for name in self.names]
        self.expect_exit(server, -9)
        places = ("--state", federation.state, "--listen", f"127.0.0.1:{federation.port}")
        server = federation.start("server", [*self.foreign("fl-server"), *places, "--admin", "off"])
        for program in (server, *clients):
            self.expect_exit(program)
        self.assertEqual(federation.digests(), alone)

    @unittest.skipUnless(OBJDUMP, "there is no aarch64-linux-gnu-objdump")
    def test_nothing_multiplies_and_adds_in_one_step(self):
        """GCC does so on ARM64 unless told otherwise, and rounds once instead of twice."""
        library = FOREIGN / "bin" / "libfl-codec.so"
        command = [OBJDUMP, "--disassemble", "--no-show-raw-insn", library]
        words = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        self.assertIn("fmul", words)
        self.assertFalse(words & {"fmadd", "fmsub", "fnmadd", "fnmsub", "fmla", "fmls"})


if __name__ == "__main__":
    unittest.main()
