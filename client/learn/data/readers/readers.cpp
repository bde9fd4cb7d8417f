// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/readers.hpp"

#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fl {

namespace {

constexpr std::array reader_rows{
    ReaderRow{"fashion-mnist", "fashion-mnist[:test]", "", read_fashion_mnist},
    ReaderRow{"idx", "idx:DIR[:test]", "", read_idx_folder},
    ReaderRow{"npz", "npz:FILE", "an array", read_npz},
    ReaderRow{"csv", "csv:FILE,target=COLUMN", "a column", read_csv},
    ReaderRow{"images", "images:DIR", "folder", read_images, true},
    ReaderRow{"text", "text:FILE|DIR", "file or folder", read_text, true},
    ReaderRow{"tokens", "tokens:FILE|DIR", "file or folder", read_tokens, true},
};

std::string group_usages() {
  std::string all;
  for (const ReaderRow& row : reader_rows) {
    if (row.groups.empty()) continue;
    all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", row.name, row.groups);
  }
  return all;
}

}  // namespace

std::span<const ReaderRow> reader_table() { return reader_rows; }

std::string reader_usages() {
  std::string all;
  for (const ReaderRow& row : reader_rows)
    all += fmt::format("{}{}", all.empty() ? "" : ", ", row.usage);
  return all;
}

Error wrong_data(const DataRequest& request, std::string_view why) {
  return {Errc::invalid_input, fmt::format("data \"{}\": {}", request.text, why)};
}

Result<DataSet> read_data(DataRequest request) {
  if (request.text.empty()) {
    return Error(Errc::invalid_input,
                 fmt::format("this model needs --data with one of: {}", reader_usages()));
  }
  const auto [name, argument] = cut(request.text, ':');
  const auto row = std::ranges::find(reader_rows, name, &ReaderRow::name);
  if (row == reader_rows.end()) {
    return Error(Errc::invalid_input,
                 fmt::format("unknown data \"{}\"; use one of: {}{}", request.text, reader_usages(),
                             did_you_mean(name, reader_rows, &ReaderRow::name)));
  }
  if (!request.group.empty() && row->groups.empty()) {
    return wrong_data(request, fmt::format("there is nothing that by:{} could name; data with "
                                           "groups are {}",
                                           request.group, group_usages()));
  }
  if (request.skip_bad_files && !row->has_files)
    return wrong_data(request, "--skip-bad-files is for images:, text: and tokens: only");
  request.argument = argument.value_or("");
  FL_TRY(DataSet set, row->read(request));
  set.source = request.text;
  return set;
}

}  // namespace fl
