#include "shared/codec/payload.hpp"

#include "shared/base/parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fl {

namespace {

constexpr std::string_view magic = "FLP1";

template <class... T>
Error corrupt(fmt::format_string<T...> format, T&&... values) {
  return {Errc::corrupt, "payload: " + fmt::format(format, std::forward<T>(values)...)};
}

struct Header {
  std::uint16_t spec_bytes;
  std::uint32_t block_elements;
  std::uint32_t blocks;
};

Result<Header> parse_header(Bytes bytes, const Layout& layout) {
  if (text_of(bytes.first(magic.size())) != magic) return corrupt("does not begin with FLP1");
  if (const auto version = load<std::uint16_t>(bytes, 4); version != payload_version) {
    return corrupt("version {}, this program knows version {}", version, payload_version);
  }
  FL_TRY(const Digest digest, Digest::from_bytes(text_of(bytes.subspan(8, 16))));
  const auto elements = load<std::uint64_t>(bytes, 24);
  if (digest != layout.digest() || elements != layout.elements()) {
    return Error(Errc::conflict,
                 fmt::format("payload: of layout {} with {} elements, wanted is {} with {}",
                             digest.hex(), elements, layout.digest().hex(), layout.elements()));
  }
  const Header header = {.spec_bytes = load<std::uint16_t>(bytes, 6),
                         .block_elements = load<std::uint32_t>(bytes, 32),
                         .blocks = load<std::uint32_t>(bytes, 36)};
  if (header.spec_bytes > spec_bytes_max) {
    return corrupt("a spec of {} bytes, at most {} are allowed", header.spec_bytes, spec_bytes_max);
  }
  if (header.block_elements < block_elements_min || header.block_elements > block_elements_max) {
    return corrupt("blocks of {} elements, allowed are {} to {}", header.block_elements,
                   block_elements_min, block_elements_max);
  }
  return header;
}

}  // namespace

std::vector<std::byte> payload_prefix(const BlockMap& map, std::string_view spec,
                                      std::span<const std::uint32_t> block_bytes) {
  FL_ASSERT(spec.size() <= spec_bytes_max && block_bytes.size() == map.blocks());
  std::vector<std::byte> out(payload_header_bytes + spec.size() + block_bytes.size_bytes());
  std::memcpy(out.data(), magic.data(), magic.size());
  store(out, 4, payload_version);
  store(out, 6, static_cast<std::uint16_t>(spec.size()));
  const std::string digest = map.layout().digest().raw();
  std::memcpy(out.data() + 8, digest.data(), digest.size());
  store(out, 24, map.layout().elements());
  store(out, 32, map.block_elements());
  store(out, 36, static_cast<std::uint32_t>(map.blocks()));
  std::byte* const rest = out.data() + payload_header_bytes;
  std::ranges::copy(bytes_of(spec), rest);
  std::ranges::copy(bytes_of(block_bytes), rest + spec.size());
  return out;
}

Result<PayloadReader> PayloadReader::open(ByteSource& source, std::uint64_t bytes,
                                          const Layout& layout) {
  if (bytes < payload_header_bytes) return corrupt("{} bytes are no payload", bytes);
  std::array<std::byte, payload_header_bytes> raw;
  FL_CHECK(source.read(0, raw));
  FL_TRY(const Header header, parse_header(raw, layout));

  BlockMap map(layout, header.block_elements);
  if (header.blocks != map.blocks()) {
    return corrupt("{} blocks, the layout has {}", header.blocks, map.blocks());
  }
  // From here on every number is known to fit: the table is allocated only if it can be there.
  const std::uint64_t table_at = payload_header_bytes + header.spec_bytes;
  if (bytes < table_at + map.blocks() * sizeof(std::uint32_t)) {
    return corrupt("{} bytes, too few for the table of {} blocks", bytes, map.blocks());
  }
  std::string spec(header.spec_bytes, '\0');
  FL_CHECK(source.read(payload_header_bytes, std::as_writable_bytes(std::span(spec))));
  if (!std::ranges::all_of(spec, [](char c) { return c > ' ' && c <= '~'; })) {
    return corrupt("the spec has a character that is not printable");
  }
  PayloadReader reader(source, std::move(map), std::move(spec));
  FL_CHECK(reader.read_table(table_at, bytes));
  return reader;
}

Result<void> PayloadReader::read_table(std::uint64_t table_at, std::uint64_t bytes) {
  std::vector<std::uint32_t> sizes(blocks());
  FL_CHECK(source_->read(table_at, std::as_writable_bytes(std::span(sizes))));
  begin_.reserve(sizes.size() + 1);
  begin_.push_back(table_at + sizes.size() * sizeof(std::uint32_t));
  for (const std::uint32_t size : sizes) {
    // No method needs more than this, so that a hostile size can't make us allocate. A tensor's
    // first block may have one factor of all of it.
    const Block next = block(begin_.size() - 1);
    std::uint64_t most = 64 + low_rank_extra_bytes + std::uint64_t{8} * next.elements;
    if (next.first == 0) most += layout().tensors()[next.tensor].elements * sizeof(float);
    if (size > most) {
      return corrupt("{} has {} bytes", map_.describe(begin_.size() - 1), size);
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

Result<std::variant<Scan, SelectedValues>> PayloadReader::decode_or_select(std::uint64_t index,
                                                                           std::span<float> out) {
  using Either = std::variant<Scan, SelectedValues>;
  const auto bytes = look_at_block(index, bytes_);
  if (!bytes) return in_block(index, bytes.error());
  if (!is_sparse(*bytes)) {
    FL_TRY(const Scan scan, decode_bytes(index, *bytes, out));
    return Either(scan);
  }
  const Block block = map_.at(index);
  const auto selected = read_selected(*bytes, block.elements, scratch_);
  if (!selected) return in_block(index, selected.error());
  const std::span values = selected->values;
  // Of more than a 16th what is done to all values at once is done sooner.
  if (values.size() * 16 > block.elements) {
    FL_ASSERT(out.size() == block.elements);
    place(*selected, out);
    FL_TRY(const Scan scan, scan_finite(block, out));
    return Either(scan);
  }
  const auto bad = kernels().scan(values.data(), values.size()).first_bad;
  if (bad < values.size())
    return corrupt("{} is {}", layout().describe(block.flat + selected->indices[bad]), values[bad]);
  return Either(*selected);
}

Result<Scan> PayloadReader::decode_bytes(std::uint64_t index, Bytes bytes, std::span<float> out) {
  const Block block = map_.at(index);
  FL_ASSERT(out.size() == block.elements);
  const auto decoded = [&]() -> Result<void> {
    if (!is_low_rank(bytes)) return decode_block(bytes, out, scratch_);
    FL_TRY(const RightFactor* const right, right_factor_of(index, bytes));
    return decode_low_rank(bytes, layout().tensors()[block.tensor], block, *right, out);
  }();
  if (!decoded) return in_block(index, decoded.error());
  return scan_finite(block, out);
}

Result<Scan> PayloadReader::scan_finite(const Block& block, std::span<const float> values) const {
  const Scan scan = kernels().scan(values.data(), values.size());
  if (scan.first_bad == values.size()) return scan;
  return corrupt("{} is {}", layout().describe(block.flat + scan.first_bad),
                 values[scan.first_bad]);
}

Error PayloadReader::in_block(std::uint64_t index, const Error& error) const {
  return error.at("payload: " + map_.describe(index));
}

Result<Bytes> PayloadReader::look_at_block(std::uint64_t index, std::vector<std::byte>& scratch) {
  return source_->look(begin_[index], begin_[index + 1] - begin_[index], scratch);
}

/// For the block that has these bytes.
Result<const RightFactor*> PayloadReader::right_factor_of(std::uint64_t index, Bytes bytes) {
  const Block block = map_.at(index);
  if (right_factor_ && right_factor_tensor_ == block.tensor) return &*right_factor_;
  right_factor_.reset();
  std::vector<std::byte> scratch;
  if (block.first > 0) {
    FL_TRY(bytes, look_at_block(index - block.first / map_.block_elements(), scratch));
  }
  FL_TRY(right_factor_, read_right_factor(bytes, layout().tensors()[block.tensor]));
  right_factor_tensor_ = block.tensor;
  return &*right_factor_;
}

Result<void> PayloadReader::decode_by(int threads, const DecodeOne& decode_one) {
  Lanes lanes(threads, blocks() / map_.run_blocks());
  // Each with buffers of its own.
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

}  // namespace fl
