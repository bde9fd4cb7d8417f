// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/payload_sums.hpp"

#include "client/site/rank/hooks/loops.hpp"
#include "shared/codec/core/byte_io.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fl::site {

namespace {

/// The bytes of a payload that are here and not yet used. Errors: unavailable for bytes that are
/// still to come.
class Window final : public codec::ByteSource {
 public:
  [[nodiscard]] Result<void> read(std::uint64_t offset, MutableBytes out) override {
    FL_TRY(const Bytes found, find(offset, out.size()));
    std::ranges::copy(found, out.begin());
    return {};
  }
  [[nodiscard]] Result<Bytes> look(std::uint64_t offset, std::size_t bytes,
                                   std::vector<std::byte>&) override {
    return find(offset, bytes);
  }

  [[nodiscard]] std::uint64_t end() const { return begin_ + bytes_.size(); }
  void append(Bytes more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }
  /// Forgets what comes before `offset`.
  void forget_before(std::uint64_t offset) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset - begin_));
    begin_ = offset;
  }

 private:
  [[nodiscard]] Result<Bytes> find(std::uint64_t offset, std::size_t bytes) const {
    FL_ASSERT(offset >= begin_);
    if (offset + bytes > end())
      return Error(Errc::unavailable, "the payload's bytes are not here yet");
    return Bytes(bytes_).subspan(offset - begin_, bytes);
  }

  std::uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

/// The payload of a rank.
struct Incoming {
  std::uint64_t length = 0;
  Window window;
  std::optional<codec::PayloadReader> reader;  // Set once the prefix is here.
  std::vector<float> values;                   // The block that is being added.
};

/// A lane gets at least so many values to decode, or to add.
constexpr std::size_t lane_elements_min = std::size_t{1} << 13;

/// The offset at which slice number `slice` begins.
std::uint64_t slice_begin(std::uint64_t length, std::uint64_t slice, std::uint64_t slices) {
  return length / slices * slice + length % slices * slice / slices;
}

template <class Value>
Value or_throw(Result<Value> value, std::size_t rank) {
  if (!value)
    throw RankFailure("adding up payloads", static_cast<int>(rank), value.error().message());
  return std::move(*value);
}

class PayloadSums {
 public:
  PayloadSums(std::span<const std::byte> own, std::span<const std::int64_t> lengths,
              const Layout& layout, std::span<float> sum, Ranks& ranks, Lanes& lanes,
              const UseOwnBlock& use_own)
      : own_(own), layout_(layout), sum_(sum), ranks_(ranks), lanes_(lanes), use_own_(use_own) {
    for (const std::int64_t length : lengths) {
      auto& one = payloads_.emplace_back(std::make_unique<Incoming>());
      one->length = static_cast<std::uint64_t>(length);
    }
  }

  /// Sends and receives a slice of each payload, then adds up the blocks that are here.
  void advance(std::uint64_t slice, std::uint64_t slices) {
    exchange(slice, slices);
    for (std::size_t rank = 0; rank < payloads_.size(); ++rank)
      if (!open(rank)) return;
    for (; block_ < payloads_.front()->reader->blocks(); ++block_) {
      const auto is_here = [this](const auto& one) {
        return one->reader->end_of(block_) <= one->window.end();
      };
      if (!std::ranges::all_of(payloads_, is_here)) break;
      add_block();
    }
    if (block_ == 0) return;
    for (const auto& one : payloads_) one->window.forget_before(one->reader->end_of(block_ - 1));
  }

 private:
  void exchange(std::uint64_t slice, std::uint64_t slices) {
    const torch::Device device = ranks_.device();
    const auto cut = [&](const Incoming& one) {
      const std::uint64_t begin = slice_begin(one.length, slice, slices);
      return std::pair(begin, slice_begin(one.length, slice + 1, slices) - begin);
    };
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    const auto me = static_cast<std::size_t>(ranks_.rank());
    const auto [own_begin, own_bytes] = cut(*payloads_[me]);
    const torch::Tensor own =
        torch::from_blob(const_cast<std::byte*>(own_.data()) + own_begin,
                         {static_cast<std::int64_t>(own_bytes)}, torch::kUInt8)
            .to(device);
    for (std::size_t rank = 0; rank < payloads_.size(); ++rank) {
      if (rank == me) continue;
      const auto bytes = static_cast<std::int64_t>(cut(*payloads_[rank]).second);
      sends.push_back({.rank = static_cast<int>(rank), .tensor = own});
      receives.push_back(
          {.rank = static_cast<int>(rank), .tensor = torch::empty({bytes}, own.options())});
    }
    ranks_.exchange(sends, receives);
    for (const Transfer& transfer : receives) {
      const torch::Tensor here = transfer.tensor.cpu();
      payloads_[static_cast<std::size_t>(transfer.rank)]->window.append(
          {static_cast<const std::byte*>(here.const_data_ptr()),
           static_cast<std::size_t>(here.numel())});
    }
    payloads_[me]->window.append(own_.subspan(own_begin, own_bytes));
  }

  /// False if a part of the payload's prefix is still to come.
  bool open(std::size_t rank) {
    Incoming& one = *payloads_[rank];
    if (one.reader) return true;
    auto reader = codec::PayloadReader::open(one.window, one.length, layout_, rights_);
    if (!reader && reader.error().code() == Errc::unavailable) return false;
    one.reader.emplace(or_throw(std::move(reader), rank));
    if (one.reader->block_elements() != payloads_.front()->reader->block_elements())
      throw RankFailure("adding up payloads", static_cast<int>(rank), "it has other blocks");
    return true;
  }

  void add_block() {
    const codec::Block block = payloads_.front()->reader->block(block_);
    if (lanes_.count() == 1) {  // One after the other: a block is added while the cache has it.
      for (std::size_t rank = 0; rank < payloads_.size(); ++rank) {
        decode(rank, block);
        add(rank, block, 0, block.elements);
      }
    } else {
      add_in_lanes(block);
    }
    if (use_own_) use_own_(block, payloads_[static_cast<std::size_t>(ranks_.rank())]->values);
  }

  /// Each lane decodes the block of a rank, and then adds a part of all ranks' blocks.
  void add_in_lanes(const codec::Block& block) {
    const std::size_t ranks_of_lane = (lane_elements_min + block.elements - 1) / block.elements;
    lanes_.for_each_run(payloads_.size(), ranks_of_lane,
                        [&](std::size_t, std::size_t begin, std::size_t end) {
                          for (std::size_t rank = begin; rank < end; ++rank) decode(rank, block);
                        });
    lanes_.for_each_run(block.elements, lane_elements_min,
                        [&](std::size_t, std::size_t begin, std::size_t end) {
                          for (std::size_t rank = 0; rank < payloads_.size(); ++rank)
                            add(rank, block, begin, end);
                        });
  }
  void decode(std::size_t rank, const codec::Block& block) {
    Incoming& one = *payloads_[rank];
    one.values.resize(block.elements);
    (void)or_throw(one.reader->decode(block_, one.values), rank);
  }
  /// Adds elements [begin, end) of the rank's block.
  void add(std::size_t rank, const codec::Block& block, std::size_t begin, std::size_t end) {
    add_values(std::span(payloads_[rank]->values).subspan(begin, end - begin),
               sum_.subspan(block.flat + begin, end - begin));
  }

  std::span<const std::byte> own_;
  const Layout& layout_;
  std::span<float> sum_;
  Ranks& ranks_;
  Lanes& lanes_;
  const UseOwnBlock& use_own_;
  std::vector<std::unique_ptr<Incoming>> payloads_;  // Readers refer to their windows.
  // Equal factors of all payloads are drawn once.
  const std::shared_ptr<codec::DrawnRights> rights_ = std::make_shared<codec::DrawnRights>();
  std::uint64_t block_ = 0;  // The next block to add.
};

}  // namespace

void add_payloads(std::span<const std::byte> own, std::span<const std::int64_t> lengths,
                  std::uint64_t bytes_max, const Layout& layout, std::span<float> sum, Ranks& ranks,
                  Lanes& lanes, std::size_t slice_bytes, const UseOwnBlock& use_own) {
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (std::cmp_less(lengths[rank], 0) || std::cmp_greater(lengths[rank], bytes_max)) {
      throw RankFailure("adding up payloads", static_cast<int>(rank),
                        fmt::format("it announces {} bytes; the codec makes at most {}",
                                    lengths[rank], bytes_max));
    }
  }
  const auto longest = static_cast<std::uint64_t>(std::ranges::max(lengths));
  const std::uint64_t slices =
      std::max<std::uint64_t>(1, (longest + slice_bytes - 1) / slice_bytes);
  PayloadSums sums(own, lengths, layout, sum, ranks, lanes, use_own);
  for (std::uint64_t slice = 0; slice < slices; ++slice) sums.advance(slice, slices);
}

}  // namespace fl::site
