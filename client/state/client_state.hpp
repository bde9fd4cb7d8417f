// What a client must not lose: the update it has trained and not yet brought home, and the residual
// of its error feedback, with the velocity if that has momentum; what the method keeps here, its
// local values (strategy.hpp); and what its codec learned, the state (codec_state.hpp). One
// manifest, STATE/client.json, names the files that count and is replaced atomically after they are
// written; whatever a crash leaves beside them is garbage, removed at the next start. So after a
// crash at any point either the update was never made, or it is whole. Until it is decided, what
// was before it is kept beside what comes after it: one that can't be read any more and that the
// server does not have is made again, the same.
//
// With error feedback or local values the steps are synced, because these and the update belong
// together. Without them a lost update costs one retraining and nothing else: files are written,
// not synced, and checked by digest when they are read again.
//
// Local values go forward when the update is accepted, and the rule's vector by what the server has
// decoded, of the shared vector's change or (LocalRule::follow) of the update: so both ends agree
// on it whatever the codec lost, and the next change makes up for it. The shared vector's part of
// an update therefore has no residual.
//
// A round's codec may have no error feedback where another's had: then the residual stays as it is
// until there is feedback again, and what is refused in between goes back into it all the same, but
// for a delta, which is no update. A delta's reference goes forward when the update is accepted.
//
// The state goes forward with each update that is made, also when the update is then refused: it is
// a start for the codec and stands for no mass, and the newest one is the best. One that is damaged
// is forgotten.
//
// Blocking; one thread at a time (the agent's worker).
#pragma once

#include "proto/wire.pb.h"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/params/layout.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl {

class ClientState {
 public:
  /// `threads`: that code and decode an update; more than one where `files` is for any thread.
  /// Loads the manifest, or begins with an empty one, and removes stray files. A manifest that
  /// can't be read is `corrupt`, naming the file.
  static Result<ClientState> open(Files& files, std::filesystem::path folder, int threads = 1);

  /// Forgets everything of another run, once what this client has made for itself there is written
  /// (export_own_tensors). False: it is the one that the manifest is of.
  [[nodiscard]] Result<bool> enter_run(const std::string& run_key);

  /// What this client makes for itself in a run: personal tensors, or a whole model of its own.
  /// They are the last of the local values.
  struct OwnTensors {
    std::string model;
    std::string strategy;
    std::vector<TensorSpec> tensors;  // Named as in a checkpoint.
    std::uint64_t local_values = 0;   // All of them, in elements.
  };
  /// Of the run that was entered. In the manifest as soon as there are any values.
  void set_own_tensors(std::optional<OwnTensors> own) { own_ = std::move(own); }
  /// Writes them to STATE/personal-RUN.safetensors, and returns where that is; empty where the
  /// method keeps no such, and before the first accepted update.
  [[nodiscard]] Result<std::filesystem::path> export_own_tensors() const;

  /// Files that outlive the update they were made with; empty: none.
  struct Kept {
    std::string residual;
    std::string local_values;
    std::string velocity;
    std::string codec_state;
    std::string reference;  // The last accepted update as the server has it, where deltas are sent,
    std::int64_t reference_task = 0;  // and which task's that was.
    [[nodiscard]] bool has(std::string_view name) const;
  };
  /// The update that is trained, coded and not yet decided.
  struct Pending {
    wire::UploadBegin begin;
    std::string file;
    Kept kept;  // What takes the place of today's once this update is accepted.
  };
  [[nodiscard]] const std::optional<Pending>& pending() const { return pending_; }
  /// Its bytes, whole and right.
  [[nodiscard]] Result<std::shared_ptr<File>> open_pending();
  /// All is again as it was before the update was made: trained again, it will be the same.
  [[nodiscard]] Result<void> forget_pending();

  /// Codes `update` (plus the residual, when the codec asks for feedback; less the reference, when
  /// it is for deltas and begin.reference() is the task of what is kept: otherwise that becomes 0)
  /// and makes it the pending one. `begin` comes with everything but bytes and digest.
  /// `local_values`: what the method keeps here from now on (first the local rule's vector, then
  /// the personal part), or empty, and `rule` whose vector that is. Both spans are used as scratch.
  /// `device`: what may code it, and where a copy of `update` lies there, if nothing is added to it
  /// (no error feedback, nothing that travels with the model). What it has coded so that it can't
  /// be decoded is coded again here.
  [[nodiscard]] Result<void> save_update(const RunLayout& layout, std::span<float> update,
                                         const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                         std::span<float> local_values = {},
                                         const LocalRule* rule = nullptr, DeviceCopy device = {});
  /// The pending update is safe on the server.
  [[nodiscard]] Result<void> settle_accepted();
  /// It does not count: with error feedback its mass goes back into the residual, or without
  /// `keeps_mass` it is dropped, and what earlier codes lost with it. A velocity stays stopped
  /// where it was sent (feedback.hpp).
  [[nodiscard]] Result<void> settle_unused(const RunLayout& layout, bool keeps_mass = true);

  /// Removes the file that is kept for the next update. Nothing is lost if that fails: the next
  /// start removes it.
  void drop_spare();

  /// The residual, of a pending update if there is one, or zeros.
  [[nodiscard]] Result<std::vector<float>> residual(const Layout& layout) const;
  /// The reference of the next delta, that of a pending one not counted, or zeros.
  [[nodiscard]] Result<std::vector<float>> reference(const Layout& layout) const;
  /// What the method keeps at this client, this many values; empty before its first accepted
  /// update.
  [[nodiscard]] Result<std::vector<float>> local_values(std::uint64_t elements) const;

 private:
  ClientState(Files& files, std::filesystem::path folder, int threads)
      : files_(&files), folder_(std::move(folder)), threads_(threads) {}
  [[nodiscard]] static Kept kept_in(const nlohmann::json& json);
  static void put_kept(const Kept& kept, nlohmann::json& json);
  [[nodiscard]] Result<void> load();
  [[nodiscard]] Result<void> write_manifest();
  [[nodiscard]] Result<void> remove_strays();
  [[nodiscard]] Result<void> settle(Kept kept);
  [[nodiscard]] Result<std::vector<float>> kept_values(const std::string& name,
                                                       const Layout& layout) const;
  [[nodiscard]] CodecState codec_state() const;
  [[nodiscard]] Result<std::vector<float>> reference_for(wire::UploadBegin& begin,
                                                         const Layout& layout) const;
  [[nodiscard]] Result<std::unique_ptr<File>> new_update_file(const std::string& name);
  struct Companions;
  [[nodiscard]] Result<void> code_update(const RunLayout& layout, std::span<float> update,
                                         const Codec& codec, Seeds seeds, wire::UploadBegin begin,
                                         Companions companions, std::span<float> local_values,
                                         const LocalRule* rule, const DeviceCopy& device);
  [[nodiscard]] Result<Companions> take_companions(const RunLayout& layout, std::span<float> update,
                                                   const Codec& codec,
                                                   wire::UploadBegin& begin) const;
  [[nodiscard]] Result<void> keep_companions(const RunLayout& layout, std::span<float> update,
                                             const Codec& codec, File& file, Companions& companions,
                                             Pending& pending);
  [[nodiscard]] Result<void> advance_local(const RunLayout& layout, std::span<float> update,
                                           const Codec& codec, File& file,
                                           const Companions& companions,
                                           std::span<float> local_values, const LocalRule* rule,
                                           Pending& pending);
  [[nodiscard]] Result<void> put_back_and_settle(const RunLayout& layout, bool keeps_mass);
  [[nodiscard]] Result<std::vector<float>> read_vector(const std::string& name,
                                                       std::uint64_t elements) const;
  [[nodiscard]] Result<void> replace(std::optional<Pending> pending, Kept kept);
  [[nodiscard]] Result<std::string> write_kept(std::string_view kind, Bytes bytes);
  [[nodiscard]] std::string next_name(std::string_view kind);

  Files* files_;
  std::filesystem::path folder_;
  int threads_;
  std::string run_key_;
  std::optional<OwnTensors> own_;
  std::optional<Pending> pending_;
  std::shared_ptr<File> pending_file_;  // Open, and known to be whole: we wrote or checked it.
  Kept kept_;
  /// A delivered update's file, to be written over by the next one: blocks and cached pages are
  /// there already, which takes a third of the time or less. Empty: none.
  std::string spare_file_;
  std::uint64_t next_number_ = 1;
};

}  // namespace fl
