// SPDX-License-Identifier: Apache-2.0
// Lets clients into the run once they have said what they are, takes their leave, and puts out
// those that may not take part any more. On the engine's strand.
#pragma once

#include "server/round/newcomers.hpp"
#include "server/round/offers.hpp"

#include <memory>
#include <string>

namespace fl::server {

class Attendance {
 public:
  struct Parts {
    RunControl& control;
    const Versions& versions;
    Roster& roster;
    Tasks& tasks;
    Evaluations& evaluations;
    const RunEnd& end;
    Offers& offers;
    TaskDecisions& decisions;
    const MaskedRound* masked;  // Null: the run is not masked.
  };
  explicit Attendance(const Parts& parts) : parts_(parts) {}

  // What these do is said in SessionHost.
  [[nodiscard]] Result<wire::Welcome> welcome(const std::string& name, const wire::Hello& hello);
  void note_decline(const std::string& name, const std::string& reason);
  void note_refusal(const std::string& name, const std::string& remote, const Error& error);
  Awaitable<Result<void>> join(std::shared_ptr<Peer> peer);
  void leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason);
  void expel(const std::string& name, const std::string& reason);
  void pardon(const std::string& name, double at);
  /// Those that are not in the run. A client that enters it, is turned away or expelled is none.
  [[nodiscard]] const Newcomers& newcomers() const { return newcomers_; }

 private:
  [[nodiscard]] Result<wire::Welcome> welcome_of(const std::string& name,
                                                 const wire::Hello& hello) const;
  [[nodiscard]] Result<void> check_figures_of(const Peer::Facts& facts) const;
  void replace_session_of(const std::string& name);
  void report_unless_over(const std::string& client, std::string text);

  Parts parts_;
  Newcomers newcomers_;
};

}  // namespace fl::server
