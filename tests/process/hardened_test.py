# SPDX-License-Identifier: Apache-2.0
"""The programs are built hardened: the ELF files say so."""

import os
import pathlib
import struct
import unittest

BIN = pathlib.Path(os.environ["FL_BIN"])
ET_DYN = 3
PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_STRTAB, DT_STRSZ, DT_FLAGS, DT_FLAGS_1 = 5, 10, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW, DF_1_PIE = 8, 1, 0x08000000
PF_X = 1


class Elf:
    """The parts of a 64-bit, little-endian ELF file that the loader sees."""

    def __init__(self, path):
        data = path.read_bytes()
        assert data[:6] == b"\x7fELF\x02\x01", path
        self.type = struct.unpack_from("<H", data, 16)[0]
        (offset,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        self.segments, tables, loads = {}, [], []
        for i in range(count):
            kind, flags, at, address, _, bytes_ = struct.unpack_from("<IIQQQQ", data, offset + i * size)
            self.segments[kind] = flags
            if kind == 1:
                loads.append((address, at, bytes_))
            if kind == PT_DYNAMIC:
                tables = list(struct.iter_unpack("<QQ", data[at : at + bytes_]))
        self.tags = dict(reversed(tables))
        place = self.tags[DT_STRTAB]
        at = next(at + place - address for address, at, n in loads if address <= place < address + n)
        self.names = set(data[at : at + self.tags[DT_STRSZ]].split(b"\0"))


class Hardened(unittest.TestCase):
    def elf_files(self):
        names = ["fl-server", "fl-client", "fl-sim", "libfl-codec.so", "fl-torch.so", "libfl-torch.so"]
        found = [BIN / name for name in names if (BIN / name).exists()]
        self.assertGreaterEqual(len(found), 3, found)
        return found

    def test_addresses_are_random_and_tables_read_only(self):
        for path in self.elf_files():
            with self.subTest(path.name):
                elf = Elf(path)
                self.assertEqual(elf.type, ET_DYN)
                if path.suffix != ".so":
                    self.assertTrue(elf.tags.get(DT_FLAGS_1, 0) & DF_1_PIE, "is no PIE")
                self.assertIn(PT_GNU_RELRO, elf.segments)
                is_now = elf.tags.get(DT_FLAGS, 0) & DF_BIND_NOW or elf.tags.get(DT_FLAGS_1, 0) & DF_1_NOW
                self.assertTrue(is_now, "its table of functions stays writable")
                self.assertFalse(elf.segments[PT_GNU_STACK] & PF_X, "its stack is executable")

    def test_stacks_have_canaries(self):
        for path in self.elf_files():
            with self.subTest(path.name):
                self.assertIn(b"__stack_chk_fail", Elf(path).names)

    @unittest.skipIf(os.environ.get("FL_SANITIZE"), "sanitizers check lengths themselves")
    def test_the_c_library_checks_lengths(self):
        for name in ("fl-server", "fl-client"):
            with self.subTest(name):
                checked = [n for n in Elf(BIN / name).names if n.startswith(b"__") and n.endswith(b"_chk")]
                self.assertTrue(checked, "built without _FORTIFY_SOURCE")


if __name__ == "__main__":
    unittest.main()
