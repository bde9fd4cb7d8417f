// SPDX-License-Identifier: Apache-2.0
// UpdateSaving: one trained update on its way to being the pending one, together with its
// companions, the files that belong to it (residual, velocity, reference, local values, codec
// state). First prepare(), which makes the vector to code; then encode(), which writes and checks
// its payload, and may be repeated after an error; then finish(), which makes the companions as
// they are after this update, and the update pending. After an error the state is as before, and
// the caller removes the files that were begun (StateFolder::remove_strays).
//
// All vectors are worked on in pieces, because each may be larger than the memory. All calls block.
// One thread at a time (the agent's worker).
#pragma once

#include "client/state/state_folder.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/codec/encode/codec.hpp"

#include <memory>
#include <span>

namespace fl::client {

class UpdateSaving {
 public:
  /// All references must outlive it. `update` becomes what is coded. `begin`: all fields except
  /// bytes, digest, nmse, encode_seconds, save_seconds and its parts are set. `scratch` lends
  /// vectors; `threads` encode.
  UpdateSaving(StateFolder& folder, ValuePool& scratch, int threads, const RunLayout& layout,
               StoredValues& update, const codec::Codec& codec, wire::UploadBegin begin);

  [[nodiscard]] Result<void> prepare();
  /// `corrupt`: what the device has coded can't be decoded.
  [[nodiscard]] Result<void> encode(codec::CodeInputs inputs, const codec::DeviceCopy& device);
  /// `local_values`: the method's new ones, or none. `rule`: the rule whose vector they begin with,
  /// or null.
  [[nodiscard]] Result<void> finish(NewValues local_values, const LocalRule* rule);

 private:
  enum class Stage { new_, prepared, encoded, finished };

  [[nodiscard]] Result<void> add_velocity_and_residual();
  [[nodiscard]] Result<void> begin_reference();
  [[nodiscard]] Result<void> write_difference();
  [[nodiscard]] Result<void> find_loss();
  [[nodiscard]] Result<void> advance(NewValues& local, const LocalRule* rule);
  [[nodiscard]] Result<void> advance_velocity();
  [[nodiscard]] Result<void> advance_reference();
  [[nodiscard]] Result<void> advance_local(NewValues& local, const LocalRule* rule);
  [[nodiscard]] Result<void> follow_sent(StoredValues& local, const LocalRule& rule);
  [[nodiscard]] bool needs_loss() const { return codec_.error_feedback() || layout_.has_shared(); }
  [[nodiscard]] std::span<const float> coded() const {
    return codec_.is_delta() ? difference_.values() : update_.values();
  }
  [[nodiscard]] codec::CodecState last_codec_state() const;
  template <class Use>
  [[nodiscard]] Result<void> with_payload(const Use& use);
  [[nodiscard]] Result<void> sync(StoredValues& values);
  [[nodiscard]] Result<void> sync_files(bool belongs_together);

  StateFolder& folder_;
  ValuePool& scratch_;
  const int threads_;
  const RunLayout& layout_;
  StoredValues& update_;
  const codec::Codec& codec_;
  const TimePoint began_;
  Stage stage_ = Stage::new_;
  PendingUpdate pending_;
  std::unique_ptr<File> file_;
  codec::CodecState codec_state_;
  NewValues velocity_;       // With momentum.
  NewValues reference_;      // With a delta codec: the reference before, then the next one.
  StoredValues difference_;  // With a delta codec: x, which then becomes the loss.
  NewValues residual_;       // With error feedback: the loss of coding x.
  StoredValues loss_;        // The loss where only shared vectors need it.
  Duration carrying_{};  // Parts of the time since began_: wire::UploadBegin's residual_seconds,
  Duration syncing_{};   // and its sync_seconds.
};

}  // namespace fl::client
