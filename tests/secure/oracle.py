# SPDX-License-Identifier: Apache-2.0
"""One attempt of a masked round as masks.py computes it, a second implementation from
docs/design/secure-aggregation.md alone. golden.txt is what it says: protocol_test.cpp compares our C++
with it. `oracle.py --write` makes it anew; without that it is a test that the file is what this program
makes, and that the attempt opens to the right sum."""

import pathlib
import struct
import sys

import masks
from masks import digest

GOLDEN = pathlib.Path(__file__).with_name("golden.txt")
WORDS = 5


def words_of(key):
    return struct.unpack(f"<{WORDS}Q", masks.keystream(key, 8 * WORDS))


class Client(masks.Secrets):
    def __init__(self, name, context):
        super().__init__(digest(b"seed", name.encode()))
        self.name = name
        self.site = masks.site_key(digest(b"site", name.encode()))
        self.site_key = masks.public_of(self.site)
        self.signature = self.site.sign(masks.keys_digest(context, name, self.keys))
        self.plain = [1000 * (ord(name[0]) - 96) + 7 * w for w in range(WORDS)]


def attempt(say):
    """Four clients, of which the last one is gone after it has shared its secrets."""
    context = digest(b"the context of the golden attempt")
    clients = [Client(name, context) for name in ("alpha", "beta", "gamma", "mu")]
    n = len(clients)
    threshold = masks.share_threshold(n)
    transcript = masks.transcript_of(context, [(c.name, c.site_key, *c.keys) for c in clients])
    say("context", context)
    say("transcript", transcript)
    for c in clients:
        say(f"site_key {c.name}", c.site_key)
        say(f"keys {c.name}", b"".join(c.keys))
        say(f"keys_signature {c.name}", c.signature)

    for i, giver in enumerate(clients):
        for j, taker in enumerate(clients):
            if i == j:
                continue
            key = masks.sealing_key(giver.share, taker.share_key, transcript, i, j)
            both = giver.shares(threshold, transcript, j + 1)
            say(f"sealed {giver.name} {taker.name}", masks.seal(key, both, transcript))

    def add(words, key, sign):
        return [(w + sign * m) % 2**64 for w, m in zip(words, words_of(key))]

    survivors = [0, 1, 2]
    total = [0] * WORDS
    for i in survivors:
        words = add(clients[i].plain, masks.self_key(clients[i].self, transcript), 1)
        for j in range(n):
            if j != i:
                key = masks.pair_key(clients[i].mask, clients[j].mask_key, transcript)
                words = add(words, key, 1 if i < j else -1)
        say(f"masked {clients[i].name}", struct.pack(f"<{WORDS}Q", *words))
        total = [(t + w) % 2**64 for t, w in zip(total, words)]
    consent = masks.consent_digest(transcript, range(n), survivors)
    for i in survivors:
        say(f"consent {clients[i].name}", clients[i].site.sign(consent))

    for i in survivors:
        total = add(total, masks.self_key(clients[i].self, transcript), -1)
    shares = {i + 1: clients[3].shares(threshold, transcript, i + 1)[:32] for i in survivors}
    gone = masks.combine(shares)
    assert gone == clients[3].mask
    for i in survivors:
        total = add(total, masks.pair_key(gone, clients[i].mask_key, transcript), -1)
    assert total == [sum(clients[i].plain[w] for i in survivors) for w in range(WORDS)]
    say("sum", struct.pack(f"<{WORDS}Q", *total))


if __name__ == "__main__":
    lines = []
    attempt(lambda what, value: lines.append(f"{what} {value.hex()}\n"))
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text("".join(lines))
    assert GOLDEN.read_text() == "".join(lines), f"{GOLDEN} is not what this program makes"
