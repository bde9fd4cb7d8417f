#include "client/state/client_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

constexpr std::string_view manifest_name = "client.json";
constexpr std::string_view spare_name = "update-spare";
constexpr std::size_t block_bytes = 1 << 20;

/// A file that is written from the front, and hashed on the way when its bytes come in order. The
/// payload's prefix is written last, so the digest is taken by reading back: still in the page
/// cache.
Result<Digest> digest_of(File& file, std::uint64_t bytes) {
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

bool is_ours(std::string_view name) {
  return name.starts_with("update-") || name.starts_with("residual-") ||
         name.starts_with("local-values-") || name.starts_with("velocity-") ||
         name.starts_with("codec-state-") || name.starts_with("reference-");
}

double power_of(std::span<const float> x) { return kernels().scan(x.data(), x.size()).sum_squares; }

/// What was lost of x when it was coded to the file, |x - decoded|^2 / |x|^2. If `is_kept` x
/// becomes what was lost.
Result<double> nmse_of(const Layout& layout, std::span<float> x, const Codec& codec, File& file,
                       std::uint64_t bytes, bool is_kept, int threads) {
  if (codec.is_exact()) {
    if (is_kept) std::ranges::fill(x, 0.0F);
    return 0.0;
  }
  FileSource source(file);
  FL_TRY(auto reader, PayloadReader::open(source, bytes, layout));
  return fl::nmse_of(x, reader, is_kept, threads);
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
  FL_CHECK(files.make_folder(state.folder_));
  FL_CHECK(state.load());
  FL_CHECK(state.remove_strays());
  return state;
}

Result<void> ClientState::load() {
  const auto path = folder_ / manifest_name;
  if (!files_->exists(path)) return {};
  FL_TRY(const std::string text, files_->read_all(path));
  const auto bad = [&](std::string_view what) {
    return Error(
        Errc::corrupt,
        fmt::format(
            "{}: {}; restore it from a copy. Without the file this client begins anew: what it "
            "kept from round to round is lost (an update on its way, what codes have lost, its own "
            "model or personal layers, its part of SCAFFOLD's or FedDyn's correction)",
            path.string(), what));
  };
  const auto json = parse_json(text);
  if (!json.is_object()) return bad("it is no JSON object");
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
        return bad("its pending update can't be read");
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
  // Once more where that was done at the run's end: this client may have been killed there.
  if (const auto path = export_own_tensors(); !path) {
    const Errc code = path.error().code();
    // What is damaged can't be saved by waiting.
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
    return Error(Errc::corrupt,
                 fmt::format("{} of {} bytes are there", size, pending_->begin.bytes()));
  FL_TRY(const Digest digest, digest_of(*file, size));
  if (digest.raw() != pending_->begin.digest())
    return Error(Errc::corrupt, "its digest is another");
  pending_file_ = std::move(file);
  return pending_file_;
}

Result<void> ClientState::forget_pending() {
  FL_CHECK(replace(std::nullopt, kept_));
  return remove_strays();
}

Result<std::vector<float>> ClientState::read_vector(const std::string& name,
                                                    std::uint64_t elements) const {
  std::vector<float> values(elements);
  if (name.empty()) return values;
  FL_TRY(const auto file, files_->open(folder_ / name, OpenMode::read));
  FL_CHECK(file->read_exactly(0, std::as_writable_bytes(std::span(values))));
  return values;
}

Result<std::vector<float>> ClientState::residual(const Layout& layout) const {
  return read_vector((pending_ ? pending_->kept : kept_).residual, layout.elements());
}

Result<std::vector<float>> ClientState::reference(const Layout& layout) const {
  return read_vector(kept_.reference, layout.elements());
}

/// The reference, or zeros where there is none that can be read, which `begin` says then.
Result<std::vector<float>> ClientState::reference_for(wire::UploadBegin& begin,
                                                      const Layout& layout) const {
  if (begin.reference() == 0) return std::vector<float>(layout.elements());
  auto kept = reference(layout);
  if (kept) return kept;
  const Errc code = kept.error().code();
  if (code != Errc::not_found && code != Errc::corrupt) return kept;
  log_warn("{} can't be read ({}): this update is sent whole", (folder_ / kept_.reference).string(),
           kept.error().message());
  begin.set_reference(0);
  return std::vector<float>(layout.elements());
}

Result<std::vector<float>> ClientState::local_values(std::uint64_t elements) const {
  if (kept_.local_values.empty()) return std::vector<float>();
  return read_vector(kept_.local_values, elements);
}

Result<std::filesystem::path> ClientState::export_own_tensors() const {
  if (!own_ || kept_.local_values.empty()) return std::filesystem::path();
  const auto path = folder_ / fmt::format("personal-{}.safetensors", run_key_);
  const auto write = [&]() -> Result<void> {
    FL_TRY(const Layout layout, Layout::make(own_->tensors));
    FL_TRY(const auto kept, local_values(own_->local_values));
    if (layout.elements() > kept.size())
      return Error(Errc::corrupt, fmt::format("{} of its values are kept", kept.size()));
    std::string file = safetensors_header(
        layout, {{"run", run_key_}, {"model", own_->model}, {"strategy", own_->strategy}});
    const Bytes values = std::as_bytes(std::span(kept).last(layout.elements()));
    file.append(reinterpret_cast<const char*>(values.data()), values.size());
    return files_->write_atomically(path, bytes_of(std::string_view(file)));
  };
  if (const auto written = write(); !written)
    return written.error().at("this client's own tensors, to " + path.string());
  return path;
}

/// An empty one, if there is none to read.
CodecState ClientState::codec_state() const {
  if (kept_.codec_state.empty()) return {};
  const auto path = folder_ / kept_.codec_state;
  const auto read = [&]() -> Result<CodecState> {
    FL_TRY(const std::string bytes, files_->read_all(path, limits::codec_state_bytes_max));
    return CodecState::parse(bytes_of(std::string_view(bytes)));
  };
  auto state = read();
  if (state) return std::move(*state);
  log_warn("{} can't be read ({}): the codec begins afresh", path.string(),
           state.error().message());
  return {};
}

/// Synced, but not its name.
Result<std::string> ClientState::write_kept(std::string_view kind, Bytes bytes) {
  const std::string name = next_name(kind);
  FL_TRY(auto file, files_->open(folder_ / name, OpenMode::truncate));
  FL_CHECK(file->write_at(0, bytes));
  FL_CHECK(file->sync());
  return name;
}

/// What goes with an update while it is coded, each empty where the codec has none.
struct ClientState::Companions {
  std::vector<float> velocity;
  std::vector<float> reference;
  std::vector<float> difference;  // What is coded then, in place of the update.
};

Result<void> ClientState::save_update(const RunLayout& layout, std::span<float> update,
                                      const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                      std::span<float> local_values, const LocalRule* rule,
                                      DeviceCopy device) {
  const bool is_changed = codec.error_feedback() || codec.is_delta() || layout.has_shared();
  // What a device has is the update as it is here now, which nothing may change.
  FL_ASSERT(device.values == nullptr || !is_changed);
  const bool may_be_coded_there = device.coder != nullptr && device.coder->is_there() &&
                                  codec.is_for_device(layout.all, device.values != nullptr);
  std::vector<float> before;
  if (may_be_coded_there && is_changed) before.assign(update.begin(), update.end());
  bool are_taken = false;
  const auto try_with = [&](const DeviceCopy& by) -> Result<void> {
    are_taken = false;
    auto tried = begin;
    FL_TRY(Companions companions, take_companions(layout, update, codec, tried));
    are_taken = true;
    return code_update(layout, update, codec, seeds, std::move(tried), std::move(companions),
                       local_values, rule, by);
  };
  auto saved = try_with(device);
  // What the device has coded does not decode: nothing else that is read then could be damaged.
  if (!saved && saved.error().code() == Errc::corrupt && may_be_coded_there && are_taken) {
    device.coder->give_up(saved.error().message());
    if (is_changed) std::ranges::copy(before, update.begin());
    saved = try_with({});
  }
  // What a full disk has left half-written would be in the way of the next try.
  if (!saved) {
    drop_spare();
    [[maybe_unused]] const auto removed = remove_strays();
  }
  return saved;
}

/// Adds to the update what is carried to it, and finds what it differs by from the last one.
Result<ClientState::Companions> ClientState::take_companions(const RunLayout& layout,
                                                             std::span<float> update,
                                                             const Codec& codec,
                                                             wire::UploadBegin& begin) const {
  Companions out;
  if (codec.momentum() > 0) {
    FL_TRY(out.velocity, read_vector(kept_.velocity, layout.all.elements()));
    // Statistics and what travels with the model are no gradients, and have none.
    add_velocity(update.first(layout.parameter_elements),
                 std::span(out.velocity).first(layout.parameter_elements), codec.momentum());
  }
  if (codec.error_feedback()) {
    FL_TRY(const auto carried, read_vector(kept_.residual, layout.all.elements()));
    add_residual(update, carried);
  }
  if (codec.is_delta()) {
    if (begin.reference() != kept_.reference_task) begin.set_reference(0);
    FL_TRY(out.reference, reference_for(begin, layout.all));
    out.difference = difference_to(update, out.reference);
  }
  return out;
}

/// Writes the companions as they are behind this update, and says what coding lost. With feedback,
/// of a delta, and where something travels with the model, the update becomes what was lost.
Result<void> ClientState::keep_companions(const RunLayout& layout, std::span<float> update,
                                          const Codec& codec, File& file, Companions& companions,
                                          Pending& pending) {
  const std::uint64_t bytes = pending.begin.bytes();
  Kept& kept = pending.kept;
  FileSource source(file);
  if (codec.momentum() > 0) {
    FL_TRY(auto reader, PayloadReader::open(source, bytes, layout.all));
    FL_CHECK(stop_sent(companions.velocity, reader, threads_));
    FL_TRY(kept.velocity, write_kept("velocity", std::as_bytes(std::span(companions.velocity))));
  }
  if (!codec.is_delta()) {
    const bool is_kept = codec.error_feedback() || layout.has_shared();
    FL_TRY(const double nmse, nmse_of(layout.all, update, codec, file, bytes, is_kept, threads_));
    pending.begin.set_nmse(nmse);
    return {};
  }
  std::vector<float>& reference = companions.reference;
  FL_TRY(auto reader, PayloadReader::open(source, bytes, layout.all));
  FL_CHECK(add_decoded(reference, reader, threads_));
  FL_TRY(kept.reference, write_kept("reference", std::as_bytes(std::span(reference))));
  kept.reference_task = pending.begin.task();
  const double power = power_of(update);
  for (std::size_t i = 0; i < update.size(); ++i) update[i] -= reference[i];
  pending.begin.set_nmse(power > 0 ? power_of(update) / power : 0.0);
  return {};
}

/// Local values go forward by what was sent (the rule's vector by the update as it counts, what is
/// shared by what was not lost of it, which `update` holds there and then no more).
Result<void> ClientState::advance_local(const RunLayout& layout, std::span<float> update,
                                        const Codec& codec, File& file,
                                        const Companions& companions, std::span<float> local_values,
                                        const LocalRule* rule, Pending& pending) {
  const std::span lost = update.subspan(layout.model_elements);
  for (std::size_t i = 0; i < lost.size(); ++i) local_values[i] -= lost[i];
  std::ranges::fill(lost, 0.0F);
  const bool follows = rule != nullptr && rule->follows_sent();
  FL_ASSERT(!(follows && layout.has_shared()));
  if (follows && codec.is_delta()) {
    rule->follow(std::span(companions.reference).first(layout.parameter_elements),
                 local_values.first(layout.parameter_elements));
  } else if (follows) {
    FileSource source(file);
    FL_TRY(auto reader, PayloadReader::open(source, pending.begin.bytes(), layout.all));
    FL_CHECK(reader.for_each_block(
        threads_, [&](std::uint64_t, const Block& block, std::span<const float> sent) {
          if (block.flat < layout.parameter_elements)
            rule->follow(sent, local_values.subspan(block.flat, sent.size()));
        }));
  }
  FL_TRY(pending.kept.local_values,
         write_kept("local-values", std::as_bytes(std::span<const float>(local_values))));
  return {};
}

Result<void> ClientState::code_update(const RunLayout& layout, std::span<float> update,
                                      const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                      Companions companions, std::span<float> local_values,
                                      const LocalRule* rule, const DeviceCopy& device) {
  const std::span<const float> coded = codec.is_delta() ? companions.difference : update;
  const std::string name = next_name("update");
  FL_TRY(auto file, new_update_file(name));
  FileSink sink(*file);
  CodecState state = codec_state();
  const TimePoint began = Clock::now();
  FL_TRY(const std::uint64_t bytes,
         codec.encode(layout.all, coded, seeds, sink, block_elements_of_codec, &state, threads_,
                      device));
  begin.set_encode_seconds(std::chrono::duration<double>(Clock::now() - began).count());
  FL_CHECK(file->truncate(bytes));
  FL_TRY(const Digest digest, digest_of(*file, bytes));
  begin.set_bytes(bytes);
  begin.set_digest(digest.raw());
  failpoint("update.written");

  Pending pending{std::move(begin), name, kept_};
  if (state.is_changed()) {
    FL_TRY(pending.kept.codec_state, write_kept("codec-state", state.bytes()));
  }
  FL_CHECK(keep_companions(layout, update, codec, *file, companions, pending));
  const bool has_local = !local_values.empty();
  if (has_local)
    FL_CHECK(advance_local(layout, update, codec, *file, companions, local_values, rule, pending));
  if (codec.error_feedback()) {
    FL_TRY(pending.kept.residual, write_kept("residual", std::as_bytes(update)));
  }
  const bool belongs_together = codec.error_feedback() || codec.is_delta() || has_local;
  if (belongs_together) FL_CHECK(file->sync());
  if (belongs_together || state.is_changed()) FL_CHECK(files_->sync_folder(folder_));
  FL_CHECK(replace(std::move(pending), kept_));
  pending_file_ = std::move(file);
  failpoint("update.saved");
  return remove_strays();
}

Result<std::unique_ptr<File>> ClientState::new_update_file(const std::string& name) {
  if (spare_file_.empty()) return files_->open(folder_ / name, OpenMode::truncate);
  FL_CHECK(files_->rename(folder_ / spare_file_, folder_ / name));
  spare_file_.clear();
  return files_->open(folder_ / name, OpenMode::update);
}

/// No update is pending from now on; its file is the next one's.
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
    FL_TRY(auto values, residual(layout.all));
    FL_TRY(const auto file, files_->open(folder_ / pending_->file, OpenMode::read));
    FileSource source(*file);
    FL_TRY(auto reader, PayloadReader::open(source, pending_->begin.bytes(), layout.all));
    FL_CHECK(add_decoded(values, reader, threads_));
    // Of gradients alone the next update can bring what this one has not.
    std::ranges::fill(std::span(values).subspan(layout.parameter_elements), 0.0F);
    FL_TRY(kept.residual, write_kept("residual", std::as_bytes(std::span(values))));
    FL_CHECK(files_->sync_folder(folder_));
  }
  FL_CHECK(settle(std::move(kept)));
  failpoint("update.put_back");
  return remove_strays();
}

/// The manifest names these from now on, or after an error still what it named before.
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
