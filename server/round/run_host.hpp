// SPDX-License-Identifier: Apache-2.0
// The host of a run that this server works on: sessions and admission reach the run's parts through
// it. SessionHost says what each function does. On the engine's strand.
#pragma once

#include "server/host/session_host.hpp"
#include "server/round/attendance.hpp"
#include "server/round/transfers.hpp"
#include "server/round/uploads.hpp"

#include <memory>
#include <string>
#include <utility>

namespace fl::server {

class RunHost final : public SessionHost {
 public:
  struct Parts {
    RunControl& control;
    Attendance& attendance;
    const Versions& versions;
    Transfers& transfers;
    Tasks& tasks;
    Uploads& uploads;
    TaskDecisions& decisions;
    Evaluations& evaluations;
    MaskedRound* masked;  // Null: the run is not masked.
  };
  explicit RunHost(const Parts& parts) : parts_(parts) {}

  [[nodiscard]] net::any_io_executor executor() const override { return parts_.control.strand(); }
  [[nodiscard]] RunId run_id() const override { return parts_.control.plan.run.id; }

  [[nodiscard]] Result<wire::Welcome> welcome(const std::string& name,
                                              const wire::Hello& hello) override {
    return parts_.attendance.welcome(name, hello);
  }
  void note_decline(const std::string& name, const std::string& reason) override {
    parts_.attendance.note_decline(name, reason);
  }
  [[nodiscard]] Error other_tensors(const wire::Bye& bye) const override;
  void note_refusal(const std::string& name, const std::string& remote,
                    const Error& error) override {
    parts_.attendance.note_refusal(name, remote, error);
  }
  Awaitable<Result<void>> join(std::shared_ptr<Peer> peer) override {
    return parts_.attendance.join(std::move(peer));
  }
  void leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason) override {
    parts_.attendance.leave(peer, for_good, std::move(reason));
  }

  Awaitable<Result<Download>> download(std::shared_ptr<Peer> peer, wire::Fetch fetch) override;
  Awaitable<UploadGrant> begin_upload(std::shared_ptr<Peer> peer, wire::UploadBegin begin) override;
  Awaitable<wire::Verdict> finish_upload(std::shared_ptr<Peer> peer, UploadGrant grant) override;
  void end_transfer(const Peer& peer, TransferWay way, std::size_t chunk_bytes_max) override {
    parts_.transfers.end(peer, way, chunk_bytes_max);
  }

  Awaitable<Result<void>> take_secure(std::shared_ptr<Peer> peer, wire::Header message) override;
  Awaitable<void> record_evaluation(std::shared_ptr<Peer> peer,
                                    wire::Evaluation evaluation) override {
    return parts_.evaluations.record(std::move(peer), std::move(evaluation));
  }
  Awaitable<void> record_failure(std::shared_ptr<Peer> peer, wire::Failed failed) override;
  Awaitable<void> end_slow_upload(std::shared_ptr<Peer> peer, TaskId task, bool trickles,
                                  std::string text) override;

  void report_of(const std::string& client, EventLevel level, std::string text) override {
    parts_.control.report_of(client, level, std::move(text));
  }
  void report_full_disk(std::string text) override {
    parts_.control.store.report_full_disk(std::move(text));
  }

  void revoke(const std::string& name) override;
  void pardon(const std::string& name, double at) override { parts_.attendance.pardon(name, at); }
  void expel(const std::string& name, const std::string& reason) override {
    parts_.attendance.expel(name, reason);
  }
  void end_early(std::string why) override { parts_.evaluations.take_end(std::move(why)); }

 private:
  Parts parts_;
};

}  // namespace fl::server
