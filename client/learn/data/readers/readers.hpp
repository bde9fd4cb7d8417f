// SPDX-License-Identifier: Apache-2.0
// The readers of --data: each makes a DataSet of one kind of files. A reader is one file in this
// folder and one row of reader_table() in readers.cpp. Any thread.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fl {

/// Labels and class numbers are less than this. Larger whole numbers are values only.
inline constexpr std::uint32_t classes_max = 1 << 16;
inline constexpr std::uint64_t examples_max = 0xffff'fffe;  // Of one data set.
inline constexpr std::uint64_t row_elements_max = 1 << 26;  // Values of one example.

/// What a reader is asked for.
struct DataRequest {
  std::string_view text;           // All that --data says, for messages.
  std::string_view argument = "";  // What stands behind the reader's name and a colon.
  std::string_view group = "";     // COLUMN of the partition by:COLUMN; "" for another partition.
  std::uint64_t memory_bytes = 0;  // Inputs beyond this go to the disk; 0: data_memory_default().
  bool skip_bad_files = false;     // --skip-bad-files; refused by a reader of one file.
  /// The examples are to be predicted: labels and targets are not read, and may be missing.
  bool to_predict = false;
};

struct ReaderRow {
  std::string_view name;    // What stands before the colon.
  std::string_view usage;   // "csv:FILE,target=COLUMN", for --help and errors.
  std::string_view groups;  // What by:COLUMN may name; "" if there is no such thing.
  Result<DataSet> (*read)(const DataRequest&);
  bool has_files = false;  // It reads the files of a folder, of which some may be bad.
};

[[nodiscard]] std::span<const ReaderRow> reader_table();

/// Reads what request.text says, with the reader that it names. Sets `source`. A set has at least
/// one example. If request.group is not empty, the set has groups. Errors: invalid_input for a text
/// that no reader takes, which lists all readers; and the reader's own, which name file and place.
[[nodiscard]] Result<DataSet> read_data(DataRequest request);

/// The error for a text that the reader does not take: `data "TEXT": WHY`.
[[nodiscard]] Error wrong_data(const DataRequest& request, std::string_view why);
/// "fashion-mnist[:test], idx:DIR[:test], ..."
[[nodiscard]] std::string reader_usages();

Result<DataSet> read_fashion_mnist(const DataRequest& request);
Result<DataSet> read_idx_folder(const DataRequest& request);
Result<DataSet> read_npz(const DataRequest& request);
Result<DataSet> read_csv(const DataRequest& request);
Result<DataSet> read_images(const DataRequest& request);
Result<DataSet> read_text(const DataRequest& request);
Result<DataSet> read_tokens(const DataRequest& request);

}  // namespace fl
