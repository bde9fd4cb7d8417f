// SPDX-License-Identifier: Apache-2.0
// A round's accepted updates as a robust rule reads them: from the spool, a block of each at a
// time. Memory: for each update one decoded block, 256 KiB (4 MiB with sparse codecs), and the
// reader's own (payload/reader.hpp). One thread at a time, which may bring lanes.
#pragma once

#include "shared/aggregate/robust_mean.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/sums/accumulator.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace fl {

class SpooledRows final : public UpdateRows {
 public:
  /// Adds the next update. `adjust` changes its decoded values, block by block; null changes
  /// nothing. `named` says of which update an error is. The layout must outlive this object.
  /// Errors: those of PayloadReader::open.
  [[nodiscard]] Result<void> open(std::shared_ptr<File> file, std::uint64_t bytes,
                                  const Layout& layout, AdjustUpdate adjust,
                                  std::function<Error(const Error&)> named);

  [[nodiscard]] std::size_t count() const override { return rows_.size(); }
  [[nodiscard]] Result<void> read(std::uint64_t first, std::size_t elements, Lanes& lanes,
                                  std::span<float> out) override;

 private:
  struct Row {
    std::shared_ptr<File> file;
    std::unique_ptr<FileSource> source;
    PayloadReader reader;
    AdjustUpdate adjust;
    std::function<Error(const Error&)> named;
    std::uint64_t begin = 0;    // Of the decoded block, in the layout.
    std::vector<float> values;  // The decoded block; empty before the first.

    Result<void> decode_at(std::uint64_t element);
    Result<void> read(std::uint64_t first, std::span<float> out);
  };

  std::vector<Row> rows_;
};

}  // namespace fl
