// SPDX-License-Identifier: Apache-2.0
#include "server/round/kept_round.hpp"

#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fl::server {

namespace {

constexpr std::string_view begin_of_name = "round-";
constexpr std::size_t piece_bytes = 1 << 20;

nlohmann::json json_of(const std::vector<KeptState>& files) {
  nlohmann::json all = nlohmann::json::array();
  for (const KeptState& each : files)
    all.push_back({{"file", each.file}, {"bytes", each.bytes}, {"digest", each.digest.hex()}});
  return all;
}

nlohmann::json json_of(const KeptRound& round) {
  nlohmann::json updates = nlohmann::json::array();
  for (const KeptUpdate& update : round.updates) {
    updates.push_back({{"file", update.file},
                       {"task", number_of(update.task)},
                       {"client", update.client},
                       {"codec", update.codec},
                       {"base_version", update.base_version},
                       {"examples", update.examples},
                       {"steps", update.steps},
                       {"reference", number_of(update.reference)},
                       {"bytes", update.bytes},
                       {"digest", update.digest.hex()}});
  }
  return {{"run", round.run_key},
          {"round", round.round},
          {"software", round.software},
          {"settings", parse_json(round.settings)},
          {"updates", std::move(updates)},
          {"state", json_of(round.state)},
          {"references", json_of(round.references)}};
}

template <class T>
void read_field(const nlohmann::json& json, const char* key, T& value) {
  json.at(key).get_to(value);
}

Result<Digest> digest_in(const nlohmann::json& json) {
  return Digest::parse_hex(json.at("digest").get<std::string>());
}

Result<std::vector<KeptState>> files_in(const nlohmann::json& json) {
  std::vector<KeptState> files;
  for (const auto& each : json) {
    KeptState& file = files.emplace_back();
    read_field(each, "file", file.file);
    read_field(each, "bytes", file.bytes);
    FL_TRY(file.digest, digest_in(each));
  }
  return files;
}

/// Throws nlohmann's exceptions for a value that is missing or of another kind.
Result<KeptRound> round_in(const nlohmann::json& json) {
  KeptRound round;
  read_field(json, "run", round.run_key);
  read_field(json, "round", round.round);
  read_field(json, "software", round.software);
  round.settings = json_text(json.at("settings"));
  for (const auto& each : json.at("updates")) {
    KeptUpdate& update = round.updates.emplace_back();
    read_field(each, "file", update.file);
    update.task = TaskId{each.at("task").get<std::int64_t>()};
    read_field(each, "client", update.client);
    read_field(each, "codec", update.codec);
    read_field(each, "base_version", update.base_version);
    read_field(each, "examples", update.examples);
    read_field(each, "steps", update.steps);
    update.reference = TaskId{each.value("reference", std::int64_t{0})};
    read_field(each, "bytes", update.bytes);
    FL_TRY(update.digest, digest_in(each));
  }
  FL_TRY(round.state, files_in(json.at("state")));
  // Older descriptions, from before deltas were kept, have no references.
  if (json.contains("references")) {
    FL_TRY(round.references, files_in(json.at("references")));
  }
  return round;
}

}  // namespace

std::string description_name(Round round) {
  return fmt::format("{}{:06}.json", begin_of_name, round);
}

std::string kept_update_name(Round round, const std::string& spool_file) {
  return fmt::format("{}{:06}-{}", begin_of_name, round, spool_file);
}

std::string kept_reference_name(Round round, TaskId reference) {
  return kept_update_name(round, fmt::format("task-{}-reference", reference));
}

std::optional<Round> round_of_kept(std::string_view name) {
  if (!name.starts_with(begin_of_name) || name.find('/') != std::string_view::npos)
    return std::nullopt;
  Round round = 0;
  const std::string_view digits = name.substr(begin_of_name.size());
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), round);
  if (parsed.ec != std::errc()) return std::nullopt;
  const bool is_ours =
      name == description_name(round) || name.starts_with(kept_update_name(round, "task-"));
  return is_ours ? std::optional(round) : std::nullopt;
}

std::vector<KeptState> files_beside(const KeptRound& round) {
  std::vector<KeptState> files = round.references;
  for (const KeptUpdate& update : round.updates)
    files.push_back({update.file, update.bytes, update.digest});
  return files;
}

KeptUpdate kept_update_of(Round round, const TaskRecord& task) {
  return {kept_update_name(round, task.spool_file),
          task.id,
          task.client,
          task.codec,
          task.base_version,
          task.examples,
          task.steps,
          task.reference,
          task.update_bytes,
          task.update_digest};
}

Result<void> write_description(Files& files, const std::filesystem::path& folder,
                               const KeptRound& round) {
  const nlohmann::json described = json_of(round);
  const std::string digest = Digest::of(bytes_of(json_text(described))).hex();
  const nlohmann::json all{{"described", described}, {"digest", digest}};
  const std::string text = json_text(all) + "\n";
  return files.write_atomically(folder / description_name(round.round), bytes_of(text));
}

Result<KeptRound> read_description(Files& files, const std::filesystem::path& folder, Round round) {
  const auto path = folder / description_name(round);
  FL_TRY(const std::string text, files.read_all(path, limits::kept_description_bytes_max));
  const auto changed = [&path](std::string_view why) {
    return Error(Errc::corrupt, fmt::format("{} was changed: {}", path.string(), why));
  };
  // As many values as there are: this server wrote them, and their bytes have a limit.
  const auto json = parse_json(text, text.size());
  try {
    if (!json.is_object()) return changed("it is not a JSON object");
    const auto& described = json.at("described");
    const auto digest = digest_in(json);
    if (!digest || Digest::of(bytes_of(json_text(described))) != *digest)
      return changed("it has not the digest that stands in it");
    return round_in(described);
  } catch (const nlohmann::json::exception& error) {
    return changed(error.what());
  }
}

Result<std::vector<Round>> described_rounds(Files& files, const std::filesystem::path& folder) {
  std::vector<Round> rounds;
  const auto names = files.list(folder);
  if (!names && names.error().code() == Errc::not_found) return rounds;
  if (!names) return names.error();
  for (const auto& name : *names) {
    const auto round = round_of_kept(name);
    if (round && name == description_name(*round)) rounds.push_back(*round);
  }
  std::ranges::sort(rounds);
  return rounds;
}

Result<Digest> digest_of_file(Files& files, const std::filesystem::path& path,
                              std::uint64_t bytes) {
  FL_TRY(const auto file, files.open(path, OpenMode::read));
  std::vector<std::byte> piece(
      static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, bytes)));
  Hasher hasher;
  for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
    const MutableBytes part = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - at)));
    if (auto read = file->read_exactly(at, part); !read) return read.error().at(path.string());
    hasher.update(part);
  }
  return hasher.digest();
}

}  // namespace fl::server
