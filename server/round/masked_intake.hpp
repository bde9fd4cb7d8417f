// SPDX-License-Identifier: Apache-2.0
// Takes masked words in, which the server can't read: they are made durable and held, until it is
// known whose words count (masked_round.hpp). The mean is that of their opened sum. On the engine's
// strand.
#pragma once

#include "server/round/masked_round.hpp"
#include "server/round/update_intake.hpp"

#include <optional>
#include <vector>

namespace fl::server {

class MaskedIntake final : public UpdateIntake {
 public:
  struct Parts {
    RunControl& control;
    Offload& compute;
    Spool& spool;
    MaskedRound& round;
  };
  explicit MaskedIntake(const Parts& parts) : parts_(parts) {}

  Awaitable<Result<void>> open_round() override { return parts_.round.begin(); }
  Awaitable<Result<void>> rebuild() override { return parts_.round.begin(); }
  [[nodiscard]] std::optional<wire::Verdict> answer_to(const wire::UploadBegin& begin,
                                                       const std::string& client) const override {
    return parts_.round.answer_to(begin, client);
  }
  [[nodiscard]] Result<void> check(const wire::UploadBegin& begin, const Task& task) const override;
  [[nodiscard]] bool reads_figures() const override { return false; }
  Awaitable<Result<Taken>> take(Task& task, TaskRecord& record, const UploadGrant& grant) override;
  [[nodiscard]] Result<void> forget(const TaskRecord&, const Error&) override { return {}; }
  Awaitable<Result<void>> settle() override { co_return success(); }
  [[nodiscard]] Result<ReadValues> mean() const override;
  Awaitable<Result<std::vector<codec::LaneTally>>> lane_tallies(codec::LaneSteps) override {
    co_return parts_.round.sums().tallies();
  }
  void release() override {}

 private:
  Parts parts_;
};

}  // namespace fl::server
