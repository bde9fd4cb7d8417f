// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/payload/reader.hpp"

#include "shared/base/async/parallel.hpp"
#include "shared/codec/blocks/decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fl::codec {

namespace {

// The last character is the format's version.
constexpr std::string_view magic = "FLP4";
constexpr std::string_view magic_without_bare = "FLP3";
constexpr std::size_t block_elements_at = 4;
constexpr std::size_t digest_at = 8;
constexpr std::size_t digest_bytes = 8;

/// Factors are added up undecoded only if the matrix has at least this many times their elements.
/// So the memory for their sums is small beside that for the decoded sums.
constexpr double undecoded_ratio = 4;

std::string digest_of(const Layout& layout) {
  return layout.digest().raw().substr(0, digest_bytes);
}

std::string shown(std::string_view digest) {
  const auto whole = Digest::from_bytes(std::string(digest) + std::string(digest_bytes, '\0'));
  return whole->hex().substr(0, 2 * digest_bytes);
}

template <class... T>
Error corrupt(fmt::format_string<T...> format, T&&... values) {
  return {Errc::corrupt, "payload: " + fmt::format(format, std::forward<T>(values)...)};
}

struct Header {
  std::uint32_t block_elements;
  bool has_bare;
};

/// Checks the header.
Result<Header> read_header(Bytes bytes, const Layout& layout) {
  const std::string_view begin = text_of(bytes.first(magic.size()));
  if (begin.substr(0, magic.size() - 1) != magic.substr(0, magic.size() - 1))
    return corrupt("does not begin with {}", magic);
  if (begin != magic && begin != magic_without_bare)
    return corrupt("another version of the format: it does not begin with {}", magic);
  const std::string_view digest = text_of(bytes.subspan(digest_at, digest_bytes));
  if (digest != digest_of(layout)) {
    return Error(Errc::conflict, fmt::format("payload: it is of layout {}, expected {}",
                                             shown(digest), shown(digest_of(layout))));
  }
  const auto block_elements = load<std::uint32_t>(bytes, block_elements_at);
  if (block_elements < block_elements_min || block_elements > block_elements_max) {
    return corrupt("blocks of {} elements, the limits are {} and {}", block_elements,
                   block_elements_min, block_elements_max);
  }
  return Header{block_elements, begin == magic};
}

}  // namespace

std::vector<std::byte> payload_prefix(const BlockMap& map,
                                      std::span<const std::uint32_t> block_bytes) {
  FL_ASSERT(block_bytes.size() == map.blocks());
  const bool has_bare = map.bare_blocks() > 0;
  std::vector<std::byte> out(payload_header_bytes);
  std::ranges::copy(bytes_of(has_bare ? magic : magic_without_bare), out.begin());
  store(out, block_elements_at, map.block_elements());
  std::ranges::copy(bytes_of(digest_of(map.layout())), out.begin() + digest_at);
  out.reserve(payload_header_bytes + block_bytes.size_bytes());
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    if (has_bare && map.is_bare(map.at(i))) continue;
    const auto size = std::as_bytes(block_bytes.subspan(i, 1));
    out.insert(out.end(), size.begin(), size.end());
  }
  return out;
}

Result<PayloadReader> PayloadReader::open(ByteSource& source, std::uint64_t bytes,
                                          const Layout& layout,
                                          std::shared_ptr<DrawnRights> rights) {
  if (bytes < payload_header_bytes) return corrupt("{} bytes, too few for a header", bytes);
  std::array<std::byte, payload_header_bytes> raw;
  FL_CHECK(source.read(0, raw));
  FL_TRY(const Header header, read_header(raw, layout));
  PayloadReader reader(source, BlockMap(layout, header.block_elements), header.has_bare,
                       std::move(rights));
  // Allocate the table of sizes only if the payload is long enough to contain it.
  if (bytes < payload_header_bytes + reader.sizes_in_table() * sizeof(std::uint32_t)) {
    return corrupt("{} bytes, too few for the table of {} blocks", bytes, reader.sizes_in_table());
  }
  FL_CHECK(reader.read_table(bytes));
  return reader;
}

Result<void> PayloadReader::read_table(std::uint64_t bytes) {
  std::vector<std::uint32_t> sizes(sizes_in_table());
  FL_CHECK(source_->read(payload_header_bytes, std::as_writable_bytes(std::span(sizes))));
  begin_.reserve(blocks() + 1);
  begin_.push_back(payload_header_bytes + sizes.size() * sizeof(std::uint32_t));
  auto next_size = sizes.begin();
  while (begin_.size() <= blocks()) {
    const Block next = block(begin_.size() - 1);
    if (has_bare_ && map_.is_bare(next)) {
      begin_.push_back(begin_.back() + next.elements * sizeof(float));
      continue;
    }
    const std::uint32_t size = *next_size++;
    // No block format needs more than this, so a hostile size can't make us allocate much. A
    // tensor's first block may contain the whole right factor.
    std::uint64_t most = 64 + low_rank_extra_bytes + std::uint64_t{8} * next.elements;
    if (next.first == 0) most += layout().tensors()[next.tensor].elements * sizeof(float);
    if (size > most) {
      return corrupt("{} has {} bytes, more than any block format needs",
                     map_.describe(begin_.size() - 1), size);
    }
    begin_.push_back(begin_.back() + size);
  }
  if (begin_.back() != bytes) {
    return corrupt("the blocks end at byte {}, the payload at {}", begin_.back(), bytes);
  }
  return {};
}

Result<Scan> PayloadReader::decode(std::uint64_t index, std::span<float> out) {
  const auto bytes = look_at_block(index, bytes_);
  if (!bytes) return in_block(index, bytes.error());
  return decode_bytes(index, *bytes, out);
}

Result<PayloadReader::Taken> PayloadReader::decode_or_take(std::uint64_t index,
                                                           std::span<float> out,
                                                           const Undecoded& undecoded) {
  const auto bytes = look_at_block(index, bytes_);
  if (!bytes) return in_block(index, bytes.error());
  if (is_bare(index)) {
    FL_TRY(const Scan scan, decode_bytes(index, *bytes, out));
    return Taken(scan);
  }
  if (undecoded.sketch && is_summed_sketch(*bytes)) {
    const auto sketch = read_sketch(bytes->subspan(1), sketch_head_bytes, scratch_);
    if (!sketch) return in_block(index, sketch.error());
    if (sketch->shape == *undecoded.sketch && sketch->key == sketch_key(map_.at(index)))
      return Taken(*sketch);
  }
  if (undecoded.right_key && is_low_rank(*bytes)) {
    const auto right = right_factor_of(index, *bytes);
    if (!right) return in_block(index, right.error());
    const Block block = map_.at(index);
    const Layout::Tensor& tensor = layout().tensors()[block.tensor];
    if ((*right)->id == BlockFormat::gradzip && (*right)->key == *undecoded.right_key &&
        matrix_of(tensor, (*right)->rank, undecoded_ratio)) {
      const auto rows = read_rows(*bytes, tensor, block, **right, rows_, scratch_);
      if (!rows) return in_block(index, rows.error());
      return Taken(*rows);
    }
  }
  if (!is_sparse(*bytes)) {
    FL_TRY(const Scan scan, decode_bytes(index, *bytes, out));
    return Taken(scan);
  }
  const Block block = map_.at(index);
  const auto selected = read_selected(*bytes, block.elements, scratch_);
  if (!selected) return in_block(index, selected.error());
  const std::span values = selected->values;
  // With more than a 16th of the values, work on the whole block is faster.
  if (values.size() * 16 > block.elements) {
    FL_ASSERT(out.size() == block.elements);
    place(*selected, out);
    FL_TRY(const Scan scan, scan_finite(block, out));
    return Taken(scan);
  }
  const auto bad = kernels().scan(values.data(), values.size()).first_bad;
  if (bad < values.size())
    return corrupt("{} is {}, not a finite number",
                   layout().describe(block.flat + selected->indices[bad]), values[bad]);
  return Taken(*selected);
}

Result<void> PayloadReader::read_lane_integers(std::uint64_t index, const LaneRun& run,
                                               std::span<std::int32_t> out) {
  FL_TRY(const Bytes bytes, look_at_block(index, bytes_));
  const auto read = codec::read_lane_integers(bytes, run, out, scratch_);
  return read ? success() : in_block(index, read.error());
}

Result<void> PayloadReader::add_lane_tally(std::uint64_t index, LaneStep step, LaneTally& sum) {
  if (is_bare(index)) return {};
  FL_TRY(const Bytes bytes, look_at_block(index, bytes_));
  const auto added = codec::add_lane_tally(bytes, map_.at(index).elements, step, sum);
  return added ? success() : in_block(index, added.error());
}

Result<Scan> PayloadReader::decode_bytes(std::uint64_t index, Bytes bytes, std::span<float> out) {
  const Block block = map_.at(index);
  FL_ASSERT(out.size() == block.elements);
  if (is_bare(index)) {
    copy_bytes(std::as_writable_bytes(out).data(), bytes.data(), out.size_bytes());
    return scan_finite(block, out);
  }
  const auto decoded = [&]() -> Result<void> {
    if (!is_low_rank(bytes)) return decode_block(bytes, out, scratch_);
    FL_TRY(RightFactor* const right, right_factor_of(index, bytes));
    return decode_low_rank(bytes, layout().tensors()[block.tensor], block, *right, *rights_, out,
                           scratch_);
  }();
  if (!decoded) return in_block(index, decoded.error());
  return scan_finite(block, out);
}

Result<Scan> PayloadReader::scan_finite(const Block& block, std::span<const float> values) const {
  const Scan scan = kernels().scan(values.data(), values.size());
  if (scan.first_bad == values.size()) return scan;
  return corrupt("{} is {}, not a finite number", layout().describe(block.flat + scan.first_bad),
                 values[scan.first_bad]);
}

Error PayloadReader::in_block(std::uint64_t index, const Error& error) const {
  return error.at("payload: " + map_.describe(index));
}

void PayloadReader::forget_right_above(std::size_t bytes) {
  if (!right_factor_) return;
  const auto& drawn = right_factor_->drawn;
  const std::size_t values = drawn ? drawn->size() : right_factor_->values.size();
  if (values * sizeof(float) > bytes) right_factor_.reset();
}

/// Returns the bytes of a block, and forgets the right factor of another tensor.
Result<Bytes> PayloadReader::look_at_block(std::uint64_t index, std::vector<std::byte>& scratch) {
  if (right_factor_tensor_ != map_.at(index).tensor) right_factor_.reset();
  return source_->look(begin_[index], begin_[index + 1] - begin_[index], scratch);
}

/// Returns the right factor for the block with this index and these bytes.
Result<RightFactor*> PayloadReader::right_factor_of(std::uint64_t index, Bytes bytes) {
  const Block block = map_.at(index);
  if (right_factor_ && right_factor_tensor_ == block.tensor) return &*right_factor_;
  right_factor_.reset();
  std::vector<std::byte> scratch;
  const std::uint64_t first = index - block.first / map_.block_elements();
  if (first != index) {
    FL_TRY(bytes, look_at_block(first, scratch));
  }
  if (expected_) {
    const auto& form = expected_->of_tensor[block.tensor];
    if (!form || !has_factors(bytes, *form, shared_key(expected_->shared_seed, block.tensor)))
      return Error(Errc::corrupt, "its factors are not those that the codec makes of this tensor");
  }
  FL_TRY(right_factor_,
         read_right_factor(bytes, layout().tensors()[block.tensor], map_.at(first), scratch_));
  right_factor_tensor_ = block.tensor;
  return &*right_factor_;
}

Result<void> PayloadReader::decode_by(int threads, const DecodeOne& decode_one) {
  Lanes lanes(threads, blocks() / map_.run_blocks());
  // Each lane has a reader with its own buffers.
  std::vector<PayloadReader> others(lanes.count() - 1, *this);
  struct Failure {
    std::uint64_t index;
    Error error;
  };
  std::vector<std::optional<Failure>> failures(lanes.count());
  const auto decode_run = [&](std::size_t lane, std::size_t begin, std::size_t end) {
    PayloadReader& reader = lane == 0 ? *this : others[lane - 1];
    for (std::size_t i = begin; i < end && !failures[lane]; ++i) {
      const auto decoded = decode_one(reader, lane, i);
      if (!decoded) failures[lane] = {i, decoded.error()};
    }
  };
  lanes.for_each_run(blocks(), map_.run_blocks(), decode_run);
  const Failure* first = nullptr;
  for (const auto& failure : failures) {
    if (failure && (first == nullptr || failure->index < first->index)) first = &*failure;
  }
  if (first != nullptr) return first->error;
  return {};
}

Result<void> PayloadReader::decode_all(std::span<float> out, int threads) {
  FL_ASSERT(out.size() == layout().elements());
  return decode_by(threads, [out](PayloadReader& reader, std::size_t, std::uint64_t index) {
    const Block b = reader.block(index);
    return reader.decode(index, out.subspan(b.flat, b.elements));
  });
}

Result<void> PayloadReader::for_each_block(int threads, const UseBlock& use) {
  std::vector<std::vector<float>> values(static_cast<std::size_t>(threads_for(threads)));
  return decode_by(threads, [&](PayloadReader& reader, std::size_t lane, std::uint64_t index) {
    const Block b = reader.block(index);
    values[lane].resize(b.elements);
    auto decoded = reader.decode(index, values[lane]);
    if (decoded) use(index, b, values[lane]);
    return decoded;
  });
}

}  // namespace fl::codec
