// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/codec_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/io/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fl::codec {

namespace {

constexpr std::string_view state_magic = "FLS1";
constexpr std::size_t state_head_bytes = 4 + sizeof(std::uint32_t);
constexpr std::size_t entry_head_bytes = sizeof(std::uint32_t) + sizeof(std::uint64_t);

Error bad_state(std::string_view what) {
  return {Errc::corrupt, fmt::format("codec state: {}", what)};
}

}  // namespace

Result<CodecState> CodecState::parse(Bytes bytes) {
  const std::size_t digest_bytes = Digest::of({}).raw().size();
  if (bytes.size() < state_head_bytes + digest_bytes) return bad_state("the bytes are cut off");
  Bytes rest = bytes.first(bytes.size() - digest_bytes);
  if (text_of(bytes.last(digest_bytes)) != Digest::of(rest).raw()) {
    return bad_state("its digest does not match");
  }
  if (text_of(rest.first(state_magic.size())) != state_magic) {
    return bad_state("it does not begin with FLS1");
  }
  const auto count = load<std::uint32_t>(rest, state_magic.size());
  rest = rest.subspan(state_head_bytes);
  CodecState state;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (rest.size() < entry_head_bytes) return bad_state("an entry is cut off");
    const auto name_bytes = load<std::uint32_t>(rest, 0);
    const auto values = load<std::uint64_t>(rest, sizeof(std::uint32_t));
    rest = rest.subspan(entry_head_bytes);
    if (name_bytes > rest.size() || values > (rest.size() - name_bytes) / sizeof(float)) {
      return bad_state("an entry is longer than what is left");
    }
    std::string name(text_of(rest.first(name_bytes)));
    rest = rest.subspan(name_bytes);
    std::vector<float> entry(values);
    std::ranges::copy(rest.first(values * sizeof(float)),
                      std::as_writable_bytes(std::span(entry)).begin());
    rest = rest.subspan(values * sizeof(float));
    if (kernels().scan(entry.data(), entry.size()).first_bad != entry.size()) {
      return bad_state("a value is not finite");
    }
    if (!state.entries_.emplace(std::move(name), std::move(entry)).second) {
      return bad_state("two entries have the same name");
    }
  }
  if (!rest.empty()) return bad_state("there are bytes behind the last entry");
  return state;
}

std::vector<std::byte> CodecState::bytes() const {
  std::vector<std::byte> out(state_head_bytes);
  std::memcpy(out.data(), state_magic.data(), state_magic.size());
  store(out, state_magic.size(), static_cast<std::uint32_t>(entries_.size()));
  const auto append = [&out](Bytes more) { out.insert(out.end(), more.begin(), more.end()); };
  for (const auto& [name, values] : entries_) {
    const std::size_t at = out.size();
    out.resize(at + entry_head_bytes);
    store(out, at, static_cast<std::uint32_t>(name.size()));
    store(out, at + sizeof(std::uint32_t), std::uint64_t{values.size()});
    append(bytes_of(std::string_view(name)));
    append(std::as_bytes(std::span(values)));
  }
  const std::string digest = Digest::of(out).raw();
  append(bytes_of(std::string_view(digest)));
  return out;
}

std::span<const float> CodecState::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? std::span<const float>() : found->second;
}

void CodecState::set(std::string name, std::vector<float> values) {
  entries_.insert_or_assign(std::move(name), std::move(values));
  is_changed_ = true;
}

}  // namespace fl::codec
