// SPDX-License-Identifier: Apache-2.0
// The open round of a masked run: takes its members through attempts (server/secure/attempt.hpp)
// until the sum of their updates is open. What they say is durable in the history before it is
// answered or acted upon, so a restart goes on where the round was.
//
//   collect     members train, and send their keys (Task::has_keys)
//   run()       with enough of them: the cohort, its shares, its words, who counts, and the
//               answers that open the sum; then all their tasks are accepted at once
//   sums()      what the next version is made of
//
// An attempt that fails is followed by another one: members mask the same updates anew. On the
// engine's strand.
#pragma once

#include "server/round/masked_survivors.hpp"
#include "server/round/run_files.hpp"
#include "server/round/task_decisions.hpp"
#include "server/round/transfers.hpp"
#include "server/secure/attempt.hpp"
#include "server/sums/lane_sums.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace fl::server {

class MaskedRound {
 public:
  struct Parts {
    RunControl& control;
    Offload& compute;
    RunFiles& files;
    Roster& roster;
    Tasks& tasks;
    TaskDecisions& decisions;
    const Transfers& transfers;
    const Evaluations& evaluations;
    const PastRounds& past;
  };
  /// `members`: the text of a member list that has passed parse_member_list().
  MaskedRound(const Parts& parts, std::string members);

  /// Whether a client of this name may take part. The Error's text is for the client's user.
  [[nodiscard]] Result<void> check_member(const std::string& name) const;
  /// The text for Welcome.members.
  [[nodiscard]] const std::string& members() const { return members_; }
  /// Adds what an offer of the open round says of its attempt.
  void add_terms(wire::Offer& offer) const { add_terms(number_, offer); }

  /// The round is open: begins its first attempt, or goes on where the log says.
  Awaitable<Result<void>> begin();
  /// Handles a member's message. An error ends the session.
  Awaitable<Result<void>> take(std::shared_ptr<Peer> peer, wire::Header message);
  /// A member says that it does not go on with its task. Returns whether its update is one of those
  /// that are to be opened: then the task stays, and the round ends if too few are left for that.
  bool note_leaving(const std::string& client, TaskId task, std::string_view why);
  /// Says to a client what the attempt has for it now, after its connection broke.
  void repeat(Peer& peer) const;

  /// A cohort is fixed: run() must go on with it.
  [[nodiscard]] bool is_under_way() const;
  enum class Outcome {
    opened,    // The updates are accepted, and sums() has them.
    failed,    // Another attempt has begun: its offers are to be sent.
    given_up,  // The last attempt has failed, or the sum can't be opened.
    stopped,   // The server goes down.
  };
  /// Takes the members that have trained through the attempt. The cohort of the round is frozen
  /// meanwhile. Errors: those of the store and the spool.
  Awaitable<Result<Outcome>> run();
  /// The round is recorded: tells those whose updates came too late.
  void end();

  /// The answer to an announcement that needs no bytes now: the words are here, or not wanted yet.
  [[nodiscard]] std::optional<wire::Verdict> answer_to(const wire::UploadBegin& begin,
                                                       const std::string& client) const;
  /// Whether a member may send words that it announces like this. Requires: answer_to() has none.
  /// Errors: invalid_input.
  [[nodiscard]] Result<void> check_words(const wire::UploadBegin& begin,
                                         const std::string& client) const;
  /// A member's words are durable in the spool: they are held until it is known whose count.
  Awaitable<Result<void>> hold(std::string client, wire::UploadBegin begin);

  /// Requires: run() has returned Outcome::opened, and no round has begun since.
  [[nodiscard]] const LaneSums& sums() const { return *sums_; }

 private:
  void add_terms(std::uint32_t number, wire::Offer& offer) const;
  [[nodiscard]] Attempt make_attempt(std::uint32_t number) const;
  void begin_attempt(Attempt attempt);
  [[nodiscard]] Result<void> set_layout();
  Awaitable<Result<void>> log(std::string client, wire::Header message);
  Awaitable<Result<Outcome>> fail(std::string why);
  Awaitable<void> wait_for_answers();
  [[nodiscard]] Outcome give_up();
  Awaitable<Result<std::optional<Outcome>>> open();
  Awaitable<Result<void>> accept();
  void post(const std::string& client, wire::Header message) const;
  void announce() const;
  [[nodiscard]] std::set<std::string> members_here() const;
  [[nodiscard]] bool is_last_answer_coming(bool has_time) const;
  [[nodiscard]] std::string names_missing() const;

  Parts parts_;
  const std::string members_;
  const std::shared_ptr<const secure::MemberList> list_;
  secure::Public weights_{};  // The digest of the version that the round trains from.
  /// None: no round is open, or its first attempt is not ready.
  std::optional<Attempt> attempt_;
  std::uint32_t number_ = 1;                 // The attempt's, also before it is ready.
  std::optional<secure::LaneWords> layout_;  // Once there is a cohort.
  MaskedSurvivors survivors_;
  std::map<std::string, int> repeats_;  // What members have said twice in this attempt.
  std::unique_ptr<const LaneSums> sums_;
};

}  // namespace fl::server
