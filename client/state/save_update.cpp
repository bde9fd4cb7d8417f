// SPDX-License-Identifier: Apache-2.0
// How ClientState makes an update pending: what is added to the update, encoding it, and writing it
// with the files that belong to it. All vectors are worked on in pieces, because each may be larger
// than the memory.
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

using client::change_values;
using client::copy_values;
using client::fill_zeros;
using client::for_each_piece;
using client::piece_elements;
using client::StoredValues;
using client::write_into;

namespace {

constexpr std::size_t block_bytes = 1 << 20;

/// The sum of squares.
double power_of(std::span<const float> x) { return kernels().scan(x.data(), x.size()).sum_squares; }

double nmse(double lost, double power) { return power > 0 ? lost / power : 0.0; }

/// Copies a piece into `room`.
std::span<float> copy_piece(std::span<const float> values, std::size_t first, std::size_t count,
                            std::vector<float>& room) {
  room.assign(values.begin() + static_cast<std::ptrdiff_t>(first),
              values.begin() + static_cast<std::ptrdiff_t>(first + count));
  return room;
}

}  // namespace

/// One call of save_update(): the update with its companions, the vectors that belong to it. First
/// prepare() makes the vector to code, x; encode() writes and checks its payload, and may be
/// repeated; finish() makes the companions as they are after this update and the update pending.
class ClientState::Saving {
 public:
  Saving(ClientState& state, const RunLayout& layout, StoredValues& update, const Codec& codec,
         wire::UploadBegin begin)
      : state_(state), layout_(layout), update_(update), codec_(codec), threads_(state.threads_) {
    pending_.begin = std::move(begin);
    pending_.kept = state.kept_;
  }

  [[nodiscard]] Result<void> prepare();
  /// `corrupt`: what the device has coded can't be decoded.
  [[nodiscard]] Result<void> encode(Seeds seeds, const DeviceCopy& device);
  [[nodiscard]] Result<void> finish(NewValues local_values, const LocalRule* rule);

 private:
  [[nodiscard]] Result<void> add_velocity_and_residual();
  [[nodiscard]] Result<void> begin_reference();
  [[nodiscard]] Result<void> write_difference();
  [[nodiscard]] Result<void> find_loss();
  [[nodiscard]] Result<void> advance_velocity();
  [[nodiscard]] Result<void> advance_reference();
  [[nodiscard]] Result<void> advance_local(NewValues& local, const LocalRule* rule);
  [[nodiscard]] Result<void> follow_sent(StoredValues& local, const LocalRule& rule);
  [[nodiscard]] bool needs_loss() const { return codec_.error_feedback() || layout_.has_shared(); }
  [[nodiscard]] std::span<const float> coded() const {
    return codec_.is_delta() ? difference_.values() : update_.values();
  }
  /// Calls use(reader) with the payload that was written.
  template <class Use>
  [[nodiscard]] Result<void> with_payload(const Use& use) {
    FileSource source(*file_);
    FL_TRY(auto reader, PayloadReader::open(source, pending_.begin.bytes(), layout_.all));
    return use(reader);
  }

  ClientState& state_;
  const RunLayout& layout_;
  StoredValues& update_;
  const Codec& codec_;
  int threads_;
  Pending pending_;
  std::unique_ptr<File> file_;
  CodecState codec_state_;
  NewValues velocity_;       // With momentum.
  NewValues reference_;      // With a delta codec: the reference before, then the next one.
  StoredValues difference_;  // With a delta codec: x, which then becomes the loss.
  NewValues residual_;       // With error feedback: the loss of coding x.
  StoredValues loss_;        // The loss where only shared vectors need it.
};

Result<void> ClientState::save_update(const RunLayout& layout, StoredValues& update,
                                      const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                      NewValues local_values, const LocalRule* rule,
                                      DeviceCopy device) {
  // The copy on the device must equal the vector that is coded.
  const bool is_changed = codec.error_feedback() || codec.is_delta() || layout.has_shared();
  FL_ASSERT(device.values == nullptr || !is_changed);
  FL_ASSERT(!pending_);
  const bool may_be_coded_there = device.coder != nullptr && device.coder->is_there() &&
                                  codec.is_for_device(layout.all, device.values != nullptr);
  const auto save = [&]() -> Result<void> {
    Saving saving(*this, layout, update, codec, std::move(begin));
    FL_CHECK(saving.prepare());
    auto coded = saving.encode(seeds, device);
    if (!coded && coded.error().code() == Errc::corrupt && may_be_coded_there) {
      device.coder->give_up(coded.error().message());
      coded = saving.encode(seeds, {});
    }
    FL_CHECK(coded);
    return saving.finish(std::move(local_values), rule);
  };
  const auto saved = save();
  // Remove half-written files: on a full disk the next attempt needs their space.
  if (!saved) {
    drop_spare();
    [[maybe_unused]] const auto removed = remove_strays();
  }
  return saved;
}

Result<void> ClientState::Saving::prepare() {
  FL_CHECK(add_velocity_and_residual());
  if (codec_.is_delta()) FL_CHECK(begin_reference());
  if (codec_.error_feedback()) {
    FL_TRY(residual_, state_.new_values("residual", layout_.all.elements()));
  } else if (needs_loss() && !codec_.is_delta()) {
    FL_TRY(loss_, state_.scratch().borrow(layout_.all.elements()));
  }
  return {};
}

/// Adds velocity and residual to the update.
Result<void> ClientState::Saving::add_velocity_and_residual() {
  const std::size_t elements = layout_.all.elements();
  if (codec_.momentum() > 0) {
    FL_TRY(const auto before, state_.open_values(state_.kept_.velocity, elements));
    FL_TRY(velocity_, state_.new_values("velocity", elements));
    std::vector<float> moved;
    std::vector<float> speed;
    // Statistics and shared vectors are not gradients, so they have no momentum.
    const auto add = [&](std::size_t first, std::size_t count) -> Result<void> {
      copy_piece(update_.values(), first, count, moved);
      speed.assign(count, 0.0F);
      if (before.size() > 0) copy_piece(before.values(), first, count, speed);
      add_velocity(moved, speed, codec_.momentum());
      FL_CHECK(update_.write(first, moved));
      return velocity_.values.write(first, speed);
    };
    FL_CHECK(for_each_piece(layout_.parameter_elements, add));
    FL_CHECK(fill_zeros(velocity_.values, layout_.parameter_elements));
    FL_CHECK(before.check());
  }
  if (!codec_.error_feedback() || state_.kept_.residual.empty()) return {};
  FL_TRY(const auto carried, state_.open_values(state_.kept_.residual, elements));
  FL_CHECK(change_values(update_, 0, elements, [&](std::size_t at, std::span<float> piece) {
    add_residual(piece, carried.values().subspan(at, piece.size()), codec_.residual_kept());
  }));
  return carried.check();
}

/// Begins the next reference with the one before, or zeros if there is none or it can't be read,
/// and computes the update's difference to it.
Result<void> ClientState::Saving::begin_reference() {
  const std::size_t elements = layout_.all.elements();
  wire::UploadBegin& begin = pending_.begin;
  if (begin.reference() != state_.kept_.reference_task) begin.set_reference(0);
  FL_TRY(reference_, state_.new_values("reference", elements));
  bool is_there = false;
  if (begin.reference() != 0) {
    const auto copy = [&]() -> Result<void> {
      FL_TRY(const auto before, state_.reference(layout_.all));
      FL_CHECK(copy_values(before.values(), reference_.values));
      is_there = before.size() > 0;
      return before.check();
    };
    const auto copied = copy();
    const bool is_lost = !copied && (copied.error().code() == Errc::not_found ||
                                     copied.error().code() == Errc::corrupt);
    if (!copied && !is_lost) return copied;
    if (is_lost) {
      log_warn("can't read {}: {}; sending this update without a reference",
               (state_.folder_ / state_.kept_.reference).string(), copied.error().message());
      begin.set_reference(0);
      is_there = false;
    }
  }
  if (!is_there) FL_CHECK(fill_zeros(reference_.values, 0));
  FL_TRY(difference_, state_.scratch().borrow(elements));
  return write_difference();
}

/// The difference of the update to the reference as it is now.
Result<void> ClientState::Saving::write_difference() {
  std::vector<float> piece;
  return for_each_piece(update_.size(), [&](std::size_t first, std::size_t count) {
    copy_piece(update_.values(), first, count, piece);
    subtract_reference(piece, reference_.values.values().subspan(first, count));
    return difference_.write(first, piece);
  });
}

Result<void> ClientState::Saving::encode(Seeds seeds, const DeviceCopy& device) {
  if (pending_.file.empty()) {
    pending_.file = state_.next_name("update");
    FL_TRY(file_, state_.new_update_file(pending_.file));
  }
  wire::UploadBegin& begin = pending_.begin;
  FileSink sink(*file_);
  codec_state_ = state_.codec_state();
  const TimePoint began = Clock::now();
  FL_TRY(const std::uint64_t bytes,
         codec_.encode(layout_.all, coded(), seeds, sink, block_elements_of_codec, &codec_state_,
                       threads_, device));
  begin.set_encode_seconds(std::chrono::duration<double>(Clock::now() - began).count());
  FL_CHECK(update_.check());
  FL_CHECK(difference_.check());
  FL_CHECK(file_->truncate(bytes));
  FL_TRY(const Digest digest, digest_of(*file_, bytes));
  begin.set_bytes(bytes);
  begin.set_digest(digest.raw());
  if (!codec_.is_delta()) return find_loss();
  if (device.coder == nullptr) return {};
  return with_payload([this](PayloadReader& reader) {
    return reader.for_each_block(threads_,
                                 [](std::uint64_t, const Block&, std::span<const float>) {});
  });
}

/// Decodes the payload, and sets begin.nmse: |x - decoded|^2 / |x|^2. If x - decoded is needed
/// later, writes it. x stays as it is, so that it can be coded again.
Result<void> ClientState::Saving::find_loss() {
  StoredValues& loss = codec_.error_feedback() ? residual_.values : loss_;
  if (codec_.is_exact()) {
    pending_.begin.set_nmse(0);
    return needs_loss() ? fill_zeros(loss, 0) : success();
  }
  const double power = power_of(update_.values());
  auto decoded = with_payload([&](PayloadReader& reader) -> Result<void> {
    if (needs_loss()) {
      FL_CHECK(keep_residual(update_.values(), reader, write_into(loss), threads_));
      pending_.begin.set_nmse(nmse(power_of(loss.values()), power));
      return {};
    }
    FL_TRY(const double lost, squared_error(update_.values(), reader, threads_));
    pending_.begin.set_nmse(nmse(lost, power));
    return {};
  });
  return decoded ? update_.check() : decoded;
}

Result<void> ClientState::Saving::advance_velocity() {
  FL_CHECK(with_payload([this](PayloadReader& reader) {
    return stop_sent(velocity_.values.values(), reader, write_into(velocity_.values), threads_);
  }));
  FL_CHECK(velocity_.values.sync());
  pending_.kept.velocity = velocity_.name;
  return {};
}

/// The next reference is the one before plus what was sent. The difference becomes the loss.
Result<void> ClientState::Saving::advance_reference() {
  StoredValues& reference = reference_.values;
  FL_CHECK(with_payload([&](PayloadReader& reader) {
    return add_decoded(reference.values(), reader, write_into(reference), threads_);
  }));
  FL_CHECK(reference.sync());
  pending_.kept.reference = reference_.name;
  pending_.kept.reference_task = pending_.begin.task();
  FL_CHECK(write_difference());
  pending_.begin.set_nmse(nmse(power_of(difference_.values()), power_of(update_.values())));
  return reference.check();
}

/// The rule's vector moves by the update as it will be decoded.
Result<void> ClientState::Saving::follow_sent(StoredValues& local, const LocalRule& rule) {
  FL_ASSERT(!layout_.has_shared());
  const auto follow = [&](std::uint64_t first, std::span<const float> sent) -> Result<void> {
    if (first >= layout_.parameter_elements) return {};
    return change_values(local, first, sent.size(), [&](std::size_t at, std::span<float> piece) {
      rule.follow(sent.subspan(at, piece.size()), piece);
    });
  };
  if (codec_.is_delta()) {
    const auto sent = reference_.values.values();
    return for_each_piece(layout_.parameter_elements, [&](std::size_t first, std::size_t count) {
      return follow(first, sent.subspan(first, count));
    });
  }
  return with_payload(
      [&](PayloadReader& reader) { return add_decoded({}, reader, follow, threads_); });
}

/// Advances the local values by what was sent. A shared vector's local counterpart moves by its
/// decoded change: the rule has added the whole change, so the loss is subtracted here. The
/// residual of shared vectors is 0.
Result<void> ClientState::Saving::advance_local(NewValues& local, const LocalRule* rule) {
  StoredValues& values = local.values;
  if (layout_.has_shared()) {
    const StoredValues& loss = codec_.is_delta()         ? difference_
                               : codec_.error_feedback() ? residual_.values
                                                         : loss_;
    const auto lost = loss.values().subspan(layout_.model_elements);
    FL_CHECK(change_values(values, 0, lost.size(), [&](std::size_t at, std::span<float> piece) {
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] -= lost[at + i];
    }));
  }
  if (rule != nullptr && rule->follows_sent()) FL_CHECK(follow_sent(values, *rule));
  FL_CHECK(values.check());
  FL_CHECK(values.sync());
  pending_.kept.local_values = local.name;
  return {};
}

Result<void> ClientState::Saving::finish(NewValues local_values, const LocalRule* rule) {
  failpoint("update.written");
  if (codec_state_.is_changed()) {
    FL_TRY(pending_.kept.codec_state, state_.write_kept("codec-state", codec_state_.bytes()));
  }
  if (codec_.momentum() > 0) FL_CHECK(advance_velocity());
  if (codec_.is_delta()) FL_CHECK(advance_reference());
  const bool has_local = !local_values.name.empty();
  if (has_local) FL_CHECK(advance_local(local_values, rule));
  if (codec_.error_feedback()) {
    if (has_local && layout_.has_shared())
      FL_CHECK(fill_zeros(residual_.values, layout_.model_elements));
    FL_CHECK(residual_.values.sync());
    pending_.kept.residual = residual_.name;
  }
  const bool belongs_together = codec_.error_feedback() || codec_.is_delta() || has_local;
  if (belongs_together) FL_CHECK(file_->sync());
  if (belongs_together || codec_state_.is_changed())
    FL_CHECK(state_.files_->sync_folder(state_.folder_));
  FL_CHECK(state_.replace(std::move(pending_), state_.kept_));
  state_.pending_file_ = std::move(file_);
  failpoint("update.saved");
  return state_.remove_strays();
}

Result<std::unique_ptr<File>> ClientState::new_update_file(const std::string& name) {
  if (spare_file_.empty()) return files_->open(folder_ / name, OpenMode::truncate);
  FL_CHECK(files_->rename(folder_ / spare_file_, folder_ / name));
  spare_file_.clear();
  return files_->open(folder_ / name, OpenMode::update);
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
