// SPDX-License-Identifier: Apache-2.0
// A round's accepted updates as a robust rule reads them: from the spool, a block of each at a
// time. Memory: for each update one decoded block, 256 KiB (4 MiB with sparse codecs), and the
// reader's own (payload/reader.hpp). The right factors of low-rank tensors have a limit for all
// updates together, and those that are equal are kept once; beyond that they are made again for
// each block. Files are open only while something is decoded: one update in each lane. One thread
// at a time, which may bring lanes.
#pragma once

#include "server/sums/accumulator.hpp"
#include "server/sums/robust_mean.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/payload/reader.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace fl::server {

class SpooledRows final : public UpdateRows {
 public:
  /// `rights_bytes_max`: for the right factors of all updates, beside those that lanes use.
  explicit SpooledRows(std::size_t rights_bytes_max = limits::robust_rights_bytes_max)
      : rights_bytes_max_(rights_bytes_max) {}

  /// How an update is read. All three are called from any lane.
  struct Source {
    /// Opens the update's file. Called again whenever the update is read on.
    std::function<Result<std::shared_ptr<File>>()> open;
    /// Makes the function that changes the decoded values of a block, or null. Called like `open`.
    std::function<Result<AdjustUpdate>()> adjust;
    /// Adds to an error which update it is in.
    std::function<Error(const Error&)> named;
  };
  /// Adds the next update, of `bytes` bytes. The layout must outlive this object. Errors: those of
  /// the source and of PayloadReader::open.
  [[nodiscard]] Result<void> add(Source source, std::uint64_t bytes, const Layout& layout);

  [[nodiscard]] std::size_t count() const override { return rows_.size(); }
  [[nodiscard]] Result<void> read(std::uint64_t first, std::size_t elements, Lanes& lanes,
                                  std::span<float> out) override;

 private:
  /// The bytes of a file that is opened when they are needed.
  class UpdateFile final : public codec::ByteSource {
   public:
    explicit UpdateFile(const std::function<Result<std::shared_ptr<File>>()>& open) : open_(open) {}
    [[nodiscard]] Result<void> read(std::uint64_t offset, MutableBytes out) override;
    [[nodiscard]] Result<Bytes> look(std::uint64_t offset, std::size_t bytes,
                                     std::vector<std::byte>& scratch) override;
    void close() { file_.reset(); }

   private:
    Result<void> open();
    std::function<Result<std::shared_ptr<File>>()> open_;
    std::shared_ptr<File> file_;
  };
  struct Row {
    Source source;
    std::unique_ptr<UpdateFile> file;
    codec::PayloadReader reader;
    std::uint64_t begin = 0;    // The first element of the decoded block in the layout.
    std::vector<float> values;  // The decoded block; empty before the first.

    Result<void> decode_at(std::uint64_t element, const AdjustUpdate& adjust);
    Result<void> read(std::uint64_t first, std::span<float> out);
  };

  const std::size_t rights_bytes_max_;
  const std::shared_ptr<codec::DrawnRights> rights_ = std::make_shared<codec::DrawnRights>();
  std::vector<Row> rows_;
};

}  // namespace fl::server
