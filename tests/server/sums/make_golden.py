#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden.txt: what byzfl 0.0.11 makes of random updates by each robust rule.

Run once, in a virtual environment with `pip install byzfl==0.0.11 numpy scipy`; the tests read the
file and need neither. Lines: "input NAME ROWS COLUMNS" with the values row after row, and "case
INPUT SPEC" with the result. The last row of an input is the center of centered-clip, not an update.

    make_golden.py > golden.txt
"""

import numpy
from byzfl.aggregators import aggregators as rules
from byzfl.aggregators import preaggregators as mixing

# Name, updates, outliers among them, elements.
INPUTS = [("five", 5, 1, 7), ("ten", 10, 2, 20), ("eleven", 11, 3, 33), ("many", 40, 9, 6)]


def draw(random, updates, outliers, elements):
    common = random.normal(size=elements)
    rows = common + 0.5 * random.normal(size=(updates + 1, elements))
    rows[:outliers] = 5 * random.normal(size=(outliers, elements))
    rows[:updates] = random.permutation(rows[:updates])
    return rows.astype(numpy.float32).astype(numpy.float64)


def clipping(center, clip):
    rule = rules.CenteredClipping(tau=clip)
    rule.m = center  # The center's constructor takes none.
    return rule


def cases(updates, outliers, center):
    f = min(outliers, (updates - 3) // 2)
    krum_most = (updates - 3) // 2
    yield "median", rules.Median(), None
    yield f"trimmed:{outliers}", rules.TrMean(outliers), outliers
    yield "trimmed:0.2", rules.TrMean(-(-updates // 5)), -(-updates // 5)
    yield "krum", rules.Krum(krum_most), krum_most
    yield f"krum:{f}", rules.Krum(f), f
    yield f"multikrum:{f},{updates - f}", rules.MultiKrum(f), f
    yield "geomedian", rules.GeometricMedian(nu=1e-9, T=5000), None
    for clip in (0.5, 2.0, 1000.0):
        yield f"centered-clip:{clip}", clipping(center, clip), None


def show(values):
    # Nine digits give a float back exactly; the results need no more either.
    return " ".join(f"{value:.9g}" for value in numpy.asarray(values).ravel())


def main():
    random = numpy.random.default_rng(2028)
    for name, updates, outliers, elements in INPUTS:
        rows = draw(random, updates, outliers, elements)
        print(f"input {name} {updates + 1} {elements}\n{show(rows)}")
        vectors, center = rows[:updates], rows[updates]
        # Centered clipping remembers its last result, so each call gets a rule of its own.
        for spec, rule, _ in cases(updates, outliers, center):
            print(f"case {name} {spec}\n{show(rule(vectors))}")
        for spec, rule, own in cases(updates, outliers, center):
            mix = own if own is not None else (updates - 1) // 2
            print(f"case {name} nnm+{spec}\n{show(rule(mixing.NNM(mix)(vectors)))}")
        for spec, rule, _ in cases(updates, outliers, center):
            print(f"case {name} nnm:1+{spec}\n{show(rule(mixing.NNM(1)(vectors)))}")


if __name__ == "__main__":
    main()
