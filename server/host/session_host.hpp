// SPDX-License-Identifier: Apache-2.0
// The host of sessions: all that sessions and admission need of a run. Sessions carry messages, and
// their host decides. The host of a run that this server works on is RunHost; anything else that
// gives clients work (a relay, a test) can stand in its place.
//
// A session keeps its host alive, and calls it on executor().
#pragma once

#include "server/history/records.hpp"
#include "server/host/download.hpp"
#include "server/host/peer.hpp"
#include "server/host/upload_grant.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace fl::server {

/// The direction of a transfer, seen from the client.
enum class TransferWay { up, down };

class SessionHost {
 public:
  SessionHost() = default;
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;
  virtual ~SessionHost() = default;

  // From any thread. -----------------------------------------------------------------------------

  [[nodiscard]] virtual net::any_io_executor executor() const = 0;
  [[nodiscard]] virtual RunId run_id() const = 0;

  // A client comes, and goes. --------------------------------------------------------------------

  /// Returns the Welcome for a new client. The Error's text goes to the client; `cancelled`: the
  /// run is over, and the client waits for another.
  [[nodiscard]] virtual Result<wire::Welcome> welcome(const std::string& name,
                                                      const wire::Hello& hello) = 0;
  /// Notes that a client has read the Welcome and can't take part in this run, as `reason` says. It
  /// may wait for another.
  virtual void note_decline(const std::string& name, const std::string& reason) = 0;
  /// The error for a client whose tensors, in its Bye, are not the run's.
  [[nodiscard]] virtual Error other_tensors(const wire::Bye& bye) const = 0;
  /// Notes that a client was turned away before it joined. The history has it once, until the
  /// client joins.
  virtual void note_refusal(const std::string& name, const std::string& remote,
                            const Error& error) = 0;
  /// A client is ready. A second session of the same client replaces the first, whose connection
  /// broke without our noticing. The Error's text goes to the client.
  virtual Awaitable<Result<void>> join(std::shared_ptr<Peer> peer) = 0;
  /// A session has ended. Without `for_good` the client may be trying to come back. Otherwise it
  /// loses its task, for this `reason`.
  virtual void leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason) = 0;

  // Transfers. -----------------------------------------------------------------------------------

  /// Returns what answers a client's Fetch. Errors: not_found for a version that is not kept;
  /// unavailable while the run ends or too many files are open. Any other error has stopped the
  /// run.
  virtual Awaitable<Result<Download>> download(std::shared_ptr<Peer> peer, wire::Fetch fetch) = 0;
  /// A client announces an update. Waits while a round is closing. The grant has the file that
  /// takes the bytes, and the offset of the first one; or a verdict at once. The session asks for
  /// one upload at a time. Each grant with an upload ends with one end_transfer(): after
  /// finish_upload() has returned, or without it when the upload breaks off.
  virtual Awaitable<UploadGrant> begin_upload(std::shared_ptr<Peer> peer,
                                              wire::UploadBegin begin) = 0;
  /// Call it after the last byte: checks the update, makes it durable, adds it up, decides. May
  /// take until the round closes.
  virtual Awaitable<wire::Verdict> finish_upload(std::shared_ptr<Peer> peer, UploadGrant grant) = 0;
  /// A transfer that a session was granted, to send or to receive, has ended. `chunk_bytes_max`:
  /// what the grant said.
  virtual void end_transfer(const Peer& peer, TransferWay way, std::size_t chunk_bytes_max) = 0;

  /// Handles a member's message of a masked round: SecureKeys, SecureShares, SecureConsent or
  /// SecureReveal. What answers it is posted. An error ends the session.
  virtual Awaitable<Result<void>> take_secure(std::shared_ptr<Peer> peer, wire::Header message) = 0;

  // What a client says of its work. --------------------------------------------------------------

  /// Records a client's answer to Evaluate. An invalid answer is reported and ignored.
  virtual Awaitable<void> record_evaluation(std::shared_ptr<Peer> peer,
                                            wire::Evaluation evaluation) = 0;
  /// A client can't do its task or an evaluation, and says why.
  virtual Awaitable<void> record_failure(std::shared_ptr<Peer> peer, wire::Failed failed) = 0;
  /// Ends an upload that came too slowly, as `text` says; its session ends.
  virtual Awaitable<void> end_slow_upload(std::shared_ptr<Peer> peer, TaskId task, bool trickles,
                                          std::string text) = 0;

  // Reports. -------------------------------------------------------------------------------------

  /// Reports something that a client has caused, in the log and as an event of the run. Of each
  /// client only a few in a minute are reported one by one.
  virtual void report_of(const std::string& client, EventLevel level, std::string text) = 0;
  /// Reports it, and gives back what the host keeps in reserve on the disk.
  virtual void report_full_disk(std::string text) = 0;

  // What admission calls. ------------------------------------------------------------------------

  /// Expels a client that was revoked, and forgets its evaluations.
  virtual void revoke(const std::string& name) = 0;
  /// An operator has pardoned a client (Members::pardon()) at this time, in Unix seconds: its
  /// misses before that don't count any more.
  virtual void pardon(const std::string& name, double at) = 0;
  /// Ends the session of a client whose certificate is not valid any more, and its task.
  virtual void expel(const std::string& name, const std::string& reason) = 0;
  /// An operator has ended the run, and the history says so: no round opens after this one.
  virtual void end_early(std::string why) = 0;
};

}  // namespace fl::server
