// SPDX-License-Identifier: Apache-2.0
// ClientState: everything that a client must not lose, in its state folder.
//   - the pending update: trained and coded, without a verdict yet
//   - the residual of error feedback, and the velocity if the codec has momentum
//   - the local values, which the run's method keeps at the client (shared/algorithm/strategy.hpp)
//   - the reference: the last accepted update as decoded, from which the next delta is computed
//   - the codec's state: what the codec has learned (shared/codec/core/codec_state.hpp)
//
// StateFolder says which files are valid, and UpdateSaving codes an update. While an update is
// pending, the files from before it are kept beside the files that go with it. If the update can't
// be read any more and the server does not have it, it is trained again from these, with the same
// result.
//
// What is synced. With error feedback, a delta codec or local values, the files and the update
// belong together, so all are synced. Otherwise a lost update costs one more training and nothing
// else; then its file is not synced, and its digest is checked when it is read again.
//
// When the kept files change:
//   - Local values: when the update is accepted. A rule's vector moves by what the server has
//     decoded: the change of the shared vector or, with LocalRule::follow, the update. So both ends
//     agree whatever the codec lost, and the next change makes up for it. The shared part of an
//     update therefore has no residual.
//   - Residual: with each update that is coded with error feedback. In a round whose codec
//     has none the residual waits. An update that did not count goes back into the residual, except
//     a delta, which is not an update.
//   - Reference: when the update is accepted.
//   - Codec state: with each update that is coded, even if the server then refuses it, because the
//     newest state is the best start for the codec. A damaged state is dropped.
//
// All calls block. One thread at a time (the agent's worker).
#pragma once

#include "client/state/state_folder.hpp"
#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/params/layout.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace fl::client {

class ClientState {
 public:
  /// An empty state; call load() before all else. `threads` encode and decode an update; with more
  /// than one, `files` must be usable from any thread. `files` must outlive it. Vectors for a short
  /// time lie in memory up to `memory_bytes_max`.
  ClientState(Files& files, std::filesystem::path folder, int threads = 1,
              std::uint64_t memory_bytes_max = client::values_in_memory_bytes_max)
      : folder_(files, std::move(folder)),
        threads_(threads),
        scratch_(std::make_unique<client::ValuePool>(files, folder_.path(), memory_bytes_max)) {}
  /// Loads the manifest, or starts with an empty one, and removes stray files. An unreadable
  /// manifest is `corrupt`; the message names the file.
  [[nodiscard]] Result<void> load() { return folder_.load(); }
  /// Both in one.
  static Result<ClientState> open(Files& files, std::filesystem::path folder, int threads = 1);
  [[nodiscard]] Files& files() const { return folder_.files(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  /// Vectors for a short time. Any thread.
  [[nodiscard]] client::ValuePool& scratch() const { return *scratch_; }

  /// Makes this the state of the given run. Returns false if it already is. Otherwise exports the
  /// own tensors of the run before (export_own_tensors) and forgets everything else of it.
  [[nodiscard]] Result<bool> enter_run(const std::string& run_key);

  /// Sets the own tensors of the current run. The manifest has them after the next update.
  void set_own_tensors(std::optional<client::OwnTensors> own) { folder_.set_own(std::move(own)); }
  /// Writes the own tensors to STATE/personal-RUN.safetensors and returns that path. Returns an
  /// empty path if there are none: the method keeps none, or no update was accepted yet.
  [[nodiscard]] Result<std::filesystem::path> export_own_tensors() const;

  [[nodiscard]] const std::optional<client::PendingUpdate>& pending() const {
    return folder_.pending();
  }
  /// Opens the pending update's file after checking its size and digest (`corrupt`).
  [[nodiscard]] Result<std::shared_ptr<File>> open_pending() { return folder_.open_pending(); }
  /// Drops the pending update and everything that was saved with it. If it is trained again, the
  /// result is the same.
  [[nodiscard]] Result<void> forget_pending() { return folder_.forget_pending(); }

  /// A new file with arbitrary contents for the local values as they are to be after an update; it
  /// becomes a part of the state with that update. Without elements, no file. Errors: those of the
  /// disk.
  [[nodiscard]] Result<client::NewValues> new_local_values(std::uint64_t elements);

  /// Encodes an update and makes it the pending one. With error feedback the residual is added
  /// first. With a delta codec the reference is subtracted, if begin.reference() is its task;
  /// otherwise begin.reference() becomes 0.
  ///   update        layout.all.elements() values; becomes what was coded
  ///   begin         all fields but those that tell of coding and saving are set
  ///   local_values  the method's new local values (the local rule's vector, then the personal
  ///                 part), or none
  ///   rule          the rule whose vector that is, or null
  ///   device        the device that may encode, or none. device.values: the device's copy of
  ///                 `update`, if that is what is coded: no error feedback, no delta, no shared
  ///                 vectors. If the device's result can't be decoded, the CPU encodes again.
  /// Memory: blocks of the vectors, and what the codec and `scratch()` need.
  [[nodiscard]] Result<void> save_update(const RunLayout& layout, client::StoredValues& update,
                                         const codec::Codec& codec, codec::CodeInputs inputs,
                                         wire::UploadBegin begin,
                                         client::NewValues local_values = {},
                                         const LocalRule* rule = nullptr,
                                         codec::DeviceCopy device = {});
  /// Call when the server has accepted the pending update. Its files replace the current ones.
  [[nodiscard]] Result<void> settle_accepted();
  /// Call when the pending update does not count. With error feedback the update goes back into the
  /// residual; without `keeps_mass` the update and the residual are dropped instead. A velocity
  /// stays 0 where the update had values (shared/codec/encode/feedback.hpp).
  [[nodiscard]] Result<void> settle_unused(const RunLayout& layout, bool keeps_mass = true);

  /// Removes the spare files, which are kept for the next update. If that fails, the next start
  /// removes them.
  void drop_spares() { folder_.drop_spares(); }

  /// The residual (that of the pending update, if there is one); no values if there is none.
  [[nodiscard]] Result<client::StoredValues> residual(const Layout& layout) const;
  /// The reference for the next delta (not that of a pending update); no values if there is none.
  [[nodiscard]] Result<client::StoredValues> reference(const Layout& layout) const;
  /// The local values, which must be this many; no values before the first accepted update.
  [[nodiscard]] Result<client::StoredValues> local_values(std::uint64_t elements) const;

 private:
  [[nodiscard]] Result<void> put_back_and_settle(const RunLayout& layout, bool keeps_mass);
  [[nodiscard]] Result<std::string> put_back(const RunLayout& layout);

  client::StateFolder folder_;
  int threads_;
  std::unique_ptr<client::ValuePool> scratch_;
};

}  // namespace fl::client
