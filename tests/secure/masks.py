# SPDX-License-Identifier: Apache-2.0
"""What a member of a masked round computes, from docs/design/secure-aggregation.md ("What is computed")
alone, in Python with other libraries where there are any: for oracle.py and member.py."""

import hashlib
import struct

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FIELD = (1 << 128) | 0x87
RAW = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def digest(*parts):
    return hashlib.sha256(b"".join(struct.pack("<Q", len(p)) + p for p in parts)).digest()


def derive(secret, salt, info):
    return HKDF(hashes.SHA256(), 32, salt, info.encode()).derive(secret)


def keystream(key, size):
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def agree(secret, public):
    """ValueError: the key is of small order."""
    own = x25519.X25519PrivateKey.from_private_bytes(secret)
    return own.exchange(x25519.X25519PublicKey.from_public_bytes(public))


def agreement_key(secret):
    return x25519.X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(*RAW)


def site_key(secret):
    return ed25519.Ed25519PrivateKey.from_private_bytes(secret)


def public_of(site):
    return site.public_key().public_bytes(*RAW)


def is_signed(key, message, signature):
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key, message, transcript):
    return ChaCha20Poly1305(key).encrypt(bytes(12), message, transcript)


def unseal(key, sealed, transcript):
    """None: these are not bytes of seal()."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, transcript)
    except InvalidTag:
        return None


# Shamir's sharing -----------------------------------------------------------------------------------


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
    random = keystream(coefficients, 32 * (threshold - 1))
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


# An attempt -----------------------------------------------------------------------------------------


def share_threshold(members):
    return 2 * (members - 1) // 3 + 1


def consent_threshold(members):
    return 2 * members // 3 + 1


def self_digest_of(self_seed):
    return digest(b"tributary self seed 1", self_seed)


def keys_digest(context, name, keys):
    return digest(b"tributary keys 1", context, name.encode(), *keys)


def transcript_of(context, members):
    """`members`: of each its name, site key, mask key, share key and self digest."""
    numbers = [struct.pack("<Q", n) for n in (len(members), share_threshold(len(members)))]
    transcript = digest(b"tributary cohort 1", context, *numbers)
    for name, *keys in members:
        transcript = digest(transcript, name.encode(), *keys)
    return transcript


def consent_digest(transcript, sharers, survivors):
    lists = [struct.pack(f"<{len(some)}I", *some) for some in (sharers, survivors)]
    return digest(b"tributary consent 1", transcript, *lists)


def sealing_key(own, other, transcript, giver, taker):
    return derive(agree(own, other), transcript, f"tributary shares 1 from {giver} to {taker}")


def pair_key(own, other, transcript):
    return derive(agree(own, other), transcript, "tributary pair mask 1")


def self_key(self_seed, transcript):
    return derive(self_seed, transcript, "tributary self mask 1")


class Secrets:
    """A member's secrets of one attempt, all from one seed."""

    def __init__(self, seed):
        self.seed = seed
        self.mask, self.share, self.self = [
            derive(seed, bytes(32), f"tributary {what} 1")
            for what in ("mask key", "share key", "self seed")
        ]
        self.mask_key, self.share_key = agreement_key(self.mask), agreement_key(self.share)
        self.self_digest = self_digest_of(self.self)
        self.keys = (self.mask_key, self.share_key, self.self_digest)

    def shares(self, threshold, transcript, index):
        """What the member with this index, from 1, gets: of `mask`, then of `self`."""
        return b"".join(
            share(secret, threshold, derive(self.seed, transcript, f"tributary {what} coefficients 1"),
                  index)
            for secret, what in ((self.mask, "mask"), (self.self, "self"))
        )  # fmt: skip
