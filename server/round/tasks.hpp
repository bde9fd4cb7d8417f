// SPDX-License-Identifier: Apache-2.0
// The tasks of the open round, and those that outlive theirs: what each client was asked, and what
// has become of it. On the engine's strand. Workers read it too: RoundSums the open round's record
// while an update is checked, and the accepted tasks while the round closes;
// DecodedIntake::cosines() the round's tasks, then as well. None of this changes meanwhile.
#pragma once

#include "server/history/records.hpp"
#include "server/round/norm_limit.hpp"
#include "server/round/past_rounds.hpp"
#include "server/round/roster.hpp"
#include "server/run/run_plan.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/params/model_part.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

struct Task {
  TaskRecord record;
  ModelPart part = ModelPart::whole;  // What the client trains and sends an update of.
  bool has_norm = false;              // Deciding: its update is in the sums, and OpenRound::norms.
  bool waits_for_others = false;      // Deciding: its norm is judged when the round closes.
  bool is_deciding = false;  // A decision is being made: its update is checked, or its final state
                             // is being made durable.
  /// In a masked round: the update is trained, and its member's keys are here.
  bool has_keys = false;
  bool has_arrived = false;  // The complete update is here and waits for a round that takes it.
  /// The task was open at a deadline of its round, which waits for another one.
  bool has_missed = false;
  bool is_counted_miss = false;  // Bench::note_miss() has heard of it: one task is one miss.
  TimePoint offered_at{};
  TimePoint begun_at{};      // The time when its upload first began.
  Traffic before;            // The client's traffic when the task was offered.
  int failures = 0;          // Failures of this client in this round.
  int slow_uploads = 0;      // Sessions that were ended for their slow upload.
  int wrong_digests = 0;     // Uploads whose bytes were not those that were announced.
  TimePoint ask_again_at{};  // When the client may be asked again.

  /// Whether the task was offered and is not decided, and no decision on it is under way.
  [[nodiscard]] bool is_open() const { return record.state == TaskState::offered && !is_deciding; }
  [[nodiscard]] bool has_failed() const {
    return record.state == TaskState::refused || record.state == TaskState::lost;
  }
  /// Notes that the client brought no update that counts: it is asked again only after a growing
  /// pause.
  void note_failure();
};

/// Marks while it lives that a decision on a task is being made: its update is verified, or its end
/// is made durable, also that of a lost or overdue task. Nothing else decides on the task, and its
/// round can't close, so the task stays where it is.
class DecidingGuard {
 public:
  explicit DecidingGuard(Task& task) : task_(task) {
    FL_ASSERT(task_.is_open());
    task_.is_deciding = true;
  }
  ~DecidingGuard() {
    FL_ASSERT(task_.is_deciding);
    task_.is_deciding = false;
  }
  DecidingGuard(const DecidingGuard&) = delete;
  DecidingGuard& operator=(const DecidingGuard&) = delete;

 private:
  Task& task_;
};

struct OpenRound {
  RoundRecord record;
  ModelPart part = ModelPart::whole;  // What its updates are added to, and it makes a version of.
  std::map<std::string, Task> tasks;  // Tasks by client.
  TimePoint opened_at{};  // When this process opened it; earlier processes may have had it open.
  double seconds_before = 0;  // How long earlier processes had it open.
  TimePoint deadline = never;
  Traffic before;           // All traffic when it opened.
  bool is_durable = false;  // The history has its row, and carried tasks belong to it.
  /// The cohort is frozen: whoever fails, nobody else is asked (Tasks::to_ask()). The round closes
  /// with the updates that come, if they are a quorum, or is reopened. This is not durable: after a
  /// restart others may be asked until the round closes again.
  bool is_frozen = false;
  /// The round takes no further updates, and its cohort is frozen. Updates that wait for their norm
  /// are judged.
  bool is_closing = false;
  /// The norms that its updates are compared with. None before the first is judged.
  std::optional<RoundNorms> norms;
  bool has_refused_updates = false;  // Updates were judged too large while it was closing.

  /// Takes over the tasks that go on from the round before. This round has none yet.
  void take(std::map<std::string, Task> carried);
  /// Adds a client's task, or its next one if its last one has failed.
  Task& put(Task task);
  /// Gives an open task its final state.
  void update_task(Task& task, TaskRecord record);
  void begin_closing();
  /// Takes updates and asks clients again: the round was closing, and has too few now.
  void reopen();
  /// The number of tasks in a state. Takes the same time with any number of tasks.
  [[nodiscard]] std::uint32_t count(TaskState state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  [[nodiscard]] bool is_deciding() const;
  /// The Unix time if the round ends now. Its length does not depend on steps of the wall clock.
  [[nodiscard]] double ends_at() const {
    return record.started_at + seconds_before + seconds(Clock::now() - opened_at);
  }
  /// Whether all updates that are being checked are in the sums and wait for their judgement.
  [[nodiscard]] bool has_all_norms() const;

 private:
  std::array<std::uint32_t, task_state_count> counts_{};
};

class Tasks {
 public:
  Tasks(const RunPlan& plan, const Roster& roster) : plan_(plan), roster_(roster) {}

  // The open round --------------------------------------------------------------------------------

  [[nodiscard]] bool has_round() const { return round_.has_value(); }
  /// Only while has_round(). The round's address stays the same until close().
  [[nodiscard]] OpenRound& round() { return *round_; }
  [[nodiscard]] const OpenRound& round() const { return *round_; }
  /// Opens a round, with the tasks that go on from the round before.
  void open(OpenRound round);
  /// Closes the recorded round: its open tasks that train from `oldest_base` or a later version go
  /// on in the next one; the others end.
  void close(Version oldest_base);
  /// Adds a task that goes on, at a restart between two rounds.
  void carry(TaskRecord record);

  /// The client's task of the open round, or one that goes on from the last; or null. The pointer
  /// is valid until the next co_await, and longer while a DecidingGuard holds the task.
  [[nodiscard]] Task* task_of(const std::string& client);
  /// The client's task, if it has this id; else null.
  [[nodiscard]] Task* find(const std::string& client, TaskId id);
  /// The tasks under way between two rounds.
  [[nodiscard]] const std::map<std::string, Task>& carried() const { return carried_; }

  // What the open round still needs ---------------------------------------------------------------

  /// The least number of accepted updates that the round may close with.
  [[nodiscard]] std::uint32_t quorum() const;
  /// The number of updates that are accepted, or will be unless they are judged too large. In a
  /// masked round: that are trained.
  [[nodiscard]] std::uint32_t ready() const;
  /// Whether the round has its target of updates; or the quorum, and no others come in time.
  [[nodiscard]] bool has_enough(TimePoint now) const;
  /// Whether a closing round, in which nothing is being checked any more, may end with what it has;
  /// else it is to be reopened. If updates were judged too large since it began to close, it may
  /// lack some. A buffer then ends with fewer than its target only if no client is left to ask.
  [[nodiscard]] bool may_end(TimePoint now) const;
  /// How many more clients are to be asked now; nothing else decides that. None while the cohort is
  /// frozen. After the deadline as many as the quorum lacks. Before it, in an asynchronous run as
  /// many as may train at the same time, else as many as the target lacks.
  [[nodiscard]] std::size_t to_ask(TimePoint now) const;
  /// When the time for a task is over; `never` without a deadline.
  [[nodiscard]] TimePoint due(const Task& task) const;
  /// The earliest of the open tasks' ends, the round's deadline and, with `asks_others`, the moment
  /// when a client that failed may be asked again.
  [[nodiscard]] TimePoint next_event(TimePoint now, bool asks_others) const;
  [[nodiscard]] std::vector<Task*> overdue(TimePoint now);
  /// Whether an update may be added to the open round. A buffer takes no more than its K.
  [[nodiscard]] bool takes_updates() const;
  /// Whether the client has no task in this round, or one that failed some time ago. In a
  /// synchronous round a client that failed is asked again only for the quorum.
  [[nodiscard]] bool may_be_asked(const std::string& client) const;
  /// In an asynchronous run: how many more may train at the same time. A client that is not here
  /// takes no place.
  [[nodiscard]] std::size_t free_places() const;
  /// A text that lists clients has no more names.
  static constexpr std::size_t names_shown_max = 10;
  /// Clients whose updates have not come, for the log; not all, if they are many.
  [[nodiscard]] std::string names_missing() const;

  // What is in it ---------------------------------------------------------------------------------

  [[nodiscard]] Round staleness_of(const TaskRecord& task) const {
    return round_->record.base_version - task.base_version;
  }
  /// What an update adds to the sums' weight, in 1/mode.unit(): its weight with the discount for
  /// its staleness.
  [[nodiscard]] std::uint64_t discounted_weight_of(const TaskRecord& task) const {
    return plan_.mode.discounted(weight_of(task), staleness_of(task));
  }
  /// How much the update counts in the open round, without a discount.
  [[nodiscard]] std::uint64_t weight_of(const TaskRecord& task) const {
    return plan_.weight_of(task.examples, round_->record);
  }
  /// The sum of the accepted updates' weights, without discounts.
  [[nodiscard]] std::uint64_t accepted_weight() const;
  /// The accepted tasks whose updates are deltas, by client.
  [[nodiscard]] std::map<std::string, TaskId> accepted_deltas() const;
  /// The mean training loss of the accepted updates, weighted by their predictions; NaN if there
  /// are none. One client's predictions weigh no more than --weight-cap lets its examples weigh,
  /// and its loss is bounded by the others' (counted_claims.hpp).
  [[nodiscard]] double training_loss() const;
  /// The clients whose loss counts with less than they claim, and what to say of that.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> wild_losses() const;
  /// What the strategy is told of the round: a function of what is durable, summed up in the order
  /// of the clients' names.
  [[nodiscard]] RoundFacts facts(const PastRounds& past) const;
  /// Whether an open task trains from this version.
  [[nodiscard]] bool is_base(Version version) const;

 private:
  [[nodiscard]] std::size_t missing() const;
  /// The largest magnitude of an accepted update's loss that counts.
  [[nodiscard]] double loss_limit() const;
  /// The number of updates that are accepted, or may be.
  [[nodiscard]] std::uint32_t expected() const;
  /// expected() without the tasks that have missed a deadline.
  [[nodiscard]] std::uint32_t expected_in_time() const;

  const RunPlan& plan_;
  const Roster& roster_;
  std::optional<OpenRound> round_;
  std::map<std::string, Task> carried_;  // Between two rounds: the tasks that are still under way.
};

}  // namespace fl::server
