// SPDX-License-Identifier: Apache-2.0
#include "client/state/state_folder.hpp"

#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::client {

namespace {

constexpr std::size_t block_bytes = 1 << 20;
constexpr std::string_view manifest_name = "client.json";
constexpr std::string_view spare_name = "update-spare";
// A refused update leaves two residuals, two velocities and two references: its own, and those
// before.
constexpr std::size_t spare_vectors_max = 6;

bool is_ours(std::string_view name) {
  return name.starts_with("update-") || name.starts_with("residual-") ||
         name.starts_with("local-values-") || name.starts_with("velocity-") ||
         name.starts_with("codec-state-") || name.starts_with("reference-") ||
         name.starts_with("scratch-");
}

nlohmann::json json_of(const OwnTensors& own) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorSpec& tensor : own.tensors) tensors.push_back({tensor.name, tensor.shape});
  return {{"model", own.model},
          {"strategy", own.strategy},
          {"tensors", tensors},
          {"local_values", own.local_values}};
}

OwnTensors own_tensors_in(const nlohmann::json& json) {
  OwnTensors own{json.at("model").get<std::string>(),
                 json.at("strategy").get<std::string>(),
                 {},
                 json.at("local_values").get<std::uint64_t>()};
  for (const auto& tensor : json.at("tensors"))
    own.tensors.push_back(
        {tensor.at(0).get<std::string>(), tensor.at(1).get<std::vector<std::int64_t>>()});
  return own;
}

KeptFiles kept_in(const nlohmann::json& json) {
  return {json.value("residual", ""),  json.value("local_values", ""),
          json.value("velocity", ""),  json.value("codec_state", ""),
          json.value("reference", ""), json.value("reference_task", std::int64_t{0})};
}

void put_kept(const KeptFiles& kept, nlohmann::json& json) {
  if (!kept.residual.empty()) json["residual"] = kept.residual;
  if (!kept.local_values.empty()) json["local_values"] = kept.local_values;
  if (!kept.velocity.empty()) json["velocity"] = kept.velocity;
  if (!kept.codec_state.empty()) json["codec_state"] = kept.codec_state;
  if (!kept.reference.empty()) json["reference"] = kept.reference;
  if (kept.reference_task != 0) json["reference_task"] = kept.reference_task;
}

}  // namespace

bool KeptFiles::has(std::string_view name) const {
  return name == residual || name == local_values || name == velocity || name == codec_state ||
         name == reference;
}

Result<Digest> digest_of_beginning(File& file, std::uint64_t bytes) {
  if (const Bytes there = file.view(0, bytes); !there.empty()) return Digest::of(there);
  Hasher hasher;
  std::vector<std::byte> block(
      static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, bytes)));
  for (std::uint64_t at = 0; at < bytes; at += block.size()) {
    const MutableBytes part(
        block.data(), static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), bytes - at)));
    FL_CHECK(file.read_exactly(at, part));
    hasher.update(part);
  }
  return hasher.digest();
}

Result<void> StateFolder::load() {
  FL_CHECK(files_->make_folder(path_));
  FL_CHECK(read_manifest());
  return remove_strays();
}

Result<void> StateFolder::read_manifest() {
  const auto path = path_ / manifest_name;
  if (!files_->exists(path)) return {};
  FL_TRY(const std::string text, files_->read_all(path));
  const auto bad = [&](std::string_view what) {
    return Error(
        Errc::corrupt,
        fmt::format(
            "{}: {}; restore the file from a backup. If you remove it, this client starts from "
            "scratch and loses what it keeps between rounds: an update that is not delivered, the "
            "residual of error feedback, personal layers or its own model, and its part of "
            "SCAFFOLD's or FedDyn's correction",
            path.string(), what));
  };
  const auto json = parse_json(text);
  if (!json.is_object()) return bad("not a JSON object");
  try {
    run_key_ = json.at("run").get<std::string>();
    kept_ = kept_in(json);
    next_number_ = json.at("next").get<std::uint64_t>();
    if (json.contains("own")) own_ = own_tensors_in(json.at("own"));
    if (json.contains("pending")) {
      PendingUpdate pending;
      pending.file = json.at("pending").at("file").get<std::string>();
      pending.kept = kept_in(json.at("pending"));
      const auto raw = json.at("pending").at("begin").get<std::vector<std::uint8_t>>();
      if (!pending.begin.ParseFromArray(raw.data(), static_cast<int>(raw.size())))
        return bad("the record of its pending update is invalid");
      pending_ = std::move(pending);
    }
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
  return {};
}

Result<void> StateFolder::remove_strays() {
  FL_TRY(const auto names, files_->list(path_));
  for (const auto& name : names) {
    const bool is_pending = pending_ && (name == pending_->file || pending_->kept.has(name));
    if (!is_ours(name) || kept_.has(name) || is_pending || is_spare(name)) continue;
    FL_CHECK(files_->remove(path_ / name));
  }
  return {};
}

Result<void> StateFolder::write_manifest() {
  nlohmann::json json{{"run", run_key_}, {"next", next_number_}};
  put_kept(kept_, json);
  if (own_) json["own"] = json_of(*own_);
  if (pending_) {
    std::vector<std::uint8_t> raw(pending_->begin.ByteSizeLong());
    pending_->begin.SerializeToArray(raw.data(), static_cast<int>(raw.size()));
    json["pending"] = {{"file", pending_->file}, {"begin", raw}};
    put_kept(pending_->kept, json["pending"]);
  }
  const std::string text = json_text(json);
  return files_->write_atomically(path_ / manifest_name, bytes_of(text));
}

std::string StateFolder::next_name(std::string_view kind) {
  return fmt::format("{}-{}", kind, next_number_++);
}

Result<void> StateFolder::begin_run(const std::string& run_key) {
  const std::string before = std::exchange(run_key_, run_key);
  auto own_before = std::exchange(own_, std::nullopt);
  if (auto written = replace(std::nullopt, {}); !written) {
    run_key_ = before;
    own_ = std::move(own_before);
    return written.error();
  }
  return remove_strays();
}

Result<NewValues> StateFolder::new_values(std::string_view kind, std::uint64_t elements) {
  NewValues fresh{next_name(kind), {}};
  const auto path = path_ / fresh.name;
  const auto spare = std::ranges::find_if(spare_vectors_, [&](const std::string& name) {
    return name.substr(0, name.rfind('-')) == kind;
  });
  bool has_spare = spare != spare_vectors_.end();
  if (has_spare) {
    const auto renamed = files_->rename(path_ / *spare, path);
    spare_vectors_.erase(spare);
    // If somebody has removed the file, a new one serves as well.
    has_spare = renamed.has_value();
    if (!renamed && renamed.error().code() != Errc::not_found) return renamed.error();
  }
  FL_TRY(fresh.values, StoredValues::make(*files_, path, elements,
                                          has_spare ? OpenMode::update : OpenMode::truncate));
  return fresh;
}

Result<std::string> StateFolder::write_new(std::string_view kind, Bytes bytes) {
  const std::string name = next_name(kind);
  FL_TRY(auto file, files_->open(path_ / name, OpenMode::truncate));
  FL_CHECK(file->write_at(0, bytes));
  FL_CHECK(file->sync());
  return name;
}

Result<StateFolder::NewFile> StateFolder::new_update_file() {
  NewFile fresh{next_name("update"), nullptr};
  const bool has_spare = !spare_file_.empty();
  if (has_spare) FL_CHECK(files_->rename(path_ / spare_file_, path_ / fresh.name));
  spare_file_.clear();
  FL_TRY(fresh.file,
         files_->open(path_ / fresh.name, has_spare ? OpenMode::update : OpenMode::truncate));
  return fresh;
}

Result<StoredValues> StateFolder::open_values(const std::string& name,
                                              std::uint64_t elements) const {
  if (name.empty()) return StoredValues();
  return StoredValues::open(*files_, path_ / name, elements);
}

Result<void> StateFolder::add_pending(PendingUpdate update, std::unique_ptr<File> file) {
  FL_ASSERT(!pending_);
  FL_CHECK(replace(std::move(update), kept_));
  pending_file_ = std::move(file);
  return {};
}

Result<std::shared_ptr<File>> StateFolder::open_pending() {
  FL_ASSERT(pending_.has_value());
  if (pending_file_) return pending_file_;
  FL_TRY(auto file, files_->open(path_ / pending_->file, OpenMode::read));
  FL_TRY(const std::uint64_t size, file->size());
  if (size != pending_->begin.bytes())
    return Error(Errc::corrupt, fmt::format("size mismatch: expected {} bytes, got {}",
                                            pending_->begin.bytes(), size));
  FL_TRY(const Digest digest, digest_of_beginning(*file, size));
  FL_TRY(const Digest expected, Digest::from_bytes(pending_->begin.digest()));
  if (digest != expected)
    return Error(Errc::corrupt,
                 fmt::format("digest mismatch: expected {}, got {}", expected.hex(), digest.hex()));
  pending_file_ = std::move(file);
  return pending_file_;
}

Result<void> StateFolder::settle(KeptFiles kept) {
  FL_ASSERT(pending_.has_value());
  const std::string settled = pending_->file;
  const KeptFiles before = kept_;
  const KeptFiles pending = pending_->kept;
  FL_CHECK(replace(std::nullopt, std::move(kept)));
  spare_vectors(before);
  spare_vectors(pending);
  if (!files_->exists(path_ / settled)) return {};
  FL_CHECK(files_->rename(path_ / settled, path_ / spare_name));
  spare_file_ = spare_name;
  return {};
}

Result<void> StateFolder::forget_pending() {
  FL_CHECK(replace(std::nullopt, kept_));
  return remove_strays();
}

void StateFolder::drop_spares() {
  if (!spare_file_.empty()) spare_vectors_.push_back(std::exchange(spare_file_, ""));
  for (const std::string& name : std::exchange(spare_vectors_, {}))
    [[maybe_unused]] const auto removed = files_->remove(path_ / name);
}

/// Keeps those of these vectors for the next update that the manifest does not name any more. Local
/// values are not among them: a trainer may still have them mapped.
void StateFolder::spare_vectors(const KeptFiles& before) {
  for (const std::string& name : {before.residual, before.velocity, before.reference}) {
    const bool is_used = name.empty() || kept_.has(name) || is_spare(name);
    if (!is_used && spare_vectors_.size() < spare_vectors_max) spare_vectors_.push_back(name);
  }
}

bool StateFolder::is_spare(std::string_view name) const {
  return name == spare_file_ || std::ranges::find(spare_vectors_, name) != spare_vectors_.end();
}

/// Writes a manifest with these. After an error the manifest and the members are as before.
Result<void> StateFolder::replace(std::optional<PendingUpdate> pending, KeptFiles kept) {
  pending_file_.reset();
  std::swap(pending_, pending);
  std::swap(kept_, kept);
  auto written = write_manifest();
  if (!written) {
    pending_ = std::move(pending);
    kept_ = std::move(kept);
  }
  return written;
}

}  // namespace fl::client
