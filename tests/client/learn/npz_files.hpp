// SPDX-License-Identifier: Apache-2.0
// Small .npz files for tests, which numpy need not have written.
#pragma once

#include <minizip/zip.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

/// A member NAME.npy of an archive.
struct NpyMember {
  std::string name;
  std::string bytes;
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
                    {reinterpret_cast<const char*>(bytes.data()), bytes.size()})};
}

inline void write_npz(const std::filesystem::path& path, const std::vector<NpyMember>& members,
                      bool compressed = false) {
  std::filesystem::remove(path);
  zipFile archive = zipOpen64(path.c_str(), APPEND_STATUS_CREATE);
  if (archive == nullptr) throw std::runtime_error("write " + path.string());
  for (const NpyMember& member : members) {
    const zip_fileinfo info{};
    zipOpenNewFileInZip64(archive, (member.name + ".npy").c_str(), &info, nullptr, 0, nullptr, 0,
                          nullptr, compressed ? Z_DEFLATED : 0, Z_DEFAULT_COMPRESSION, 1);
    zipWriteInFileInZip(archive, member.bytes.data(), static_cast<unsigned>(member.bytes.size()));
    zipCloseFileInZip(archive);
  }
  if (zipClose(archive, nullptr) != ZIP_OK) throw std::runtime_error("write " + path.string());
}

}  // namespace fl::test
