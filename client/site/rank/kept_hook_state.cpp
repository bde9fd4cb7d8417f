// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/kept_hook_state.hpp"

#include "shared/base/io/bytes.hpp"
#include "shared/base/io/digest.hpp"

#include <fmt/format.h>

#include <torch/csrc/api/include/torch/serialize.h>
#include <span>
#include <string_view>

namespace fl::site {

namespace {

constexpr std::size_t digest_digits = 32;

/// A digest of what follows, then the tensors as libtorch writes them.
std::string to_bytes(const HookState& state) {
  c10::Dict<std::string, torch::Tensor> named;
  for (const auto& [name, tensor] : state) named.insert(name, tensor.cpu());
  const std::vector<char> pickled = torch::pickle_save(named);
  const std::string_view text(pickled.data(), pickled.size());
  return Digest::of(bytes_of(text)).hex() + std::string(text);
}

Result<HookState> from_bytes(std::string_view bytes) {
  const auto damaged = Error(Errc::corrupt,
                             "the file is damaged: remove it, and the hook begins "
                             "anew");
  if (bytes.size() < digest_digits) return damaged;
  const std::string_view told = bytes.substr(0, digest_digits);
  bytes.remove_prefix(digest_digits);
  if (Digest::of(bytes_of(bytes)).hex() != told) return damaged;
  HookState state;
  const auto value = torch::pickle_load({bytes.begin(), bytes.end()});
  for (const auto& entry : value.toGenericDict())
    state.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
  return state;
}

}  // namespace

Result<HookState> KeptHookState::before(const std::string& run_key, std::uint32_t round) const {
  FL_TRY(const auto path, rounds_.before(run_key, round));
  if (!path) return HookState();
  FL_TRY(const std::string bytes, files_.read_all(*path, UINT64_MAX));
  auto state = from_bytes(bytes);
  if (!state) return state.error().at(path->string());
  return state;
}

Result<void> KeptHookState::keep(const std::string& run_key, std::uint32_t round,
                                 const HookState& state) const {
  const std::string bytes = to_bytes(state);
  FL_CHECK(
      files_.write_atomically(rounds_.path_of(run_key, round), bytes_of(std::string_view(bytes))));
  return rounds_.remove_old(run_key, round);
}

}  // namespace fl::site
