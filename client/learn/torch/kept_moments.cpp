// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/kept_moments.hpp"

#include "shared/base/spec/spec_text.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace fl {

namespace {

// A whole number is two values that an fp32 holds exactly.
constexpr std::int64_t exact_unit = 1 << 24;
constexpr std::string_view whole_name = "optimizer";
constexpr std::string_view part_name_begin = "optimizer.";

void put(std::vector<float>& values, std::int64_t number) {
  values.push_back(static_cast<float>(number / exact_unit));
  values.push_back(static_cast<float>(number % exact_unit));
}
std::int64_t number_at(std::span<const float> values, std::size_t index) {
  return static_cast<std::int64_t>(values[2 * index]) * exact_unit +
         static_cast<std::int64_t>(values[2 * index + 1]);
}

std::string part_name(std::int64_t number) { return fmt::format("{}{}", part_name_begin, number); }

/// A file's contents.
struct Stored {
  Moments moments;
  std::vector<Piece> pieces;
};

Layout layout_of(const Stored& stored) {
  std::vector<TensorSpec> specs;
  const auto add = [&specs](const char* name, std::size_t elements) {
    if (elements > 0) specs.push_back({name, {static_cast<std::int64_t>(elements)}});
  };
  add("first", stored.moments.first.size());
  add("second", stored.moments.second.size());
  add("steps", 2);
  add("pieces", 6 * stored.pieces.size());
  return Layout::make(specs).value();
}

Result<Stored> read_stored(Files& files, const std::filesystem::path& path) {
  const auto read = [&]() -> Result<Stored> {
    FL_TRY(const auto file, files.open(path, OpenMode::read));
    FL_TRY(const SafetensorsInfo info, read_safetensors_header(*file));
    std::vector<float> values(info.layout.elements());
    FL_CHECK(read_safetensors(*file, info.layout, values));
    Stored stored;
    std::size_t elements = 0;
    for (const Layout::Tensor& tensor : info.layout.tensors()) {
      const auto part = std::span<const float>(values).subspan(tensor.offset, tensor.elements);
      if (tensor.name == "first") stored.moments.first.assign(part.begin(), part.end());
      if (tensor.name == "second") stored.moments.second.assign(part.begin(), part.end());
      if (tensor.name == "steps" && tensor.elements == 2)
        stored.moments.steps = static_cast<std::uint64_t>(number_at(part, 0));
      for (std::size_t i = 0; tensor.name == "pieces" && 6 * i + 6 <= tensor.elements; ++i)
        stored.pieces.push_back(
            {number_at(part, 3 * i), number_at(part, 3 * i + 1), number_at(part, 3 * i + 2)});
    }
    elements = std::max(stored.moments.first.size(), stored.moments.second.size());
    // Releases before parts, and processes with all parameters, write no pieces.
    if (stored.pieces.empty()) stored.pieces = {{0, static_cast<std::int64_t>(elements), 0}};
    for (const Piece& piece : stored.pieces) {
      const bool fits = piece.begin >= 0 && piece.count >= 0 && piece.at >= 0 &&
                        std::cmp_less_equal(piece.at + piece.count, elements);
      if (!fits) return Error(Errc::corrupt, "its pieces are not those of its moments");
    }
    return stored;
  };
  auto stored = read();
  if (!stored) return stored.error().at(path.string());
  return stored;
}

/// Copies what two parts have in common; returns its number of elements. `to_pieces` are in the
/// order of the model.
std::int64_t copy_common(const std::vector<float>& from, const std::vector<Piece>& from_pieces,
                         std::vector<float>& to, const std::vector<Piece>& to_pieces) {
  std::int64_t copied = 0;
  for (const Piece& source : from_pieces) {
    const std::int64_t source_end = source.begin + source.count;
    auto target = std::ranges::partition_point(
        to_pieces, [&](const Piece& one) { return one.begin + one.count <= source.begin; });
    for (; target != to_pieces.end() && target->begin < source_end; ++target) {
      const std::int64_t begin = std::max(source.begin, target->begin);
      const std::int64_t end = std::min(source_end, target->begin + target->count);
      copied += end - begin;
      if (!from.empty())
        std::copy_n(from.begin() + (source.at + begin - source.begin), end - begin,
                    to.begin() + (target->at + begin - target->begin));
    }
  }
  return copied;
}

}  // namespace

KeptMoments::KeptMoments(Files& files, std::filesystem::path folder, std::optional<Part> part)
    : files_(files),
      folder_(std::move(folder)),
      part_(part),
      name_(part ? part_name(part->number) : whole_name) {}

RoundFiles KeptMoments::files_of(const std::string& name) const {
  return {files_, folder_, name, "safetensors"};
}

/// The names under which moments lie here, this part's first.
Result<std::vector<std::string>> KeptMoments::names() const {
  FL_TRY(const auto all, files_.list(folder_));
  std::vector<std::string> found{name_};
  for (const std::string& file : all) {
    std::string name(cut(file, '-').first);
    const bool is_ours = name == whole_name || name.starts_with(part_name_begin);
    if (is_ours && std::ranges::find(found, name) == found.end()) found.push_back(std::move(name));
  }
  return found;
}

Result<Moments> KeptMoments::before(const std::string& run_key, std::uint32_t round,
                                    const std::vector<Piece>& pieces, std::int64_t elements) {
  FL_TRY(const auto all, names());
  std::vector<std::string> newest;  // Those with a file of the newest round.
  std::optional<std::uint32_t> newest_round;
  for (const std::string& name : all) {
    FL_TRY(const auto found, files_of(name).round_before(run_key, round));
    if (!found || found < newest_round) continue;
    if (found > newest_round) newest.clear();
    newest_round = found;
    newest.push_back(name);
  }
  Moments moments;
  std::int64_t wanted = 0;
  for (const Piece& piece : pieces) wanted += piece.count;
  for (const std::string& name : newest) {
    FL_TRY(const Stored stored,
           read_stored(files_, files_of(name).path_of(run_key, *newest_round)));
    if (!stored.moments.first.empty()) moments.first.resize(static_cast<std::size_t>(elements));
    if (!stored.moments.second.empty()) moments.second.resize(static_cast<std::size_t>(elements));
    wanted -= copy_common(stored.moments.first, stored.pieces, moments.first, pieces);
    copy_common(stored.moments.second, stored.pieces, moments.second, pieces);
    moments.steps = stored.moments.steps;
    if (wanted <= 0) return moments;
  }
  return Moments();
}

Result<void> KeptMoments::keep(const std::string& run_key, std::uint32_t round,
                               const Moments& moments, const std::vector<Piece>& pieces) {
  const Stored stored{moments, part_ ? pieces : std::vector<Piece>()};
  std::vector<float> values = moments.first;
  values.insert(values.end(), moments.second.begin(), moments.second.end());
  put(values, static_cast<std::int64_t>(moments.steps));
  for (const Piece& piece : stored.pieces)
    for (const std::int64_t number : {piece.begin, piece.count, piece.at}) put(values, number);
  const RoundFiles rounds = files_of(name_);
  FL_CHECK(replace_safetensors(files_, rounds.path_of(run_key, round), layout_of(stored), values));
  if (part_ && part_->number == 0) FL_CHECK(remove_surplus());
  return rounds.remove_old(run_key, round);
}

/// A part of a larger number of ranks would be taken for one of today's.
Result<void> KeptMoments::remove_surplus() const {
  FL_TRY(const auto all, files_.list(folder_));
  for (const std::string& file : all) {
    const auto [name, rest] = cut(file, '-');
    if (!rest || !name.starts_with(part_name_begin)) continue;
    const auto number = number_in<std::int64_t>(name.substr(part_name_begin.size()));
    if (number && *number >= part_->parts) FL_CHECK(files_.remove(folder_ / file));
  }
  return {};
}

}  // namespace fl
