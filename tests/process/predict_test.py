# SPDX-License-Identifier: Apache-2.0
"""fl-client predict: what a run's model predicts is what the run has measured. Follows the part of
docs/guide/models.md about it, too."""

import csv
import json
import random
import shutil
import struct
import subprocess
import sys
import unittest

from document_reader import Reader, blocks_of
from federation import BIN, SOURCE, FederationTest, write_images_in_all_formats

SCHEMA = {"columns": {"age": "number", "sex": ["female", "male"], "dose": "number"}, "target": ["no", "yes"]}


def write_patients(folder, count):
    """A table of words and numbers, of which some are missing, and its schema. Returns the classes."""
    draw = random.Random(7)
    lines, classes = ["name,sex,readmitted,dose,age"], []
    for number in range(count):
        age, dose = draw.gauss(50, 12), draw.gauss(0.02, 0.005)
        sex = draw.choice(["female", "male", ""])
        score = (age - 50) / 12 + (dose - 0.02) / 0.005 + {"female": 1, "male": -1, "": 0}[sex]
        classes.append("yes" if score + draw.gauss(0, 0.5) > 0 else "no")
        shown = "" if number % 9 == 4 else f"{age:.1f}"
        lines.append(f'"no. {number}",{sex},{classes[-1]},{dose:.5f},{shown}')
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    (folder / "patients.json").write_text(json.dumps(SCHEMA))
    return classes


@unittest.skipUnless((BIN / "libfl-torch.so").exists(), "built without libtorch")
class Predict(FederationTest):
    names = ("north", "south", "tester")
    evaluators = ("tester",)

    def predict(self, federation, *flags):
        """The header and the rows of the table."""
        code, out, err = federation.command("fl-client", "predict", "--threads", 1, *flags)
        self.assertEqual(code, 0, err)
        header, *rows = csv.reader(out.splitlines())
        return header, rows

    def refuse(self, federation, words, *flags, code=1):
        got, out, err = federation.command("fl-client", "predict", *flags)
        self.assertEqual((got, out), (code, ""), err)
        for word in words:
            self.assertIn(word, err)

    def simulate(self, federation, *flags):
        code, _, err = federation.command("fl-sim", "--state", federation.state, *flags)
        self.assertEqual(code, 0, err)

    def export(self, federation, *flags):
        file = federation.folder / "model.safetensors"
        code, _, err = federation.server_command("export", *flags, file)
        self.assertEqual(code, 0, err)
        return file

    def newest(self, federation, metric):
        """The newest version that the evaluator has measured, and its value."""
        return federation.query(
            "SELECT version, value FROM metric WHERE name = ? AND evaluator"
            " AND run_id = (SELECT max(id) FROM run) ORDER BY version DESC LIMIT 1",
            metric,
        )[0]

    def test_classes_of_a_table_are_as_right_as_the_history_says(self):
        federation = self.make()
        classes = write_patients(federation.folder, 300)
        table = federation.folder / "patients.csv"
        schema = f"schema={federation.folder}/patients.json"
        data = f"csv:{table},target=readmitted,ignore=name,{schema}"
        server = federation.server(
            "--new-run", "--model", "mlp:4-8-2", "--rounds", 8, "--min-clients", 2, "--lr", 0.1
        )
        clients = [
            federation.client(name, "--data", data, "--shard", f"{i + 1}/2", "--threads", 1)
            for i, name in enumerate(self.names[:2])
        ]
        tester = federation.client("tester", "--data", data, "--evaluate-only", "--threads", 1)
        for program in (server, *clients, tester):
            self.expect_exit(program)
        version, accuracy = self.newest(federation, "accuracy")
        model = self.export(federation, "--round", version)

        header, rows = self.predict(federation, "--model", model, "--data", data)
        self.assertEqual(header, ["row", "class", "p_no", "p_yes"])
        self.assertEqual([row[0] for row in rows], [str(n + 1) for n in range(300)])
        right = sum(row[1] == wanted for row, wanted in zip(rows, classes))
        self.assertAlmostEqual(right / 300, accuracy, delta=1e-9)
        self.assertGreater(accuracy, 0.8)
        for _, name, no, yes in rows:
            self.assertAlmostEqual(float(no) + float(yes), 1, delta=1e-6)
            self.assertEqual(name, "yes" if float(yes) > float(no) else "no")

        # Without the target, in another order of columns, and with the server's own file.
        lines = list(csv.DictReader(table.read_text().splitlines()))
        new = federation.folder / "new.csv"
        with new.open("w") as file:
            writer = csv.DictWriter(file, ["dose", "age", "sex"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(lines)
        checkpoint = federation.checkpoints / f"round-{version:06}.safetensors"
        again = self.predict(federation, "--model", checkpoint, "--data", f"csv:{new},{schema}")
        self.assertEqual(again, (header, rows))

    def test_images_are_predicted_by_their_files(self):
        federation = self.make()
        idx, npz, images = write_images_in_all_formats(federation.folder / "data", ("a", "b"))
        flags = ("--clients", 2, "--rounds", 6, "--lr", 0.05, "--batch-size", 8, "--data", idx)
        self.simulate(federation, "--model", "cnn", *flags, "--test", idx)
        version, accuracy = self.newest(federation, "accuracy")
        model = self.export(federation, "--round", version)
        header, rows = self.predict(federation, "--model", model, "--data", images)
        self.assertEqual(header, ["file", "class", *[f"p_{n}" for n in range(10)]])
        self.assertEqual(rows[0][0], "0/0000.png")
        right = sum(name.split("/")[0] == wanted for name, wanted, *_ in rows)
        self.assertAlmostEqual(right / len(rows), accuracy, delta=1e-9)
        # PNG keeps the pixels, so other readers give the same.
        (federation.folder / "data/idx/train-labels-idx1-ubyte").unlink()
        for data in (idx, npz):
            _, others = self.predict(federation, "--model", model, "--data", data)
            self.assertEqual([row[1:] for row in others], [row[1:] for row in rows])
        # New ones lie in no class's folder.
        shutil.move(federation.folder / "data/images/3/0036.png", federation.folder / "data/images")
        _, moved = self.predict(federation, "--model", model, "--data", images)
        (found,) = [row for row in moved if row[0] == "0036.png"]
        for got, want in zip(found[2:], rows[36][2:]):
            self.assertAlmostEqual(float(got), float(want), delta=1e-5)

    def test_values_are_in_the_unit_of_the_data(self):
        federation = self.make()
        table = federation.folder / "table.csv"
        draw = random.Random(3)
        targets = []
        with table.open("w") as file:
            file.write("time,load,price\n")
            for _ in range(400):
                variation, load = draw.gauss(0, 1), draw.gauss(3000, 400)
                targets.append(50_000 + 800 * variation - 2 * (load - 3000))
                file.write(f"{1_700_000_000 + 900 * variation:.1f},{load:.2f},{targets[-1]:.3f}\n")
        data = f"csv:{table},target=price"
        flags = ("--clients", 2, "--rounds", 30, "--lr", 0.1, "--data", data, "--test", data)
        self.simulate(federation, "--model", "linear:2-1", *flags)
        version, mae = self.newest(federation, "mae")
        output = federation.folder / "predictions.csv"
        model = self.export(federation, "--round", version)
        code, out, err = federation.command(
            "fl-client", "predict", "--model", model, "--data", data, "--output", output
        )
        self.assertEqual((code, out), (0, ""), err)
        header, *rows = csv.reader(output.read_text().splitlines())
        self.assertEqual(header, ["row", "price"])
        errors = [abs(float(value) - target) for (_, value), target in zip(rows, targets)]
        self.assertAlmostEqual(sum(errors) / 400 / mae, 1, delta=1e-3)
        self.assertLess(mae, 50)

    def test_what_can_not_be_predicted_is_refused_with_what_to_do(self):
        federation = self.make()
        write_patients(federation.folder, 40)
        schema = f"schema={federation.folder}/patients.json"
        data = f"csv:{federation.folder}/patients.csv,target=readmitted,ignore=name,{schema}"
        flags = ("--clients", 1, "--rounds", 1, "--data", data)
        self.simulate(federation, "--model", "logistic:4-2", *flags)
        model = self.export(federation)
        good = ("--model", model, "--data", data)
        self.refuse(federation, ["takes 4 values an example", "has 2", "target="], *good[:3],
                    f"csv:{federation.folder}/patients.csv,target=readmitted,ignore=name+sex")  # fmt: skip
        self.refuse(federation, ["--spec says", "leave out --spec"], *good, "--spec", "logistic:4-3")
        self.refuse(federation, ["No such file", "nowhere"], "--model", "nowhere", "--data", data)
        self.refuse(federation, ["required"], "--model", model, code=2)
        self.refuse(federation, ["--state"], *good, "--state", "x", code=2)

        # As another program would write it: no metadata.
        raw = model.read_bytes()
        (length,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + length])
        del header["__metadata__"]
        text = json.dumps(header).encode()
        plain = federation.folder / "plain.safetensors"
        plain.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
        self.refuse(federation, ["does not say which model", "--spec"], "--model", plain, "--data", data)
        spec = ("--spec", "logistic:4-2")
        wanted = self.predict(federation, *good)
        self.assertEqual(self.predict(federation, "--model", plain, "--data", data, *spec), wanted)
        words = ["fc.weight has shape [2, 4], expected [2, 5]", "fl-server export"]
        self.refuse(federation, words, "--model", plain, "--data", data, "--spec", "logistic:5-2")
        plain.write_bytes(b"\x80\x02}q\x00." * 50)
        self.refuse(federation, ["plain.safetensors"], "--model", plain, "--data", data, *spec)

        output = federation.folder / "predictions.csv"
        output.write_text("old")
        bad = federation.folder / "bad.csv"
        bad.write_text("age,sex,dose\n1,other,2\n")
        self.refuse(federation, ['"other" is not one of the 2 words'], "--model", model, "--data",
                    f"csv:{bad},{schema}", "--output", output)  # fmt: skip
        self.assertEqual(output.read_text(), "old")
        self.assertFalse((federation.folder / "predictions.csv.tmp").exists())
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [BIN / "fl-client", "predict", *good], stdout=full, stderr=subprocess.PIPE, text=True
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("write to standard output: No space left on device", done.stderr)

    def test_the_page_on_models_is_right(self):
        state = self.root / self.id()
        tools = {
            program: f'#!/bin/sh\nexec {BIN / program} "$@"\n'
            for program in ("fl-server", "fl-client", "fl-sim")
        }
        tools["python3"] = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        reader = Reader(state / "page", tools)
        self.addCleanup(reader.close)
        blocks = blocks_of((SOURCE / "docs/guide/models.md").read_text())
        followed = [b for b in blocks if b.heading in ("Use a model", "The formula")]
        self.assertGreater(len(followed), 3)
        for block in followed:
            reader.follow(block)


if __name__ == "__main__":
    unittest.main()
