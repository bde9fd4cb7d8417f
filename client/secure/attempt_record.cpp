// SPDX-License-Identifier: Apache-2.0
#include "client/secure/attempt_record.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

namespace fl::client {

namespace {

using secure::Public;

Error unreadable(const std::filesystem::path& path, std::string_view what) {
  return {
      Errc::corrupt,
      fmt::format("{}: {}; remove the file, and this client leaves the attempt that it was part "
                  "of and trains that round again",
                  path.string(), what)};
}

template <class Bytes>
void read_digits(const nlohmann::json& json, const char* key, Bytes&& bytes) {
  if (!read_hex(json.at(key).get<std::string>(), bytes))
    throw_wrong_json(fmt::format("'{}' is not {} bytes in hexadecimal", key, bytes.size()));
}

template <class Kind>
void read_message(const nlohmann::json& json, const char* key, Kind& message) {
  const auto bytes = from_base64url(json.at(key).get<std::string>());
  if (!bytes || !message.ParseFromString(*bytes))
    throw_wrong_json(fmt::format("'{}' is no message of that kind", key));
}

template <class Kind>
void read_message(const nlohmann::json& json, const char* key, std::optional<Kind>& message) {
  if (json.contains(key)) read_message(json, key, message.emplace());
}

template <class Kind>
void write_message(nlohmann::json& json, const char* key, const Kind& message) {
  json[key] = to_base64url(bytes_of(std::string_view(message.SerializeAsString())));
}

template <class Kind>
void write_message(nlohmann::json& json, const char* key, const std::optional<Kind>& message) {
  if (message) write_message(json, key, *message);
}

}  // namespace

AttemptFile::AttemptFile(Files& files, const std::filesystem::path& folder)
    : files_(files), path_(folder / "attempt.json") {}

Result<void> AttemptFile::load() {
  record_.reset();
  if (!files_.exists(path_)) return {};
  FL_TRY(const std::string text, files_.read_all(path_, limits::attempt_record_bytes_max));
  const auto json = parse_json(text);
  if (!json.is_object()) return unreadable(path_, "it is not a JSON object");
  AttemptRecord record;
  try {
    read_digits(json, "seed", record.seed.bytes());
    read_digits(json, "weights", MutableBytes(record.weights));
    read_digits(json, "terms", MutableBytes(record.terms));
    record.loss = json.at("loss").get<double>();
    read_message(json, "offer", record.offer);
    read_message(json, "cohort", record.cohort);
    read_message(json, "inbox", record.inbox);
    read_message(json, "survivors", record.survivors);
    read_message(json, "ask", record.ask);
  } catch (const nlohmann::json::exception& error) {
    return unreadable(path_, error.what());
  }
  const bool is_in_order = (!record.ask || record.survivors) &&
                           (!record.survivors || record.inbox) && (!record.inbox || record.cohort);
  if (!is_in_order) return unreadable(path_, "it lacks a message that came before others");
  record_ = std::move(record);
  return {};
}

Result<void> AttemptFile::write(AttemptRecord record) {
  nlohmann::json json{{"seed", to_hex(record.seed.bytes())},
                      {"weights", to_hex(record.weights)},
                      {"terms", to_hex(record.terms)},
                      {"loss", record.loss}};
  write_message(json, "offer", record.offer);
  write_message(json, "cohort", record.cohort);
  write_message(json, "inbox", record.inbox);
  write_message(json, "survivors", record.survivors);
  write_message(json, "ask", record.ask);
  const std::string text = json_text(json);
  FL_CHECK(files_.write_atomically(path_, bytes_of(std::string_view(text))));
  record_ = std::move(record);
  return {};
}

Result<void> AttemptFile::remove() {
  record_.reset();
  FL_CHECK(files_.remove(path_));
  return files_.sync_folder(path_.parent_path());
}

Contributions::Contributions(Files& files, const std::filesystem::path& folder)
    : files_(files), folder_(folder), path_(folder / "contributions") {}

/// Reads "WEIGHTS TRANSCRIPT RUN TASK".
bool Contributions::read_line(std::string_view line) {
  constexpr std::size_t digits = 2 * secure::key_bytes;
  Public weights;
  Public transcript;
  if (line.size() < 2 * digits + 2 || line[digits] != ' ' || line[2 * digits + 1] != ' ')
    return false;
  if (!read_hex(line.substr(0, digits), weights) ||
      !read_hex(line.substr(digits + 1, digits), transcript))
    return false;
  transcripts_[weights].insert(transcript);
  return true;
}

Result<void> Contributions::load() {
  transcripts_.clear();
  count_ = 0;
  end_ = 0;
  if (!files_.exists(path_)) return {};
  FL_TRY(const std::string text, files_.read_all(path_, limits::contributions_bytes_max));
  // A line that was not written to its end is the last one, and nothing was signed for it.
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    if (!read_line(std::string_view(text).substr(at, end - at))) {
      if (end + 1 == text.size()) break;
      return Error(Errc::corrupt,
                   fmt::format("{}: line {} is damaged; restore the file from a backup. It keeps "
                               "this site from contributing to one version twice, which would show "
                               "its update",
                               path_.string(), count_ + 1));
    }
    at = end + 1;
    end_ = at;
    ++count_;
  }
  // The process that wrote the last line may have been killed before it was durable.
  FL_TRY(const auto file, files_.open(path_, OpenMode::update));
  FL_CHECK(file->sync());
  return files_.sync_folder(folder_);
}

Result<void> Contributions::check(const Public& weights) const {
  if (!transcripts_.contains(weights)) return {};
  return Error(
      Errc::invalid_input,
      "this site has contributed to this version already: two sums that differ by a member "
      "would show that member's update. A run with another --seed has other versions");
}

Result<void> Contributions::add(const Contribution& contribution) {
  const auto& [weights, transcript, run_key, task] = contribution;
  const auto found = transcripts_.find(weights);
  if (found != transcripts_.end() && found->second.contains(transcript)) return {};
  const std::string line =
      fmt::format("{} {} {} {}\n", to_hex(weights), to_hex(transcript), run_key, task);
  if (count_ >= limits::contributions_max || end_ + line.size() > limits::contributions_bytes_max) {
    return Error(Errc::invalid_input,
                 fmt::format("{} has {} contributions, and {} are the most: move it away only if "
                             "none of its runs can begin again",
                             path_.string(), count_, limits::contributions_max));
  }
  FL_TRY(const auto file, files_.open(path_, OpenMode::create));
  FL_CHECK(file->truncate(end_));
  FL_CHECK(file->write_at(end_, bytes_of(std::string_view(line))));
  FL_CHECK(file->sync());
  if (end_ == 0) FL_CHECK(files_.sync_folder(folder_));
  end_ += line.size();
  ++count_;
  transcripts_[weights].insert(transcript);
  return {};
}

}  // namespace fl::client
