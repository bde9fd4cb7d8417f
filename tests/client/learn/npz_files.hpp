// SPDX-License-Identifier: Apache-2.0
// Files for tests as numpy writes them: .npz files, which are ZIP archives.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::test {

/// A member NAME.npy of an archive.
struct NpyMember {
  std::string name;
  std::string bytes;
  std::uint64_t zeros = 0;  // These bytes follow, as a hole in the file, with a wrong checksum.
};

/// An array as numpy writes it, format 1.0. `dict` is the text of its header.
inline std::string npy_bytes(std::string_view dict, std::string_view values) {
  const std::string text = std::string(dict) + "\n";
  std::string bytes = "\x93NUMPY";
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(text.size() & 0xff);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text + std::string(values);
}

template <class Value>
NpyMember array(std::string name, std::string_view type, std::string_view shape,
                const std::vector<Value>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {std::move(name),
          npy_bytes("{'descr': '" + std::string(type) +
                        "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }",
                    {reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
          0};
}

inline std::string deflated(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK)
    throw std::runtime_error("zlib");
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// Appends numbers in little-endian order, each of a size of its own.
inline void put(std::string& out, std::initializer_list<std::pair<std::uint64_t, int>> numbers) {
  for (auto [number, bytes] : numbers) {
    for (; bytes > 0; --bytes, number >>= 8) out += static_cast<char>(number & 0xff);
  }
}

/// A ZIP archive as Python's zipfile writes it: numbers from 2 GiB on stand in extra fields.
inline void write_npz(const std::filesystem::path& path, const std::vector<NpyMember>& members,
                      bool compressed = false) {
  constexpr std::uint64_t narrow_max = 0x7fff'ffff;
  constexpr std::uint64_t wide = 0xffff'ffff;
  const auto narrow = [](std::uint64_t number) { return number > narrow_max ? wide : number; };
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  std::string directory;
  std::uint64_t at = 0;
  const auto write = [&](std::string_view bytes) {
    file.seekp(static_cast<std::streamoff>(at));
    file << bytes;
    at += bytes.size();
  };
  for (const NpyMember& member : members) {
    const std::string name = member.name + ".npy";
    const std::string data = compressed ? deflated(member.bytes) : member.bytes;
    const std::uint64_t header_at = at;
    const std::uint64_t packed = data.size() + member.zeros;
    const std::uint64_t bytes = member.bytes.size() + member.zeros;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(member.bytes.data()),
                           static_cast<uInt>(member.bytes.size()));
    const std::uint64_t method = compressed ? 8 : 0;
    std::string extra;
    if (bytes > narrow_max) put(extra, {{bytes, 8}, {packed, 8}});
    if (header_at > narrow_max) put(extra, {{header_at, 8}});
    const std::uint64_t extra_bytes = extra.empty() ? 0 : extra.size() + 4;
    std::string local;
    put(local, {{0x04034b50, 4},
                {45, 2},
                {0, 2},
                {method, 2},
                {0, 4},
                {crc, 4},
                {wide, 4},
                {wide, 4},
                {name.size(), 2},
                {0, 2}});
    put(directory, {{0x02014b50, 4},
                    {45, 2},
                    {45, 2},
                    {0, 2},
                    {method, 2},
                    {0, 4},
                    {crc, 4},
                    {bytes > narrow_max ? wide : packed, 4},
                    {narrow(bytes), 4},
                    {name.size(), 2},
                    {extra_bytes, 2},
                    {0, 2},
                    {0, 2},
                    {0, 2},
                    {0, 4},
                    {narrow(header_at), 4}});
    directory += name;
    if (!extra.empty()) put(directory, {{1, 2}, {extra.size(), 2}});
    directory += extra;
    write(local + name + data);
    at += member.zeros;
  }
  std::string end;
  const std::uint64_t directory_at = at;
  const std::uint64_t count = members.size();
  if (directory_at > narrow_max) {
    put(end, {{0x06064b50, 4},
              {44, 8},
              {45, 2},
              {45, 2},
              {0, 4},
              {0, 4},
              {count, 8},
              {count, 8},
              {directory.size(), 8},
              {directory_at, 8}});
    put(end, {{0x07064b50, 4}, {0, 4}, {directory_at + directory.size(), 8}, {1, 4}});
  }
  put(end, {{0x06054b50, 4},
            {0, 4},
            {count, 2},
            {count, 2},
            {directory.size(), 4},
            {std::min(directory_at, wide), 4},
            {0, 2}});
  write(directory + end);
  if (!file.flush()) throw std::runtime_error("write " + path.string());
}

}  // namespace fl::test
