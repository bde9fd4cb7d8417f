// SPDX-License-Identifier: Apache-2.0
#include "server/round/masked_round.hpp"

#include "server/round/masked_log.hpp"
#include "server/round/masked_sum.hpp"
#include "server/round/offer_terms.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::server {

namespace {

using Stage = Attempt::Stage;

wire::Verdict verdict_on(TaskId task, wire::Verdict::Outcome outcome, std::string_view reason) {
  wire::UploadBegin begin;
  begin.set_task(number_of(task));
  return verdict_for(begin, outcome, reason);
}

}  // namespace

MaskedRound::MaskedRound(const Parts& parts, std::string members)
    : parts_(parts),
      members_(std::move(members)),
      list_(
          std::make_shared<const secure::MemberList>(secure::parse_member_list(members_).value())),
      survivors_(parts.control, parts.roster, parts.tasks) {}

Result<void> MaskedRound::check_member(const std::string& name) const {
  if (list_->find(name)) return {};
  return Error(Errc::invalid_input,
               fmt::format("'{}' is not in the member list of this masked run: let its signers add "
                           "it with its site key, and start the server with the new list",
                           name));
}

void MaskedRound::add_terms(std::uint32_t number, wire::Offer& offer) const {
  offer.mutable_secure()->set_attempt(number);
  offer.mutable_secure()->set_members(secure::raw(list_->digest()));
}

// Beginning -------------------------------------------------------------------------------------

/// The attempt of this number at the open round's sum.
Attempt MaskedRound::make_attempt(std::uint32_t number) const {
  const OpenRound& round = parts_.tasks.round();
  const RunPlan& plan = parts_.control.plan;
  wire::Offer offer =
      common_offer(plan, *parts_.files.versions.at(round.record.base_version), parts_.past.losses);
  // All tasks of a round have one codec.
  if (!round.tasks.empty()) offer.set_codec(round.tasks.begin()->second.record.codec);
  add_terms(number, offer);
  const secure::RunTerms run{plan.run.key, plan.run.model, plan.settings.strategy,
                             plan.layout.digest().raw()};
  return {number, secure::attempt_context(run, offer, weights_), list_};
}

void MaskedRound::begin_attempt(Attempt attempt) {
  number_ = attempt.number();
  layout_.reset();
  survivors_.reset();
  repeats_.clear();
  attempt_ = std::move(attempt);
  for (auto& [client, task] : parts_.tasks.round().tasks)
    task.has_keys = attempt_->has_keys(client, number_of(task.record.id));
}

Awaitable<Result<void>> MaskedRound::begin() {
  parts_.control.expect_strand();
  attempt_.reset();
  sums_.reset();
  survivors_.release();
  auto read_base = [this] {
    return digest_of_values(*parts_.files.versions.at(parts_.tasks.round().record.base_version),
                            parts_.control.plan.layout);
  };
  FL_CO_TRY(weights_, co_await parts_.control.store.with_room(parts_.compute, read_base));
  const Round round = parts_.tasks.round().record.round;
  auto read_log = [run = parts_.control.plan.run.id, round](Store& store) {
    return store.masked_messages().of_round(run, round);
  };
  FL_CO_TRY(const auto said, co_await parts_.control.store.with_store(std::move(read_log)));
  const auto make = [this](std::uint32_t number) { return make_attempt(number); };
  FL_CO_TRY(auto replayed, replay_masked_log(said, make));
  begin_attempt(std::move(replayed.attempt));
  if (replayed.is_outdated) {
    wire::Header failed;
    failed.mutable_failed()->set_reason("the member list or the settings have changed");
    FL_CO_CHECK(co_await log("", std::move(failed)));
    begin_attempt(make_attempt(number_ + 1));
  }
  if (is_under_way()) FL_CO_CHECK(set_layout());
  survivors_.hold(attempt_->survivors());
  parts_.control.changed.notify();
  co_return success();
}

/// Where each value is in the cohort's words.
Result<void> MaskedRound::set_layout() {
  const RunPlan& plan = parts_.control.plan;
  const OpenRound& round = parts_.tasks.round();
  const Layout& layout = plan.layout_of(round.part);
  FL_TRY(const auto codec, codec::parse_codec(round.tasks.begin()->second.record.codec));
  const auto base = parts_.files.versions.at(round.record.base_version);
  FL_TRY(const auto steps,
         codec::parse_lane_steps(base->record.lane_steps, layout.tensors().size()));
  FL_TRY(auto runs, codec->lane_runs(layout, steps));
  layout_.emplace(std::move(runs), layout.tensors().size(), attempt_->size());
  return {};
}

// Messages --------------------------------------------------------------------------------------

void MaskedRound::post(const std::string& client, wire::Header message) const {
  if (const auto peer = parts_.roster.find(client)) peer->post(std::move(message));
}

void MaskedRound::repeat(Peer& peer) const {
  const std::string& client = peer.facts().name;
  const Task* const task = parts_.tasks.task_of(client);
  if (!attempt_ || task == nullptr) return;
  auto message = attempt_->message_for(client);
  if (!message) return;
  secure::set_task(*message, number_of(task->record.id));
  peer.post(std::move(*message));
}

void MaskedRound::announce() const {
  for (const auto& [client, task] : parts_.tasks.round().tasks)
    if (const auto peer = parts_.roster.find(client)) repeat(*peer);
}

Awaitable<Result<void>> MaskedRound::take(std::shared_ptr<Peer> peer, wire::Header message) {
  parts_.control.expect_strand();
  const std::string client = peer->facts().name;
  const auto [task_number, attempt_number] = secure::subject_of(message);
  const TaskId id{task_number};
  const auto is_ours = [&] {
    const Task* const task = parts_.tasks.find(client, id);
    return task != nullptr && task->record.state == TaskState::offered;
  };
  while (is_ours() && !attempt_ && !parts_.control.is_going_down())
    co_await parts_.control.changed.wait(never);
  if (parts_.control.is_going_down()) co_return success();
  if (!is_ours()) {
    wire::UploadBegin begin;
    begin.set_task(number_of(id));
    wire::Header answer;
    *answer.mutable_verdict() = co_await parts_.decisions.verdict_of_earlier(client, begin);
    if (answer.verdict().outcome() != wire::Verdict::LATER) peer->post(std::move(answer));
    co_return success();
  }
  if (attempt_number != number_)
    co_return success();  // The offer of the newer attempt is on its way.
  const auto is_new = attempt_->check(client, message);
  if (!is_new) {
    const std::string why = fmt::format("its {}: {}", kind_name(message), is_new.error().message());
    parts_.control.report_of(
        client, EventLevel::warning,
        fmt::format("{}: a message of the masked round is refused: {}", client, why));
    // Members whose words count are waited for, whatever they send.
    if (!survivors_.are_held()) {
      co_await parts_.decisions.lose_task(client, id, why);
      wire::Header answer;
      *answer.mutable_verdict() = verdict_on(id, wire::Verdict::REFUSED, why);
      peer->post(std::move(answer));
    }
    co_return success();
  }
  if (*is_new) FL_CO_CHECK(co_await log(client, message));
  if (!*is_new && ++repeats_[client] > limits::masked_repeats_max)
    co_return Error(Errc::protocol, fmt::format("it says {} again and again", kind_name(message)));
  // A member that signs when enough have signed is asked at once.
  if (!*is_new || (message.has_secure_consent() && is_under_way())) repeat(*peer);
  co_return success();
}

bool MaskedRound::note_leaving(const std::string& client, TaskId task, std::string_view why) {
  parts_.control.expect_strand();
  if (!attempt_ || !survivors_.are_held() || parts_.tasks.find(client, task) == nullptr)
    return false;
  if (!std::ranges::binary_search(attempt_->survivors(), client)) return false;
  survivors_.note_leaving(client, why);
  return true;
}

/// Makes a message durable, then applies it, unless the attempt is over meanwhile. `client`: empty
/// for a decision of the server's.
Awaitable<Result<void>> MaskedRound::log(std::string client, wire::Header message) {
  const std::uint32_t number = number_;
  const Round round = parts_.tasks.round().record.round;
  TaskId task = TaskId::none;
  if (!client.empty())
    task = TaskId{message.has_begin() ? message.begin().task() : secure::subject_of(message).task};
  const MaskedMessage row{number, client, task, kind_name(message), message.SerializeAsString()};
  auto write = [run = parts_.control.plan.run.id, round, row](Store& store) {
    return store.masked_messages().add(run, round, {row});
  };
  const auto written = co_await parts_.control.store.with_store(std::move(write));
  // Two sessions of one client have sent the same.
  if (!written && written.error().code() == Errc::conflict) co_return success();
  if (!written && !will_pass(written.error())) parts_.control.fail(written.error());
  FL_CO_CHECK(written);
  failpoint("masked.logged");
  const bool is_over = !attempt_ || number != number_ || !parts_.tasks.has_round() ||
                       parts_.tasks.round().record.round != round;
  if (is_over || message.has_failed()) co_return success();
  FL_CO_CHECK(attempt_->apply(client, message));
  if (message.has_secure_keys()) {
    if (Task* const member = parts_.tasks.find(client, task)) member->has_keys = true;
  }
  parts_.control.changed.notify();
  co_return success();
}

// Words -----------------------------------------------------------------------------------------

std::optional<wire::Verdict> MaskedRound::answer_to(const wire::UploadBegin& begin,
                                                    const std::string& client) const {
  const bool is_this_attempt = attempt_ && begin.attempt() == number_;
  if (is_this_attempt && attempt_->words_of(client) != nullptr)
    return verdict_for(begin, wire::Verdict::HELD, "");
  if (is_this_attempt && attempt_->wants_words_of(client)) return std::nullopt;
  return verdict_for(begin, wire::Verdict::LATER, "the attempt is not at this step");
}

Result<void> MaskedRound::check_words(const wire::UploadBegin& begin,
                                      const std::string& client) const {
  const std::uint64_t bytes = layout_->words() * 8;
  if (begin.bytes() != bytes) {
    return Error(Errc::invalid_input,
                 fmt::format("it has {} bytes; the masked words of this attempt have {}",
                             begin.bytes(), bytes));
  }
  wire::Header message;
  *message.mutable_begin() = begin;
  FL_CHECK(attempt_->check(client, message));
  return {};
}

Awaitable<Result<void>> MaskedRound::hold(std::string client, wire::UploadBegin begin) {
  parts_.control.expect_strand();
  if (!attempt_ || begin.attempt() != number_ || !attempt_->wants_words_of(client))
    co_return Error(Errc::unavailable, "the attempt went on without it");
  wire::Header message;
  *message.mutable_begin() = std::move(begin);
  co_return co_await log(std::move(client), std::move(message));
}

// Running ---------------------------------------------------------------------------------------

bool MaskedRound::is_under_way() const { return attempt_ && attempt_->stage() != Stage::keys; }

/// The members whose tasks are not lost.
std::set<std::string> MaskedRound::members_here() const {
  std::set<std::string> names;
  for (const auto& [client, task] : parts_.tasks.round().tasks)
    if (task.record.state == TaskState::offered && task.has_keys) names.insert(client);
  return names;
}

Awaitable<Result<MaskedRound::Outcome>> MaskedRound::run() {
  parts_.control.expect_strand();
  parts_.tasks.round().is_frozen = true;
  if (is_under_way()) announce();
  for (;;) {
    const Stage stage = attempt_->stage();
    if (stage == Stage::opened) {
      FL_CO_TRY(const auto outcome, co_await open());
      if (outcome) co_return *outcome;
      continue;  // One answer more is needed.
    }
    if (stage != Stage::keys) co_await wait_for_answers();
    if (parts_.control.is_stopping()) co_return Outcome::stopped;
    if (stage == Stage::consents || stage == Stage::reveals) {
      if (attempt_->stage() != stage) announce();
      if (attempt_->stage() == stage) co_return give_up();
      continue;
    }
    auto decision = attempt_->decide(parts_.tasks.quorum(), members_here());
    if (!decision && decision.error().code() != Errc::unavailable) co_return decision.error();
    if (!decision) co_return co_await fail(decision.error().message());
    if (stage == Stage::words) {
      survivors_.hold(
          attempt_->names_of(secure::read_indices(decision->secure_survivors().survivors())));
    }
    FL_CO_CHECK(co_await log("", std::move(*decision)));
    if (stage == Stage::keys) {
      FL_CO_CHECK(set_layout());
      log_info("round {}: {} members mask their updates", parts_.tasks.round().record.round,
               attempt_->size());
    }
    announce();
  }
}

/// A list of survivors may be signed, and the sum can't be opened any more.
MaskedRound::Outcome MaskedRound::give_up() {
  parts_.control.report(
      EventLevel::error,
      fmt::format("round {}: the sum of the masked updates can't be opened without {}",
                  parts_.tasks.round().record.round, names_missing()));
  survivors_.release();
  return Outcome::given_up;
}

std::string MaskedRound::names_missing() const {
  return first_names(attempt_->missing(), Tasks::names_shown_max);
}

/// Whether words are being checked, or, as long as there is time for it, somebody whose words are
/// missing sends them at this moment.
bool MaskedRound::is_last_answer_coming(bool has_time) const {
  if (attempt_->stage() != Stage::words) return false;
  const auto& tasks = parts_.tasks.round().tasks;
  return std::ranges::any_of(tasks, [this, has_time](const auto& entry) {
    return entry.second.is_deciding ||
           (has_time && attempt_->wants_words_of(entry.first) &&
            parts_.transfers.find(entry.first, TransferWay::up) != nullptr);
  });
}

/// Returns when the stage is over, or when those that have yet to answer are given up. Once a list
/// of survivors may be signed nobody is given up, unless it says itself that it will not answer: a
/// sum over others would show who is missing.
Awaitable<void> MaskedRound::wait_for_answers() {
  const Stage stage = attempt_->stage();
  const bool has_survivors = stage == Stage::consents || stage == Stage::reveals;
  const Duration step = duration_of(parts_.control.plan.masked->step_seconds);
  const TimePoint late_at = Clock::now() + step;
  const TimePoint last_at = Clock::now() + limits::masked_words_steps_max * step;
  TimePoint until = late_at;
  while (!parts_.control.is_stopping() && attempt_->stage() == stage) {
    const auto here = members_here();
    const auto missing = attempt_->missing();
    const bool is_awaited =
        std::ranges::any_of(missing, [&](const std::string& name) { return here.contains(name); });
    const TimePoint now = Clock::now();
    const bool is_late = now >= late_at;
    // Once the run is to end, survivors have a step's time.
    const bool is_over = is_late && parts_.evaluations.has_end();
    if (has_survivors && (is_over || !survivors_.can_open(*attempt_))) co_return;
    if (!has_survivors && (!is_awaited || is_late) && !is_last_answer_coming(now < last_at))
      co_return;
    if (now >= until) {
      until = now + step;
      parts_.control.report(EventLevel::warning,
                            fmt::format("round {}: the masked sum waits for {} of {}",
                                        parts_.tasks.round().record.round,
                                        Attempt::answers_at(stage), names_missing()));
    }
    co_await parts_.control.changed.wait(until);
  }
}

/// Ends the attempt, durably, and begins the next one.
Awaitable<Result<MaskedRound::Outcome>> MaskedRound::fail(std::string why) {
  const std::uint32_t failed = number_;
  OpenRound& round = parts_.tasks.round();
  const auto unread = attempt_->stage() == Stage::words
                          ? attempt_->unread()
                          : std::map<std::string, std::vector<std::string>>();
  const std::string missing = attempt_->stage() == Stage::keys ? "" : names_missing();
  parts_.control.report(
      EventLevel::warning,
      fmt::format("round {}: attempt {} to add up masked updates has failed: {}{}",
                  round.record.round, failed, why, missing.empty() ? "" : "; missing: " + missing));
  wire::Header message;
  message.mutable_failed()->set_reason(std::move(why));
  FL_CO_CHECK(co_await log("", std::move(message)));
  // A task's next words have another digest, and the spool takes one upload of each task.
  for (const auto& [client, task] : round.tasks) {
    const wire::UploadBegin* const begin = attempt_->words_of(client);
    if (begin == nullptr) continue;
    FL_CO_TRY(const std::string name, spool_name_of(*begin));
    FL_CO_CHECK(parts_.files.spool.forget(name));
  }
  begin_attempt(make_attempt(failed + 1));
  round.is_frozen = false;
  for (const auto& [client, readers] : unread) {
    parts_.control.report_of(
        client, EventLevel::warning,
        fmt::format("{} has sealed what others can't open: {}", client, fmt::join(readers, ", ")));
    co_await parts_.decisions.lose_task(client, TaskDecisions::any_task,
                                        "others can't open what it has sealed");
  }
  // Those that were here must not miss the deadline now because they mask anew.
  if (Clock::now() >= round.deadline)
    round.deadline = parts_.control.plan.deadline_after(Clock::now());
  co_return failed < parts_.control.plan.masked->attempts ? Outcome::failed : Outcome::given_up;
}

// Opening ---------------------------------------------------------------------------------------

/// Returns nothing if one answer more is needed.
Awaitable<Result<std::optional<MaskedRound::Outcome>>> MaskedRound::open() {
  Unlocking unlocking = attempt_->unlocking();
  auto work = [this, &unlocking]() -> Result<std::unique_ptr<const LaneSums>> {
    const auto removals = unlocking.removals();
    if (removals)
      return add_up(*attempt_, *layout_, *removals, parts_.files.spool, parts_.control.plan,
                    round_from(parts_.tasks.round().record.base_version));
    if (removals.error().code() != Errc::corrupt) return removals.error();
    log_warn("{}", removals.error().message());
    return std::unique_ptr<const LaneSums>();
  };
  auto sums = co_await parts_.control.store.with_room(parts_.compute, std::move(work));
  if (will_pass(sums)) co_return Outcome::stopped;
  FL_CO_CHECK(sums);
  survivors_.note_liars(attempt_->names_of(unlocking.liars()));
  const OpenRound& round = parts_.tasks.round();
  if (*sums == nullptr && attempt_->want_more()) co_return std::nullopt;
  if (*sums == nullptr) {
    parts_.control.report(EventLevel::error,
                          fmt::format("round {}: the sum of the masked updates can't be opened: "
                                      "too many shares are wrong or missing",
                                      round.record.round));
    survivors_.release();
    co_return Outcome::given_up;
  }
  sums_ = std::move(*sums);
  FL_CO_CHECK(co_await accept());
  survivors_.release();
  log_info("round {}: opened the sum of {} masked updates, loss {:.4f}", round.record.round,
           attempt_->survivors().size(), sums_->mean_loss());
  for (const std::string& client : attempt_->survivors()) {
    wire::Header answer;
    *answer.mutable_verdict() =
        verdict_on(parts_.tasks.task_of(client)->record.id, wire::Verdict::ACCEPTED, "");
    post(client, std::move(answer));
  }
  co_return Outcome::opened;
}

/// Accepts the survivors' tasks, all or none, unless a server before this one has done it. Each
/// gets the members' mean loss, as nobody's own is known.
Awaitable<Result<void>> MaskedRound::accept() {
  std::vector<std::pair<Task*, TaskRecord>> updates;
  for (const std::string& client : attempt_->survivors()) {
    Task* const task = parts_.tasks.task_of(client);
    FL_ASSERT(task != nullptr);
    if (task->record.state == TaskState::accepted) continue;
    const wire::UploadBegin& begin = *attempt_->words_of(client);
    TaskRecord record = task->record;
    record.state = TaskState::accepted;
    FL_CO_TRY(record.update_digest, Digest::from_bytes(begin.digest()));
    FL_CO_TRY(record.spool_file, spool_name_of(begin));
    record.update_bytes = begin.bytes();
    record.raw_bytes = parts_.control.plan.layout_of(task->part).bytes();
    record.loss = sums_->mean_loss();
    updates.emplace_back(task, std::move(record));
  }
  if (updates.empty()) co_return success();
  failpoint("masked.before_accepted");
  co_return co_await parts_.decisions.accept_all(std::move(updates));
}

void MaskedRound::end() {
  for (const auto& [client, task] : parts_.tasks.round().tasks) {
    if (task.record.state != TaskState::offered) continue;
    wire::Header answer;
    *answer.mutable_verdict() =
        verdict_on(task.record.id, wire::Verdict::STALE, "the round went on without it");
    post(client, std::move(answer));
  }
  attempt_.reset();
  layout_.reset();
  sums_.reset();
  number_ = 1;
}

}  // namespace fl::server
