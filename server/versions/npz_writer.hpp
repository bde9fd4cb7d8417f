// SPDX-License-Identifier: Apache-2.0
// Writes fp32 arrays as numpy's .npz: a zip archive of stored, uncompressed .npy files, which
// numpy.load() opens. As numpy itself does, it always writes the ZIP64 fields, so arrays and
// archives may be larger than 4 GiB. Values come in pieces: memory does not grow with the model.
//
// One thread at a time. Errors: those of the File.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <boost/crc.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

class NpzWriter {
 public:
  /// Writes from the file's beginning. `file` must outlive the writer.
  explicit NpzWriter(File& file) : file_(&file) {}

  /// Begins the next array. The one before must have all its values. `name` is a tensor's.
  [[nodiscard]] Result<void> begin(std::string_view name, std::span<const std::int64_t> shape);
  /// The next values of the array, in C order.
  [[nodiscard]] Result<void> append(std::span<const float> values);
  /// After the last array: writes the directory, and cuts off what the file held behind it.
  [[nodiscard]] Result<void> finish();

 private:
  struct Entry {
    std::string name;
    std::uint64_t offset = 0;  // The offset of its local header.
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  [[nodiscard]] Result<void> end_entry();
  [[nodiscard]] Result<void> put(Bytes bytes);
  [[nodiscard]] static std::string local_header(const Entry& entry);
  [[nodiscard]] static std::string directory_entry(const Entry& entry);

  File* file_;
  std::vector<Entry> entries_;
  bool is_open_ = false;
  std::uint64_t values_left_ = 0;  // Values that the open entry still needs.
  boost::crc_32_type crc_;
  std::uint64_t end_ = 0;
  Writeback writeback_;
};

}  // namespace fl::server
