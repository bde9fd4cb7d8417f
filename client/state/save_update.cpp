// SPDX-License-Identifier: Apache-2.0
#include "client/state/save_update.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

double seconds_since(TimePoint began) { return seconds(Clock::now() - began); }

/// Adds the time until its end.
class Stretch {
 public:
  explicit Stretch(Duration& sum) : sum_(sum) {}
  ~Stretch() { sum_ += Clock::now() - began_; }
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

 private:
  Duration& sum_;
  const TimePoint began_ = Clock::now();
};

/// Writes a payload, and hashes it on the way if its bytes come in their order: if its prefix does
/// not wait for the sizes of the blocks.
class HashingSink final : public codec::PayloadSink {
 public:
  explicit HashingSink(File& file) : out_(file) {}
  Result<void> write(std::uint64_t offset, Bytes bytes) override {
    return write_parts(offset, {&bytes, 1});
  }
  Result<void> write_parts(std::uint64_t offset, std::span<const Bytes> parts) override {
    FL_CHECK(out_.write_parts(offset, parts));
    in_order_ = in_order_ && offset == hashed_;
    if (!in_order_) return {};
    for (const Bytes part : parts) {
      hasher_.update(part);
      hashed_ += part.size();
    }
    return {};
  }
  /// None if the bytes did not come in order.
  [[nodiscard]] std::optional<Digest> digest() const {
    return in_order_ ? std::optional(hasher_.digest()) : std::nullopt;
  }

 private:
  codec::FileSink out_;
  Hasher hasher_;
  std::uint64_t hashed_ = 0;
  bool in_order_ = true;
};

/// The sum of squares.
double power_of(std::span<const float> x) { return kernels().scan(x.data(), x.size()).sum_squares; }

/// Copies a piece into `room`.
std::span<float> copy_piece(std::span<const float> values, std::size_t first, std::size_t count,
                            std::vector<float>& room) {
  room.assign(values.begin() + static_cast<std::ptrdiff_t>(first),
              values.begin() + static_cast<std::ptrdiff_t>(first + count));
  return room;
}

}  // namespace

UpdateSaving::UpdateSaving(StateFolder& folder, ValuePool& scratch, int threads,
                           const RunLayout& layout, StoredValues& update, const codec::Codec& codec,
                           wire::UploadBegin begin)
    : folder_(folder),
      scratch_(scratch),
      threads_(threads),
      layout_(layout),
      update_(update),
      codec_(codec),
      began_(Clock::now()) {
  pending_.begin = std::move(begin);
  pending_.kept = folder.kept();
}

/// Calls use(reader) with the payload that was written.
template <class Use>
Result<void> UpdateSaving::with_payload(const Use& use) {
  codec::FileSource source(*file_);
  FL_TRY(auto reader, codec::PayloadReader::open(source, pending_.begin.bytes(), layout_.all));
  return use(reader);
}

Result<void> UpdateSaving::sync(StoredValues& values) {
  const Stretch stretch(syncing_);
  return values.sync();
}

Result<void> UpdateSaving::prepare() {
  FL_ASSERT(stage_ == Stage::new_);
  const Stretch stretch(carrying_);
  FL_CHECK(add_velocity_and_residual());
  if (codec_.is_delta()) FL_CHECK(begin_reference());
  if (codec_.error_feedback()) {
    FL_TRY(residual_, folder_.new_values("residual", layout_.all.elements()));
  } else if (needs_loss() && !codec_.is_delta()) {
    FL_TRY(loss_, scratch_.borrow(layout_.all.elements()));
  }
  stage_ = Stage::prepared;
  return {};
}

/// Adds velocity and residual to the update.
Result<void> UpdateSaving::add_velocity_and_residual() {
  const std::size_t elements = layout_.all.elements();
  if (codec_.momentum() > 0) {
    FL_TRY(const auto before, folder_.open_values(folder_.kept().velocity, elements));
    FL_TRY(velocity_, folder_.new_values("velocity", elements));
    std::vector<float> moved;
    std::vector<float> speed;
    // Statistics and shared vectors are not gradients, so they have no momentum.
    const auto add = [&](std::size_t first, std::size_t count) -> Result<void> {
      copy_piece(update_.values(), first, count, moved);
      speed.assign(count, 0.0F);
      if (before.size() > 0) copy_piece(before.values(), first, count, speed);
      codec::add_velocity(moved, speed, codec_.momentum());
      FL_CHECK(update_.write(first, moved));
      return velocity_.values.write(first, speed);
    };
    FL_CHECK(for_each_piece(layout_.parameter_elements, add));
    FL_CHECK(fill_zeros(velocity_.values, layout_.parameter_elements));
    FL_CHECK(before.check());
  }
  if (!codec_.error_feedback() || folder_.kept().residual.empty()) return {};
  FL_TRY(const auto carried, folder_.open_values(folder_.kept().residual, elements));
  FL_CHECK(change_values(
      update_, 0, elements,
      [&](std::size_t at, std::span<float> piece) {
        codec::add_residual(piece, carried.values().subspan(at, piece.size()),
                            codec_.residual_kept());
      },
      threads_));
  return carried.check();
}

/// Begins the next reference with the one before, or zeros if there is none or it can't be read,
/// and computes the update's difference to it.
Result<void> UpdateSaving::begin_reference() {
  const std::size_t elements = layout_.all.elements();
  wire::UploadBegin& begin = pending_.begin;
  if (begin.reference() != folder_.kept().reference_task) begin.set_reference(0);
  FL_TRY(reference_, folder_.new_values("reference", elements));
  bool is_there = false;
  if (begin.reference() != 0) {
    const auto copy = [&]() -> Result<void> {
      FL_TRY(const auto before, folder_.open_values(folder_.kept().reference, elements));
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
               (folder_.path() / folder_.kept().reference).string(), copied.error().message());
      begin.set_reference(0);
      is_there = false;
    }
  }
  if (!is_there) FL_CHECK(fill_zeros(reference_.values, 0));
  FL_TRY(difference_, scratch_.borrow(elements));
  return write_difference();
}

/// The difference of the update to the reference as it is now.
Result<void> UpdateSaving::write_difference() {
  std::vector<float> piece;
  return for_each_piece(update_.size(), [&](std::size_t first, std::size_t count) {
    copy_piece(update_.values(), first, count, piece);
    codec::subtract_reference(piece, reference_.values.values().subspan(first, count));
    return difference_.write(first, piece);
  });
}

Result<void> UpdateSaving::encode(codec::CodeInputs inputs, const codec::DeviceCopy& device) {
  FL_ASSERT(stage_ == Stage::prepared);
  if (pending_.file.empty()) {
    FL_TRY(auto fresh, folder_.new_update_file());
    pending_.file = std::move(fresh.name);
    file_ = std::move(fresh.file);
  }
  wire::UploadBegin& begin = pending_.begin;
  HashingSink sink(*file_);
  codec_state_ = last_codec_state();
  const TimePoint began = Clock::now();
  FL_TRY(const std::uint64_t bytes,
         codec_.encode(layout_.all, coded(), inputs, sink, codec::block_elements_of_codec,
                       &codec_state_, threads_, device));
  begin.set_encode_seconds(seconds_since(began));
  FL_CHECK(update_.check());
  FL_CHECK(difference_.check());
  FL_TRY(const std::uint64_t bytes_there, file_->size());
  if (bytes_there != bytes) FL_CHECK(file_->truncate(bytes));
  const TimePoint coded = Clock::now();
  Digest digest;
  if (const auto hashed = sink.digest()) {
    digest = *hashed;
  } else {
    // The prefix was written last, so the file is read back, which is cheap while it is in the page
    // cache.
    FL_TRY(digest, digest_of_beginning(*file_, bytes));
  }
  begin.set_digest_seconds(seconds_since(coded));
  begin.set_bytes(bytes);
  begin.set_digest(digest.raw());
  const Stretch stretch(carrying_);
  if (!codec_.is_delta()) {
    FL_CHECK(find_loss());
  } else if (device.coder != nullptr) {
    FL_CHECK(with_payload([this](codec::PayloadReader& reader) {
      return reader.for_each_block(
          threads_, [](std::uint64_t, const codec::Block&, std::span<const float>) {});
    }));
  }
  stage_ = Stage::encoded;
  return {};
}

/// Decodes the payload, and sets begin.nmse: |x - decoded|^2 / |x|^2. If x - decoded is needed
/// later, writes it. x stays as it is, so that it can be coded again.
Result<void> UpdateSaving::find_loss() {
  StoredValues& loss = codec_.error_feedback() ? residual_.values : loss_;
  if (codec_.is_exact()) {
    pending_.begin.set_nmse(0);
    return needs_loss() ? fill_zeros(loss, 0) : success();
  }
  auto decoded = with_payload([&](codec::PayloadReader& reader) -> Result<void> {
    FL_TRY(const codec::CodingError error,
           needs_loss() ? codec::keep_residual(update_.values(), reader, write_into(loss), threads_)
                        : codec::coding_error(update_.values(), reader, threads_));
    pending_.begin.set_nmse(error.nmse());
    return {};
  });
  return decoded ? update_.check() : decoded;
}

Result<void> UpdateSaving::advance_velocity() {
  FL_CHECK(with_payload([this](codec::PayloadReader& reader) {
    return stop_sent(velocity_.values.values(), reader, write_into(velocity_.values), threads_);
  }));
  FL_CHECK(sync(velocity_.values));
  pending_.kept.velocity = velocity_.name;
  return {};
}

/// The next reference is the one before plus what was sent. The difference becomes the loss.
Result<void> UpdateSaving::advance_reference() {
  StoredValues& reference = reference_.values;
  FL_CHECK(with_payload([&](codec::PayloadReader& reader) {
    return add_decoded(reference.values(), reader, write_into(reference), threads_);
  }));
  FL_CHECK(sync(reference));
  pending_.kept.reference = reference_.name;
  pending_.kept.reference_task = pending_.begin.task();
  FL_CHECK(write_difference());
  const codec::CodingError error{.power = power_of(update_.values()),
                                 .lost = power_of(difference_.values())};
  pending_.begin.set_nmse(error.nmse());
  return reference.check();
}

/// The rule's vector moves by the update as it will be decoded.
Result<void> UpdateSaving::follow_sent(StoredValues& local, const LocalRule& rule) {
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
      [&](codec::PayloadReader& reader) { return add_decoded({}, reader, follow, threads_); });
}

/// Advances the local values by what was sent. A shared vector's local counterpart moves by its
/// decoded change: the rule has added the whole change, so the loss is subtracted here. The
/// residual of shared vectors is 0.
Result<void> UpdateSaving::advance_local(NewValues& local, const LocalRule* rule) {
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
  FL_CHECK(sync(values));
  pending_.kept.local_values = local.name;
  return {};
}

/// Advances velocity, reference and local values by what was sent. Their syncs count in syncing_,
/// and not in carrying_ too.
Result<void> UpdateSaving::advance(NewValues& local, const LocalRule* rule) {
  const Duration synced = syncing_;
  const Stretch stretch(carrying_);
  if (codec_.momentum() > 0) FL_CHECK(advance_velocity());
  if (codec_.is_delta()) FL_CHECK(advance_reference());
  if (!local.name.empty()) FL_CHECK(advance_local(local, rule));
  carrying_ -= syncing_ - synced;
  return {};
}

Result<void> UpdateSaving::sync_files(bool belongs_together) {
  const Stretch stretch(syncing_);
  if (belongs_together) FL_CHECK(file_->sync());
  return belongs_together || codec_state_.is_changed() ? folder_.sync() : success();
}

Result<void> UpdateSaving::finish(NewValues local_values, const LocalRule* rule) {
  FL_ASSERT(stage_ == Stage::encoded);
  failpoint("update.written");
  if (codec_state_.is_changed()) {
    FL_TRY(pending_.kept.codec_state, folder_.write_new("codec-state", codec_state_.bytes()));
  }
  const bool has_local = !local_values.name.empty();
  FL_CHECK(advance(local_values, rule));
  if (codec_.error_feedback()) {
    if (has_local && layout_.has_shared())
      FL_CHECK(fill_zeros(residual_.values, layout_.model_elements));
    FL_CHECK(sync(residual_.values));
    pending_.kept.residual = residual_.name;
  }
  // The keys of a masked update, which are sent next, serve it alone.
  const bool is_masked = pending_.begin.attempt() > 0;
  const bool belongs_together =
      codec_.error_feedback() || codec_.is_delta() || has_local || is_masked;
  FL_CHECK(sync_files(belongs_together));
  pending_.begin.set_residual_seconds(seconds(carrying_));
  pending_.begin.set_sync_seconds(seconds(syncing_));
  pending_.begin.set_save_seconds(seconds_since(began_));
  FL_CHECK(folder_.add_pending(std::move(pending_), std::move(file_)));
  failpoint("update.saved");
  stage_ = Stage::finished;
  return folder_.remove_strays();
}

/// Returns the codec's state, or an empty one if there is none or it can't be read.
codec::CodecState UpdateSaving::last_codec_state() const {
  if (folder_.kept().codec_state.empty()) return {};
  const auto path = folder_.path() / folder_.kept().codec_state;
  const auto read = [&]() -> Result<codec::CodecState> {
    FL_TRY(const std::string bytes, folder_.files().read_all(path, limits::codec_state_bytes_max));
    return codec::CodecState::parse(bytes_of(std::string_view(bytes)));
  };
  auto state = read();
  if (state) return std::move(*state);
  log_warn("can't read {}: {}; the codec starts without a state", path.string(),
           state.error().message());
  return {};
}

}  // namespace fl::client
