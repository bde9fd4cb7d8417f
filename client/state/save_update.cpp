// SPDX-License-Identifier: Apache-2.0
// How ClientState makes an update pending: what is added to the update, encoding it, and writing it
// with the files that belong to it.
#include "client/state/client_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

constexpr std::size_t block_bytes = 1 << 20;

/// The sum of squares.
double power_of(std::span<const float> x) { return kernels().scan(x.data(), x.size()).sum_squares; }

/// What coding x to the file has lost: |x - decoded|^2 / |x|^2. If `is_kept`, x becomes the loss,
/// x - decoded.
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

}  // namespace

/// The vectors that belong to an update while it is coded. Each is empty if the codec has none.
struct ClientState::Companions {
  std::vector<float> velocity;
  std::vector<float> reference;
  std::vector<float> difference;  // With a delta codec: the vector to code instead of the update.
};

Result<void> ClientState::save_update(const RunLayout& layout, std::span<float> update,
                                      const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                      std::span<float> local_values, const LocalRule* rule,
                                      DeviceCopy device) {
  const bool is_changed = codec.error_feedback() || codec.is_delta() || layout.has_shared();
  // The copy on the device must equal the vector that is coded.
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
  // `corrupt` after the companions were read means that the device's code can't be decoded. Encode
  // again on the CPU.
  if (!saved && saved.error().code() == Errc::corrupt && may_be_coded_there && are_taken) {
    device.coder->give_up(saved.error().message());
    if (is_changed) std::ranges::copy(before, update.begin());
    saved = try_with({});
  }
  // Remove half-written files: on a full disk the next attempt needs their space.
  if (!saved) {
    drop_spare();
    [[maybe_unused]] const auto removed = remove_strays();
  }
  return saved;
}

/// Adds velocity and residual to the update. With a delta codec, also computes its difference to
/// the reference.
Result<ClientState::Companions> ClientState::take_companions(const RunLayout& layout,
                                                             std::span<float> update,
                                                             const Codec& codec,
                                                             wire::UploadBegin& begin) const {
  Companions out;
  if (codec.momentum() > 0) {
    FL_TRY(out.velocity, read_vector(kept_.velocity, layout.all.elements()));
    // Statistics and shared vectors are not gradients, so they have no momentum.
    add_velocity(update.first(layout.parameter_elements),
                 std::span(out.velocity).first(layout.parameter_elements), codec.momentum());
  }
  if (codec.error_feedback()) {
    FL_TRY(const auto carried, read_vector(kept_.residual, layout.all.elements()));
    add_residual(update, carried, codec.residual_kept());
  }
  if (codec.is_delta()) {
    if (begin.reference() != kept_.reference_task) begin.set_reference(0);
    FL_TRY(out.reference, reference_for(begin, layout.all));
    out.difference = difference_to(update, out.reference);
  }
  return out;
}

/// Writes the companions as they are after this update, and sets begin.nmse. With error feedback, a
/// delta codec or shared vectors, the update becomes the loss of coding.
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

/// Advances the local values by what was sent and writes them. If the rule follows what was sent,
/// its vector moves by the update as decoded. A shared vector's local counterpart moves by its
/// decoded change: the rule has added the whole change, so the loss is subtracted here. `update`
/// holds the loss, and becomes 0 in the shared part.
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

/// Returns the reference, or zeros if there is none or it can't be read; in that case sets
/// begin.reference to 0.
Result<std::vector<float>> ClientState::reference_for(wire::UploadBegin& begin,
                                                      const Layout& layout) const {
  if (begin.reference() == 0) return std::vector<float>(layout.elements());
  auto kept = reference(layout);
  if (kept) return kept;
  const Errc code = kept.error().code();
  if (code != Errc::not_found && code != Errc::corrupt) return kept;
  log_warn("can't read {}: {}; sending this update without a reference",
           (folder_ / kept_.reference).string(), kept.error().message());
  begin.set_reference(0);
  return std::vector<float>(layout.elements());
}

/// Returns the codec's state, or an empty one if there is none or it can't be read.
CodecState ClientState::codec_state() const {
  if (kept_.codec_state.empty()) return {};
  const auto path = folder_ / kept_.codec_state;
  const auto read = [&]() -> Result<CodecState> {
    FL_TRY(const std::string bytes, files_->read_all(path, limits::codec_state_bytes_max));
    return CodecState::parse(bytes_of(std::string_view(bytes)));
  };
  auto state = read();
  if (state) return std::move(*state);
  log_warn("can't read {}: {}; the codec starts without a state", path.string(),
           state.error().message());
  return {};
}

/// Writes and syncs a new file and returns its name. The caller syncs the folder.
Result<std::string> ClientState::write_kept(std::string_view kind, Bytes bytes) {
  const std::string name = next_name(kind);
  FL_TRY(auto file, files_->open(folder_ / name, OpenMode::truncate));
  FL_CHECK(file->write_at(0, bytes));
  FL_CHECK(file->sync());
  return name;
}

/// The digest of a file's first bytes. A payload's prefix is written last, so the file is read
/// back, which is cheap while it is in the page cache.
Result<Digest> ClientState::digest_of(File& file, std::uint64_t bytes) {
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

}  // namespace fl
