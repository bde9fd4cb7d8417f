# SPDX-License-Identifier: Apache-2.0
"""A second implementation of what secure aggregation computes, from docs/design/secure-aggregation.md
alone, in Python with other libraries where there are any. golden.txt is what it says of one attempt:
protocol_test.cpp compares our C++ with it. `oracle.py --write` makes it anew; without that it is a test
that the file is what this program makes, and that the attempt opens to the right sum."""

import hashlib
import pathlib
import struct
import sys

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

GOLDEN = pathlib.Path(__file__).with_name("golden.txt")
FIELD = (1 << 128) | 0x87
WORDS = 5
RAW = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def digest(*parts):
    return hashlib.sha256(b"".join(struct.pack("<Q", len(p)) + p for p in parts)).digest()


def derive(secret, salt, info):
    return HKDF(hashes.SHA256(), 32, salt, info.encode()).derive(secret)


def words_of(key, count):
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return struct.unpack(f"<{count}Q", cipher.update(bytes(8 * count)))


def agree(secret, public):
    own = x25519.X25519PrivateKey.from_private_bytes(secret)
    return own.exchange(x25519.X25519PublicKey.from_public_bytes(public))


def agreement_key(secret):
    return x25519.X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(*RAW)


def multiply(a, b):
    product = 0
    while b:
        if b & 1:
            product ^= a
        b >>= 1
        a <<= 1
        if a >> 128:
            a ^= FIELD
    return product


def inverse(a):
    result, power = 1, a
    for _ in range(127):
        power = multiply(power, power)
        result = multiply(result, power)
    return result


def halves(secret):
    return [int.from_bytes(secret[i : i + 16], "big") for i in (0, 16)]


def share(secret, threshold, coefficients, index):
    random = struct.pack(f"<{4 * (threshold - 1)}Q", *words_of(coefficients, 4 * (threshold - 1)))
    polynomials = [halves(secret)]
    polynomials += [halves(random[32 * k : 32 * k + 32]) for k in range(threshold - 1)]
    value = b""
    for half in (0, 1):
        sum, power = 0, 1
        for coefficient in polynomials:
            sum ^= multiply(coefficient[half], power)
            power = multiply(power, index)
        value += sum.to_bytes(16, "big")
    return value


def combine(shares):
    secret = b""
    for half in (0, 1):
        sum = 0
        for x, value in shares.items():
            weight = 1
            for other in shares:
                if other != x:
                    weight = multiply(weight, multiply(other, inverse(other ^ x)))
            sum ^= multiply(halves(value)[half], weight)
        secret += sum.to_bytes(16, "big")
    return secret


class Client:
    def __init__(self, name, context):
        self.name = name
        self.site = ed25519.Ed25519PrivateKey.from_private_bytes(digest(b"site", name.encode()))
        self.site_key = self.site.public_key().public_bytes(*RAW)
        self.seed = digest(b"seed", name.encode())
        self.mask, self.share, self.self = [
            derive(self.seed, bytes(32), f"tributary {what} 1")
            for what in ("mask key", "share key", "self seed")
        ]
        self.mask_key, self.share_key = agreement_key(self.mask), agreement_key(self.share)
        self.self_digest = digest(b"tributary self seed 1", self.self)
        keys = (self.mask_key, self.share_key, self.self_digest)
        self.signature = self.site.sign(
            digest(b"tributary keys 1", context, name.encode(), *keys)
        )
        self.plain = [1000 * (ord(name[0]) - 96) + 7 * w for w in range(WORDS)]

    def shares(self, threshold, transcript, index):
        return b"".join(
            share(secret, threshold, derive(self.seed, transcript, f"tributary {what} coefficients 1"),
                  index)
            for secret, what in ((self.mask, "mask"), (self.self, "self"))
        )  # fmt: skip


def attempt(say):
    """Four clients, of which the last one is gone after it has shared its secrets."""
    context = digest(b"the context of the golden attempt")
    clients = [Client(name, context) for name in ("alpha", "beta", "gamma", "mu")]
    n = len(clients)
    threshold = 2 * (n - 1) // 3 + 1
    transcript = digest(
        b"tributary cohort 1", context, struct.pack("<Q", n), struct.pack("<Q", threshold)
    )
    for c in clients:
        transcript = digest(
            transcript, c.name.encode(), c.site_key, c.mask_key, c.share_key, c.self_digest
        )
    say("context", context)
    say("transcript", transcript)
    for c in clients:
        say(f"site_key {c.name}", c.site_key)
        say(f"keys {c.name}", c.mask_key + c.share_key + c.self_digest)
        say(f"keys_signature {c.name}", c.signature)

    sealed = {}
    for i, giver in enumerate(clients):
        for j, taker in enumerate(clients):
            if i == j:
                continue
            key = derive(agree(giver.share, taker.share_key), transcript,
                         f"tributary shares 1 from {i} to {j}")  # fmt: skip
            both = giver.shares(threshold, transcript, j + 1)
            sealed[i, j] = ChaCha20Poly1305(key).encrypt(bytes(12), both, transcript)
            say(f"sealed {giver.name} {taker.name}", sealed[i, j])

    def pair(i, j):
        return derive(agree(clients[i].mask, clients[j].mask_key), transcript,
                      "tributary pair mask 1")  # fmt: skip

    def add(words, key, sign):
        return [(w + sign * m) % 2**64 for w, m in zip(words, words_of(key, WORDS))]

    survivors = [0, 1, 2]
    total = [0] * WORDS
    for i in survivors:
        words = add(clients[i].plain, derive(clients[i].self, transcript, "tributary self mask 1"), 1)
        for j in range(n):
            if j != i:
                words = add(words, pair(i, j), 1 if i < j else -1)
        say(f"masked {clients[i].name}", struct.pack(f"<{WORDS}Q", *words))
        total = [(t + w) % 2**64 for t, w in zip(total, words)]
    consent = digest(
        b"tributary consent 1", transcript, struct.pack("<4I", 0, 1, 2, 3),
        struct.pack("<3I", 0, 1, 2),
    )  # fmt: skip
    for i in survivors:
        say(f"consent {clients[i].name}", clients[i].site.sign(consent))

    for i in survivors:
        total = add(total, derive(clients[i].self, transcript, "tributary self mask 1"), -1)
    gone = combine({i + 1: clients[3].shares(threshold, transcript, i + 1)[:32] for i in survivors})
    assert gone == clients[3].mask
    for i in survivors:
        key = derive(agree(gone, clients[i].mask_key), transcript, "tributary pair mask 1")
        total = add(total, key, -1)
    assert total == [sum(clients[i].plain[w] for i in survivors) for w in range(WORDS)]
    say("sum", struct.pack(f"<{WORDS}Q", *total))


if __name__ == "__main__":
    lines = []
    attempt(lambda what, value: lines.append(f"{what} {value.hex()}\n"))
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text("".join(lines))
    assert GOLDEN.read_text() == "".join(lines), f"{GOLDEN} is not what this program makes"
