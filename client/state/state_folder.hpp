// SPDX-License-Identifier: Apache-2.0
// StateFolder: the files of a client's state folder, and the manifest STATE/client.json that names
// those which are valid. New files are written first, then the manifest is replaced atomically.
// Other files, which a crash may leave, are removed at the next start. So after a crash at any
// point an update either does not exist or is complete, with all files that belong to it.
//
// It knows nothing of what the files mean: client_state.hpp says when which file replaces which.
//
// All calls block. One thread at a time (the agent's worker).
#pragma once

#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::client {

/// The tensors that a client keeps to itself in a run: personal tensors, or a whole model of its
/// own. They are the last of the local values.
struct OwnTensors {
  std::string model;
  std::string strategy;
  std::vector<TensorSpec> tensors;  // Named as in a checkpoint.
  std::uint64_t local_values = 0;   // The number of all local values, in elements.
};

/// Names of the files that are kept from one update to the next; empty: no such file.
struct KeptFiles {
  std::string residual;
  std::string local_values;
  std::string velocity;
  std::string codec_state;
  std::string reference;            // With a delta codec: the last accepted update, as decoded.
  std::int64_t reference_task = 0;  // The task of that update.
  [[nodiscard]] bool has(std::string_view name) const;
};

/// The update that is trained and coded and has no verdict yet.
struct PendingUpdate {
  wire::UploadBegin begin;
  std::string file;
  KeptFiles kept;  // Replaces the current files when this update is accepted.
};

/// A vector in a new file, which becomes a part of the state when the manifest names it.
struct NewValues {
  std::string name;  // Empty: no file.
  StoredValues values;
};

/// The digest of a file's first bytes.
[[nodiscard]] Result<Digest> digest_of_beginning(File& file, std::uint64_t bytes);

class StateFolder {
 public:
  /// Call load() before all else. `files` must outlive it.
  StateFolder(Files& files, std::filesystem::path path) : files_(&files), path_(std::move(path)) {}
  /// Loads the manifest, or starts with an empty one, and removes stray files. An unreadable
  /// manifest is `corrupt`; the message names the file.
  [[nodiscard]] Result<void> load();

  [[nodiscard]] Files& files() const { return *files_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::string& run_key() const { return run_key_; }  // "": no run yet.
  [[nodiscard]] const std::optional<OwnTensors>& own() const { return own_; }
  [[nodiscard]] const KeptFiles& kept() const { return kept_; }
  [[nodiscard]] const std::optional<PendingUpdate>& pending() const { return pending_; }

  /// Makes this the folder of another run, and forgets all files of the run before but the spare
  /// ones (drop_spares()).
  [[nodiscard]] Result<void> begin_run(const std::string& run_key);
  /// The manifest has them after the next change of files.
  void set_own(std::optional<OwnTensors> own) { own_ = std::move(own); }

  /// A new file of `elements` arbitrary values, or one that settle() has left. Errors: those of the
  /// disk.
  [[nodiscard]] Result<NewValues> new_values(std::string_view kind, std::uint64_t elements);
  /// Writes and syncs a new file and returns its name. The caller syncs the folder.
  [[nodiscard]] Result<std::string> write_new(std::string_view kind, Bytes bytes);
  struct NewFile {
    std::string name;
    std::unique_ptr<File> file;  // May have bytes of an update before.
  };
  /// A new file for an update: the spare file, if there is one.
  [[nodiscard]] Result<NewFile> new_update_file();
  /// Makes the names of new files durable.
  [[nodiscard]] Result<void> sync() { return files_->sync_folder(path_); }
  /// The values of a file; no values if the name is empty. Errors: corrupt, those of the disk.
  [[nodiscard]] Result<StoredValues> open_values(const std::string& name,
                                                 std::uint64_t elements) const;

  /// Makes an update the pending one; there is none. `file` is open and complete.
  [[nodiscard]] Result<void> add_pending(PendingUpdate update, std::unique_ptr<File> file);
  /// Opens the pending update's file after checking its size and digest (`corrupt`).
  [[nodiscard]] Result<std::shared_ptr<File>> open_pending();
  /// Ends the pending update: `kept` are the current files now. The update's file becomes the spare
  /// file for the next update, and the vectors of which none is named any more are written over
  /// next time.
  [[nodiscard]] Result<void> settle(KeptFiles kept);
  /// Drops the pending update and everything that was saved with it.
  [[nodiscard]] Result<void> forget_pending();

  /// Removes files that the manifest does not name.
  [[nodiscard]] Result<void> remove_strays();
  /// Removes all spare files. If that fails, the next start removes them.
  void drop_spares();

 private:
  [[nodiscard]] Result<void> read_manifest();
  [[nodiscard]] Result<void> write_manifest();
  [[nodiscard]] Result<void> replace(std::optional<PendingUpdate> pending, KeptFiles kept);
  [[nodiscard]] std::string next_name(std::string_view kind);
  void spare_vectors(const KeptFiles& before);
  [[nodiscard]] bool is_spare(std::string_view name) const;

  Files* files_;
  std::filesystem::path path_;
  std::string run_key_;
  std::optional<OwnTensors> own_;
  std::optional<PendingUpdate> pending_;
  std::shared_ptr<File> pending_file_;  // Open and complete: this object got it or checked it.
  KeptFiles kept_;
  /// The name of a delivered update's file, which the next update overwrites. That takes a third of
  /// the time or less, because blocks and cached pages exist already. Empty: there is none.
  std::string spare_file_;
  /// Names of vectors that the manifest on the disk does not name any more, for the same reason.
  std::vector<std::string> spare_vectors_;
  std::uint64_t next_number_ = 1;
};

}  // namespace fl::client
