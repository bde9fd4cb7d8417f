# SPDX-License-Identifier: Apache-2.0
"""The codec `lanes` and the words of a masked update, from docs/design/payload.md ("Lanes") and
docs/design/secure-aggregation.md ("The words"). Tensors of one or two values, and `randk`, it leaves out."""

import math
import re
import struct

import numpy as np

BLOCK, WIDE_MAX, WIDE_SQUARES_MAX, LOSS_MAX, QUANTIZER = 1 << 16, 1 << 27, 1 << 50, 1 << 14, 2
SQUARES_MAX = (1 << 57) - 1  # Of one client's tensor; the other two counts never come near.


def philox(seed, stream, counters):
    """The four words of each of these counters, by Philox4x32-7."""
    low = np.uint64(0xFFFFFFFF)
    counters = np.asarray(counters, np.uint64)
    x = [counters & low, counters >> np.uint64(32)]
    x += [np.full_like(counters, part) for part in (stream & 0xFFFFFFFF, stream >> 32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        first, second = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        x = [
            (second >> np.uint64(32)) ^ x[1] ^ np.uint64(key[0]),
            second & low,
            (first >> np.uint64(32)) ^ x[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(x, axis=-1)


def random_words(key, count):
    """Element 8 j + k of each 32 is word j of counter k of their 8."""
    counters = np.arange(-(-count // 32) * 8)
    return philox(key, 0, counters).reshape(-1, 8, 4).transpose(0, 2, 1).ravel()[:count]


def block_key(seed, tensor, first):
    words = philox(seed, (QUANTIZER << 32) + tensor, [first])[0]
    return int(words[1]) << 32 | int(words[0])


def dither(seed, tensor, first, count, bits):
    """Multiples of 2^-(20 - bits) between -1/2 and 1/2: their odd numerators."""
    drawn = random_words(block_key(seed, tensor, first), count) >> np.uint64(13 + bits)
    return (2 * drawn.astype(np.int64) + 1 - (1 << (19 - bits))).astype(np.float32)


class Coded:
    """An update of tensors of these sizes, coded for an offer: `blocks` has (S, integers) of each, `tallies`
    (squares, clipped, large) of each tensor, `lost` what coding lost."""

    def __init__(self, update, sizes, offer):
        codec = re.fullmatch(r"lanes:([0-9]+)(\+ef)?", offer.codec)
        if not codec or min(sizes) <= 2:
            raise ValueError(f"this client can't code tensors of {sizes} values by {offer.codec}")
        self.bits, self.has_dither, self.seed = int(codec[1]), not codec[2], offer.seed
        steps = struct.unpack(f"<{len(sizes)}H", offer.lane_steps or bytes(2 * len(sizes)))
        self.update, self.lost, begin = update, np.zeros_like(update), 0
        self.blocks, self.tallies = [], []
        for tensor, (size, step) in enumerate(zip(sizes, steps)):
            tally = np.zeros(3, np.uint64)
            for first in range(0, size, BLOCK):
                place = slice(begin + first, begin + min(first + BLOCK, size))
                code = self.levels if step else self.wide
                most, integers, decoded, counts = code(update[place], step, tensor, first)
                self.blocks.append((most, integers))
                self.lost[place] = update[place] - decoded
                tally += np.array(counts, np.uint64)
            self.tallies.append(np.minimum(tally, SQUARES_MAX))
            begin += size

    def wide(self, x, *_):
        """Multiples of 2^-24, while the tensor has no step."""
        integers = np.rint(np.clip(x * 2.0**24, -WIDE_MAX, WIDE_MAX).astype(np.float64))
        squares = min(int(np.square(integers).sum()), WIDE_SQUARES_MAX)
        return WIDE_MAX, integers.astype(np.int64), (integers * 2.0**-24).astype(np.float32), (squares, 0, 0)

    def levels(self, x, code, tensor, first):
        step, most = (16 + code % 16) * 2.0 ** (code // 16 - 128), (1 << (self.bits - 1)) - 1
        scaled = x * np.float32(1 / step)
        clipped, large = (int((np.abs(scaled) > edge).sum()) for edge in (most + 0.5, most / 2))
        scaled = np.clip(scaled, np.float32(-most - 0.5), np.float32(most + 0.5))
        squares = int(np.square(scaled.astype(np.float64)).sum() * 4.0 ** (10 - self.bits))
        drawn = np.zeros_like(scaled)
        if self.has_dither:
            drawn = dither(self.seed, tensor, first, len(x), self.bits) * np.float32(2.0 ** (self.bits - 20))
        levels = np.rint(np.clip(scaled + drawn, -most, most))
        decoded = ((levels.astype(np.float64) - drawn) * step).astype(np.float32)
        return most, levels.astype(np.int64), decoded, (squares, clipped, large)

    def words(self, weights, loss):
        """The words of a member of weight 1 in a cohort whose weights sum to `weights`."""
        words = [pack(integers, most, weights) for most, integers in self.blocks]
        counted = LOSS_MAX if math.isnan(loss) else min(max(loss, -LOSS_MAX), LOSS_MAX)
        last = np.array([round(counted * 2.0**32)], np.int64).view(np.uint64)
        return np.concatenate([*words, *self.tallies, last])


def pack(integers, most, weights):
    bits = (2 * most * weights).bit_length()
    lanes = 64 // bits
    words = np.zeros(-(-len(integers) // lanes) * lanes, np.uint64)
    words[: len(integers)] = (integers + most).astype(np.uint64)
    words <<= np.tile(np.arange(lanes, dtype=np.uint64) * np.uint64(bits), len(words) // lanes)
    return np.bitwise_or.reduce(words.reshape(-1, lanes), axis=1)
