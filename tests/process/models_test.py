# SPDX-License-Identifier: Apache-2.0
"""Built-in models whose sizes stand in their names, in runs of the real programs: what they know of
all clients' values, and clients whose data do not fit."""

import random
import struct
import unittest

from federation import BIN, FederationTest, wait_until, write_images
from sim_test import read_tensors

PIXELS = 28 * 28


def pixel_values(examples):
    """The values of write_images() by pixel."""
    values = [float32(i % 256 / 255) for i in range(examples * PIXELS)]
    return [values[pixel::PIXELS] for pixel in range(PIXELS)]


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def moments(values):
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / len(values)


@unittest.skipUnless((BIN / "libfl-torch.so").exists(), "built without libtorch")
class Models(FederationTest):
    names = ("client-1", "client-2", "client-3")  # As fl-sim calls its clients.

    def clients(self, federation, data, *flags):
        for i, name in enumerate(self.names):
            shard = ("--shard", f"{i + 1}/3", "--holdout", 0, "--threads", 1)
            yield federation.client(name, "--data", f"idx:{data}", *shard, *flags)

    def versions(self, federation):
        return federation.query(
            "SELECT version, digest FROM checkpoint WHERE run_id = (SELECT max(id) FROM run)"
        )

    def test_a_model_scales_by_the_mean_and_variance_of_all_clients_values(self):
        """The run of the real programs, whose server dies when the initial model is recorded, and
        that of fl-sim begin with the same values and end in the same model."""
        federation = self.make()
        examples = 50
        data = write_images(federation.folder / "data", examples)
        run = ("--model", f"linear:{PIXELS}-1", "--rounds", 2, "--lr", 0.001, "--batch-size", 8)
        run = (*run, "--deadline", 0, "--codec", "none", "--keep-checkpoints", 5)
        server = federation.server(
            "--new-run", "--min-clients", 3, *run, failpoint="initial.committed"
        )
        clients = list(self.clients(federation, data))
        server.wait()
        server = federation.server()
        for program in (server, *clients):
            self.expect_exit(program)
        real = self.versions(federation)
        self.assertEqual([version for version, _ in real], [0, 1, 2])

        initial = read_tensors(federation.checkpoints / "round-000000.safetensors")
        wanted = [moments(values) for values in pixel_values(examples)]
        for pixel, (mean, variance) in enumerate(wanted):
            self.assertAlmostEqual(initial["input.running_mean"][pixel], mean, delta=1e-6)
            self.assertAlmostEqual(initial["input.running_var"][pixel], variance, delta=1e-6)
        mean, variance = moments([i % 10 for i in range(examples)])
        self.assertAlmostEqual(initial["target.running_mean"][0], mean, delta=1e-5)
        self.assertAlmostEqual(initial["target.running_var"][0], variance, delta=1e-5)
        trained = read_tensors(federation.checkpoints / "round-000002.safetensors")
        self.assertEqual(trained["input.running_var"], initial["input.running_var"])
        self.assertNotEqual(trained["fc.weight"], initial["fc.weight"])

        flags = ("--clients", 3, "--min-clients", 3, "--data", f"idx:{data}", *run)
        code, _, err = federation.command("fl-sim", "--state", federation.state, *flags)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.versions(federation), real)

    def test_moments_go_on_from_round_to_round_whoever_dies(self):
        """A client dies after it has trained round 2, before its update is on the disk, and trains
        that round again from the moments of round 1."""
        federation = self.make()
        data = write_images(federation.folder / "data", 60)
        run = ("--model", "logistic", "--rounds", 4, "--lr", 0.01, "--batch-size", 8)
        run = (*run, "--optimizer", "adam", "--deadline", 0, "--codec", "ecuq:4+ef")
        run = (*run, "--keep-checkpoints", 9)
        server = federation.server("--new-run", "--min-clients", 3, *run)
        clients = {
            name: client
            for name, client in zip(self.names, self.clients(federation, data, "--keep-moments"))
        }
        wait_until("a round is over", lambda: federation.rounds_done() >= 1)
        clients["client-2"].kill()
        shard = ("--shard", "2/3", "--holdout", 0, "--threads", 1, "--keep-moments")
        doomed = ("client-2", "--data", f"idx:{data}", *shard)
        dying = federation.client(*doomed, failpoint="update.trained")
        wait_until("it has died or ended", lambda: not dying.running())
        clients["client-2"] = federation.client(*doomed)
        for program in (server, *clients.values()):
            self.expect_exit(program)
        real = self.versions(federation)
        kept = sorted(file.name[-18:] for file in (federation.folder / "client-2").glob("optimizer-*"))
        self.assertEqual(kept, ["000003.safetensors", "000004.safetensors"])
        flags = ("--clients", 3, "--min-clients", 3, "--data", f"idx:{data}", *run)
        simulated = []
        for more in (("--keep-moments",), ()):
            code, _, err = federation.command("fl-sim", "--state", federation.state, *flags, *more)
            self.assertEqual(code, 0, err)
            simulated.append(self.versions(federation))
        self.assertEqual(simulated[0], real)
        self.assertNotEqual(simulated[1], real)

    def test_three_hospitals_tables_give_the_regression_of_all_of_them(self):
        """One table a run, divided by its column `site`; the sites' patients differ, and some values
        are missing. Compared with the line that the data were made from."""
        federation = self.make()
        random.seed(5)
        lines = ["site,age,dose,pressure"]
        for i in range(600):
            site = i % 3
            age, dose = random.gauss(40 + 10 * site, 8), random.gauss(2000, 500)
            pressure = 70 + 1.5 * age - 0.01 * dose + random.gauss(0, 2)
            lines.append(f"{'abc'[site]},{age:.2f},{dose:.0f},{pressure:.3f}")
        table = federation.folder / "table.csv"
        table.write_text("\n".join(lines) + "\n")
        data = ("--data", f"csv:{table},target=pressure", "--partition", "by:site")
        run = ("--model", "linear:2-1", "--rounds", 60, "--lr", 0.05, "--batch-size", 32)
        flags = ("--clients", 3, "--min-clients", 3, "--holdout", 0.2, *data, *run)
        code, out, err = federation.command("fl-sim", "--state", federation.state, *flags)
        self.assertEqual(code, 0, err)
        # The held-out examples of the version before the last: the last is not evaluated by trainers.
        measured = federation.query(
            "SELECT value FROM metric WHERE name = 'r2' AND version = (SELECT max(version) FROM metric)"
        )
        self.assertEqual(len(measured), 3)
        tensors = read_tensors(federation.checkpoints / "round-000060.safetensors")
        deviation = tensors["target.running_var"][0] ** 0.5
        for i, slope in enumerate((1.5, -0.01)):
            scale = deviation / tensors["input.running_var"][i] ** 0.5
            self.assertAlmostEqual(tensors["fc.weight"][i] * scale / slope, 1, delta=0.03)
        self.assertGreater(min(value for (value,) in measured), 0.95)

    def test_times_and_coordinates_keep_what_tells_them_apart(self):
        """A column far from 0 that varies little, of which the target is the variation."""
        federation = self.make()
        random.seed(9)
        table = federation.folder / "table.csv"
        for base, scale in ((1_700_000_000, 900), (52.52, 0.0001), (5_432_100, 0.3)):
            lines = ["x,y"]
            for _ in range(400):
                variation = random.gauss(0, 1)
                lines.append(f"{base + scale * variation:.6f},{variation:.6f}")
            table.write_text("\n".join(lines) + "\n")
            data = f"csv:{table},target=y"
            flags = ("--clients", 2, "--data", data, "--test", data, "--local-epochs", 3)
            run = ("--model", "linear:1-1", "--rounds", 15, "--lr", 0.1)
            code, _, err = federation.command("fl-sim", "--state", federation.state, *flags, *run)
            self.assertEqual(code, 0, err)
            ((error,),) = federation.query(
                "SELECT min(value) FROM metric WHERE name = 'mae'"
                " AND run_id = (SELECT max(id) FROM run)"
            )
            self.assertLess(error, 0.05, base)

    def test_values_that_no_model_can_scale_are_refused_by_the_name_of_their_column(self):
        federation = self.make()
        table = federation.folder / "table.csv"
        for unit, remedy in (("e20", "divide"), ("e-25", "multiply")):
            table.write_text("mass,age,y\n" + "".join(f"{i}{unit},{i % 7},{i}\n" for i in range(20)))
            flags = ("--clients", 1, "--rounds", 1, "--data", f"csv:{table},target=y")
            code, _, err = federation.command(
                "fl-sim", "--state", federation.state, *flags, "--model", "linear:2-1"
            )
            self.assertEqual(code, 1)
            self.assertIn('column "mass": its values deviate by', err)
            self.assertIn(f"{remedy} it by a number that all members share", err)

    def test_a_language_model_learns_from_folders_of_text(self):
        federation = self.make()
        folder = federation.folder / "books"
        for number, words in enumerate(("the cat sat. ", "a dog ran. ", "the dog sat. ")):
            (folder / f"shelf-{number % 2}").mkdir(parents=True, exist_ok=True)
            (folder / f"shelf-{number % 2}" / f"{number}.txt").write_text(words * 600)
        model = "transformer:layers=1,width=32,heads=2,context=32"
        data = ("--data", f"text:{folder}", "--partition", "by:file", "--holdout", 0.2)
        run = ("--model", model, "--rounds", 8, "--optimizer", "adam", "--lr", 0.01)
        flags = ("--clients", 3, *data, *run, "--batch-size", 8)
        code, out, err = federation.command("fl-sim", "--state", federation.state, *flags)
        self.assertEqual(code, 0, err)
        self.assertIn("perplexity", out)
        rows = federation.query("SELECT min(value), max(value) FROM metric WHERE name = 'perplexity'")
        ((best, worst),) = rows
        self.assertGreater(worst, 200)  # 256 bytes that are equally likely.
        self.assertLess(best, 2.5)

    def test_a_robust_rule_takes_medians_of_what_clients_tell(self):
        federation = self.make()
        data = write_images(federation.folder / "data", 45)
        run = ("--model", f"linear:{PIXELS}-1", "--rounds", 1, "--aggregate", "median")
        flags = ("--clients", 3, "--min-clients", 3, "--data", f"idx:{data}", "--partition", "labels:4")
        code, _, err = federation.command("fl-sim", "--state", federation.state, *flags, *run)
        self.assertEqual(code, 0, err)
        initial = read_tensors(federation.checkpoints / "round-000000.safetensors")
        # Labels 0 to 9 in turn: a mean over all of them would be 4.4.
        self.assertNotAlmostEqual(initial["target.running_mean"][0], 4.4, delta=1e-3)
        self.assertGreater(initial["target.running_var"][0], 0)

    def test_a_client_whose_data_have_other_sizes_says_both_and_takes_no_part(self):
        federation = self.make()
        data = write_images(federation.folder / "data", 30)
        server = federation.server("--new-run", "--model", "cnn:3x32x32-10", "--min-clients", 1)
        client = federation.client("client-1", "--data", f"idx:{data}")
        self.assertEqual(client.wait(), 1)
        said = f'takes images of 3x32x32, but "idx:{data}" has examples of 1x28x28'
        self.assertIn(said, client.stderr())
        told = "SELECT count(*) FROM event WHERE text LIKE ?"
        wait_until(
            "the server has noted the reason",
            lambda: federation.query(told, f"client-1 can't take part: %{said}%") == [(1,)],
        )
        server.signal(2)
        self.expect_exit(server)


if __name__ == "__main__":
    unittest.main()
