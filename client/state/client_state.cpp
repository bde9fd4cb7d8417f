// SPDX-License-Identifier: Apache-2.0
#include "client/state/client_state.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/json.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

using client::StoredValues;

namespace {

constexpr std::string_view manifest_name = "client.json";
constexpr std::string_view spare_name = "update-spare";

bool is_ours(std::string_view name) {
  return name.starts_with("update-") || name.starts_with("residual-") ||
         name.starts_with("local-values-") || name.starts_with("velocity-") ||
         name.starts_with("codec-state-") || name.starts_with("reference-") ||
         name.starts_with("scratch-");
}

nlohmann::json json_of(const ClientState::OwnTensors& own) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorSpec& tensor : own.tensors) tensors.push_back({tensor.name, tensor.shape});
  return {{"model", own.model},
          {"strategy", own.strategy},
          {"tensors", tensors},
          {"local_values", own.local_values}};
}

ClientState::OwnTensors own_tensors_in(const nlohmann::json& json) {
  ClientState::OwnTensors own{json.at("model").get<std::string>(),
                              json.at("strategy").get<std::string>(),
                              {},
                              json.at("local_values").get<std::uint64_t>()};
  for (const auto& tensor : json.at("tensors"))
    own.tensors.push_back(
        {tensor.at(0).get<std::string>(), tensor.at(1).get<std::vector<std::int64_t>>()});
  return own;
}

}  // namespace

bool ClientState::Kept::has(std::string_view name) const {
  return name == residual || name == local_values || name == velocity || name == codec_state ||
         name == reference;
}

ClientState::Kept ClientState::kept_in(const nlohmann::json& json) {
  return {json.value("residual", ""),  json.value("local_values", ""),
          json.value("velocity", ""),  json.value("codec_state", ""),
          json.value("reference", ""), json.value("reference_task", std::int64_t{0})};
}

void ClientState::put_kept(const Kept& kept, nlohmann::json& json) {
  if (!kept.residual.empty()) json["residual"] = kept.residual;
  if (!kept.local_values.empty()) json["local_values"] = kept.local_values;
  if (!kept.velocity.empty()) json["velocity"] = kept.velocity;
  if (!kept.codec_state.empty()) json["codec_state"] = kept.codec_state;
  if (!kept.reference.empty()) json["reference"] = kept.reference;
  if (kept.reference_task != 0) json["reference_task"] = kept.reference_task;
}

Result<ClientState> ClientState::open(Files& files, std::filesystem::path folder, int threads) {
  ClientState state(files, std::move(folder), threads);
  FL_CHECK(state.load());
  return state;
}

Result<void> ClientState::load() {
  FL_CHECK(files_->make_folder(folder_));
  FL_CHECK(read_manifest());
  return remove_strays();
}

Result<void> ClientState::read_manifest() {
  const auto path = folder_ / manifest_name;
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
      Pending pending;
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

Result<void> ClientState::remove_strays() {
  FL_TRY(const auto names, files_->list(folder_));
  for (const auto& name : names) {
    const bool is_pending = pending_ && (name == pending_->file || pending_->kept.has(name));
    if (!is_ours(name) || kept_.has(name) || is_pending || name == spare_file_) continue;
    FL_CHECK(files_->remove(folder_ / name));
  }
  return {};
}

Result<void> ClientState::write_manifest() {
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
  return files_->write_atomically(folder_ / manifest_name, bytes_of(text));
}

std::string ClientState::next_name(std::string_view kind) {
  return fmt::format("{}-{}", kind, next_number_++);
}

Result<bool> ClientState::enter_run(const std::string& run_key) {
  if (run_key == run_key_) return false;
  drop_spare();
  // This was done at the end of the run too, but the client may have been killed there.
  if (const auto path = export_own_tensors(); !path) {
    const Errc code = path.error().code();
    // Damaged values can't be saved by trying again.
    if (code != Errc::corrupt && code != Errc::not_found) return path.error();
    log_warn("{}", path.error().message());
  }
  const std::string before = std::exchange(run_key_, run_key);
  auto own_before = std::exchange(own_, std::nullopt);
  if (auto written = replace(std::nullopt, {}); !written) {
    run_key_ = before;
    own_ = std::move(own_before);
    return written.error();
  }
  FL_CHECK(remove_strays());
  return true;
}

Result<std::shared_ptr<File>> ClientState::open_pending() {
  FL_ASSERT(pending_.has_value());
  if (pending_file_) return pending_file_;
  FL_TRY(auto file, files_->open(folder_ / pending_->file, OpenMode::read));
  FL_TRY(const std::uint64_t size, file->size());
  if (size != pending_->begin.bytes())
    return Error(Errc::corrupt, fmt::format("size mismatch: expected {} bytes, got {}",
                                            pending_->begin.bytes(), size));
  FL_TRY(const Digest digest, digest_of(*file, size));
  FL_TRY(const Digest expected, Digest::from_bytes(pending_->begin.digest()));
  if (digest != expected)
    return Error(Errc::corrupt,
                 fmt::format("digest mismatch: expected {}, got {}", expected.hex(), digest.hex()));
  pending_file_ = std::move(file);
  return pending_file_;
}

Result<void> ClientState::forget_pending() {
  FL_CHECK(replace(std::nullopt, kept_));
  return remove_strays();
}

Result<StoredValues> ClientState::open_values(const std::string& name,
                                              std::uint64_t elements) const {
  if (name.empty()) return StoredValues();
  return StoredValues::open(*files_, folder_ / name, elements);
}

Result<StoredValues> ClientState::residual(const Layout& layout) const {
  return open_values((pending_ ? pending_->kept : kept_).residual, layout.elements());
}

Result<StoredValues> ClientState::reference(const Layout& layout) const {
  return open_values(kept_.reference, layout.elements());
}

Result<StoredValues> ClientState::local_values(std::uint64_t elements) const {
  return open_values(kept_.local_values, elements);
}

Result<ClientState::NewValues> ClientState::new_values(std::string_view kind,
                                                       std::uint64_t elements) {
  NewValues fresh{next_name(kind), {}};
  FL_TRY(fresh.values, StoredValues::make(*files_, folder_ / fresh.name, elements));
  return fresh;
}

Result<ClientState::NewValues> ClientState::new_local_values(std::uint64_t elements) {
  if (elements == 0) return NewValues();
  return new_values("local-values", elements);
}

Result<std::filesystem::path> ClientState::export_own_tensors() const {
  if (!own_ || kept_.local_values.empty()) return std::filesystem::path();
  const auto path = folder_ / fmt::format("personal-{}.safetensors", run_key_);
  const auto write = [&]() -> Result<void> {
    FL_TRY(const Layout layout, Layout::make(own_->tensors));
    FL_TRY(const auto kept, local_values(own_->local_values));
    if (layout.elements() > kept.size())
      return Error(Errc::corrupt, fmt::format("the state has {} values, expected at least {}",
                                              kept.size(), layout.elements()));
    const Metadata about{{"run", run_key_}, {"model", own_->model}, {"strategy", own_->strategy}};
    FL_CHECK(
        replace_safetensors(*files_, path, layout, kept.values().last(layout.elements()), about));
    return kept.check();
  };
  if (const auto written = write(); !written)
    return written.error().at("can't write this client's own tensors to " + path.string());
  return path;
}

/// Ends the pending update. Its file becomes the spare file for the next update.
Result<void> ClientState::settle(Kept kept) {
  const std::string settled = pending_->file;
  FL_CHECK(replace(std::nullopt, std::move(kept)));
  if (!files_->exists(folder_ / settled)) return {};
  FL_CHECK(files_->rename(folder_ / settled, folder_ / spare_name));
  spare_file_ = spare_name;
  return {};
}

void ClientState::drop_spare() {
  if (spare_file_.empty()) return;
  [[maybe_unused]] const auto removed = files_->remove(folder_ / spare_file_);
  spare_file_.clear();
}

Result<void> ClientState::settle_accepted() {
  if (!pending_) return {};
  FL_CHECK(settle(pending_->kept));
  failpoint("update.settled");
  return remove_strays();
}

Result<void> ClientState::settle_unused(const RunLayout& layout, bool keeps_mass) {
  if (!pending_) return {};
  auto settled = put_back_and_settle(layout, keeps_mass);
  if (!settled) [[maybe_unused]]
    const auto removed = remove_strays();
  return settled;
}

Result<void> ClientState::put_back_and_settle(const RunLayout& layout, bool keeps_mass) {
  Kept kept = pending_->kept;
  kept.local_values = kept_.local_values;
  kept.reference = kept_.reference;
  kept.reference_task = kept_.reference_task;
  const bool is_delta = pending_->begin.codec().starts_with(delta_prefix);
  if (!keeps_mass && !is_delta) kept.residual.clear();
  if (!kept.residual.empty() && !is_delta) {
    FL_TRY(kept.residual, put_back(layout));
    FL_CHECK(files_->sync_folder(folder_));
  }
  FL_CHECK(settle(std::move(kept)));
  failpoint("update.put_back");
  return remove_strays();
}

/// Writes a new residual: the old one plus what the pending update has sent. Returns its name.
Result<std::string> ClientState::put_back(const RunLayout& layout) {
  FL_TRY(const auto before, residual(layout.all));
  FL_TRY(auto next, new_values("residual", layout.all.elements()));
  FL_TRY(const auto file, files_->open(folder_ / pending_->file, OpenMode::read));
  FileSource source(*file);
  FL_TRY(auto reader, PayloadReader::open(source, pending_->begin.bytes(), layout.all));
  FL_CHECK(add_decoded(before.values(), reader, client::write_into(next.values), threads_));
  // Only gradients can be sent later. The residual of statistics and shared vectors is 0.
  FL_CHECK(client::fill_zeros(next.values, layout.parameter_elements));
  FL_CHECK(before.check());
  FL_CHECK(next.values.sync());
  return next.name;
}

/// Writes a manifest with these. After an error the manifest and the members are as before.
Result<void> ClientState::replace(std::optional<Pending> pending, Kept kept) {
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

}  // namespace fl
