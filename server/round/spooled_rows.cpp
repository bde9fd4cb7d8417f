// SPDX-License-Identifier: Apache-2.0
#include "server/round/spooled_rows.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace fl::server {

Result<void> SpooledRows::UpdateFile::open() {
  if (!file_) {
    FL_TRY(file_, open_());
  }
  return {};
}

Result<void> SpooledRows::UpdateFile::read(std::uint64_t offset, MutableBytes out) {
  FL_CHECK(open());
  return codec::FileSource(*file_).read(offset, out);
}

Result<Bytes> SpooledRows::UpdateFile::look(std::uint64_t offset, std::size_t bytes,
                                            std::vector<std::byte>& scratch) {
  FL_CHECK(open());
  return codec::FileSource(*file_).look(offset, bytes, scratch);
}

Result<void> SpooledRows::add(Source source, std::uint64_t bytes, const Layout& layout) {
  auto from = std::make_unique<UpdateFile>(source.open);
  auto reader = codec::PayloadReader::open(*from, bytes, layout, rights_);
  from->close();
  if (!reader) return source.named(reader.error());
  rows_.push_back({std::move(source), std::move(from), std::move(*reader), 0, {}});
  return {};
}

Result<void> SpooledRows::read(std::uint64_t first, std::size_t elements, Lanes& lanes,
                               std::span<float> out) {
  std::vector<std::optional<Error>> errors(rows_.size());
  lanes.for_each_run(rows_.size(), 1, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto read = rows_[i].read(first, out.subspan(i * elements, elements));
      if (!read) errors[i] = rows_[i].source.named(read.error());
      // All rows are in the same tensor. Equal factors stay in rights_, whoever forgets them.
      rows_[i].reader.forget_right_above(rights_bytes_max_ / rows_.size());
    }
  });
  for (const auto& error : errors) {
    if (error) return *error;
  }
  return {};
}

/// Opens files at most once, and closes them.
Result<void> SpooledRows::Row::read(std::uint64_t first, std::span<float> out) {
  struct Closing {
    UpdateFile& file;
    ~Closing() { file.close(); }
  };
  const Closing closing{*file};
  std::optional<AdjustUpdate> adjust;
  while (!out.empty()) {
    if (first < begin || first >= begin + values.size()) {
      if (!adjust) {
        FL_TRY(adjust, source.adjust());
      }
      FL_CHECK(decode_at(first, *adjust));
    }
    const auto skipped = static_cast<std::size_t>(first - begin);
    const std::size_t some = std::min(values.size() - skipped, out.size());
    std::ranges::copy(std::span(values).subspan(skipped, some), out.begin());
    out = out.subspan(some);
    first += some;
  }
  return {};
}

/// Decodes the block that has this element.
Result<void> SpooledRows::Row::decode_at(std::uint64_t element, const AdjustUpdate& adjust) {
  std::uint64_t low = 0;  // The last block that begins at the element or before it.
  for (std::uint64_t high = reader.blocks(); high - low > 1;) {
    const std::uint64_t middle = (low + high) / 2;
    (reader.block(middle).flat <= element ? low : high) = middle;
  }
  const codec::Block block = reader.block(low);
  values.resize(block.elements);
  begin = block.flat;
  const auto decoded = reader.decode(low, values);
  const auto adjusted = !decoded ? Result<void>(decoded.error())
                        : adjust ? adjust(block.flat, values)
                                 : success();
  if (!adjusted) values.clear();  // The values have no meaning.
  return adjusted;
}

}  // namespace fl::server
