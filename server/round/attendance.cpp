// SPDX-License-Identifier: Apache-2.0
#include "server/round/attendance.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/wire/features.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::server {

namespace {

/// Whether the client is what it was enrolled as. The Error's text goes to the client.
Result<void> check_claims(const Peer::Facts& facts, const ClientRecord& member) {
  if (facts.evaluator && !member.evaluator) {
    return Error(Errc::invalid_input,
                 fmt::format("{0} was enrolled as a trainer: start it without --evaluate-only, or "
                             "let it join again with a token from 'fl-server enroll --name {0} "
                             "--role evaluator'",
                             facts.name));
  }
  if (!facts.evaluator && member.evaluator) {
    return Error(Errc::invalid_input,
                 fmt::format("{0} was enrolled as an evaluator: start it with --evaluate-only, or "
                             "let it join again with a token from 'fl-server enroll --name {0} "
                             "--role trainer'",
                             facts.name));
  }
  const std::uint64_t claimed = std::max(facts.train_examples, facts.holdout_examples);
  if (member.examples_max != 0 && claimed > member.examples_max) {
    return Error(Errc::invalid_input,
                 fmt::format("the client has {1} examples, and {0} was enrolled with at most {2}: "
                             "give it fewer, or let it join again with a token from 'fl-server "
                             "enroll --name {0} --max-examples {1}'",
                             facts.name, claimed, member.examples_max));
  }
  return {};
}

}  // namespace

Result<wire::Welcome> Attendance::welcome(const std::string& name, const wire::Hello& hello) {
  parts_.control.expect_strand();
  auto welcome = welcome_of(name, hello);
  const bool is_newcomer = welcome || welcome.error().code() == Errc::cancelled;
  if (!is_newcomer || parts_.roster.find(name) != nullptr) return welcome;
  newcomers_.hear(name, {welcome ? WaitsFor::its_data : WaitsFor::a_run, read_facts(hello)});
  return welcome;
}

void Attendance::note_decline(const std::string& name, const std::string& reason) {
  parts_.control.expect_strand();
  newcomers_.decline(name);
  parts_.roster.turn_away(name, reason);
  parts_.control.report_of(name, EventLevel::warning,
                           fmt::format("{} can't take part: {}", name, reason));
}

Result<wire::Welcome> Attendance::welcome_of(const std::string& name,
                                             const wire::Hello& hello) const {
  const RunPlan& plan = parts_.control.plan;
  if (parts_.control.has_ended() && parts_.control.phase == Phase::finished)
    return Error(Errc::cancelled, "the run is over, and no other has begun");
  if (parts_.control.is_going_down())
    return Error(Errc::unavailable, "the server is shutting down");
  if (!hello.model().empty() && hello.model() != plan.run.model) {
    return Error(Errc::invalid_input, fmt::format("the client trains '{}', this run trains '{}'",
                                                  hello.model().substr(0, 64), plan.run.model));
  }
  if (hello.evaluator() && plan.strategy->has_personal()) {
    return Error(Errc::invalid_input,
                 "parts of this run's model are personal, and an evaluator has none: the model is "
                 "measured on the clients' held-out data instead");
  }
  FL_TRY(const Features features, Features::read(hello));
  if (hello.evaluator())
    FL_CHECK(demand(features, End::client, Feature::evaluation, "an evaluator"));
  const bool must_summarize = parts_.versions.empty() && plan.summaries() > 0 && !hello.evaluator();
  if (must_summarize) FL_CHECK(demand(features, End::client, Feature::summaries, "this run"));
  if (plan.settings.clip_norm > 0 && !hello.evaluator())
    FL_CHECK(demand(features, End::client, Feature::clip_norm, "this run"));
  for (const std::string& spec : plan.ladder) {
    for (const std::string& wanted : codec::parse_codec(spec).value()->names()) {
      const auto& known = hello.codecs();
      if (hello.evaluator() || std::ranges::find(known, wanted) != known.end()) continue;
      return Error(Errc::invalid_input,
                   fmt::format("the client does not know the run's codec '{}': use a newer "
                               "fl-client, or --codec none, which all clients know",
                               wanted));
    }
  }
  if (parts_.masked != nullptr && !hello.evaluator()) {
    if (!features.has(Feature::secure_aggregation)) {
      return Error(Errc::invalid_input,
                   "this run adds up masked updates: start fl-client with --members FILE and a "
                   "site key ('fl-client site-key')");
    }
    FL_CHECK(parts_.masked->check_member(name));
  }
  wire::Welcome welcome;
  if (parts_.masked != nullptr) welcome.set_members(parts_.masked->members());
  welcome.set_protocol(protocol_version);
  welcome.set_run_key(plan.run.key);
  welcome.set_model(plan.run.model);
  welcome.set_strategy(plan.settings.strategy);
  welcome.set_seed(plan.run.seed);
  welcome.set_layout_digest(plan.layout.digest().raw());
  welcome.set_name(name);
  if (!parts_.versions.empty()) {
    const auto& newest = parts_.versions.newest()->record;
    welcome.set_version(newest.version);
    welcome.set_version_digest(newest.digest.raw());
  }
  return welcome;
}

void Attendance::note_refusal(const std::string& name, const std::string& remote,
                              const Error& error) {
  parts_.control.expect_strand();
  const std::string text =
      fmt::format("{} ({}) was turned away: {}", name, remote, error.message());
  newcomers_.forget(name);
  parts_.control.note_trouble(name, text);
  if (!parts_.roster.turn_away(name, error.message())) {
    log_warn("{}", text);
  } else {
    parts_.control.report(EventLevel::warning, text);
  }
}

/// Checks what the client says of its data and its metrics. The Error's text goes to the client.
Result<void> Attendance::check_figures_of(const Peer::Facts& facts) const {
  const RunPlan& plan = parts_.control.plan;
  if (!facts.evaluator && facts.train_examples == 0)
    return Error(Errc::invalid_input, "the client has no training examples");
  const std::uint64_t examples_max = update_weight_max / plan.mode.unit();
  if (facts.train_examples > examples_max) {
    return Error(Errc::invalid_input,
                 fmt::format("the client has {} training examples; the limit is {}",
                             facts.train_examples, examples_max));
  }
  FL_CHECK(parts_.evaluations.check_metrics_of(facts));
  if (facts.summaries.empty() && (!parts_.versions.empty() || facts.evaluator)) return {};
  return check_summaries(facts.summaries, plan.summaries(), facts.train_examples);
}

Awaitable<Result<void>> Attendance::join(std::shared_ptr<Peer> peer) {
  parts_.control.expect_strand();
  const auto& facts = peer->facts();
  // An upload that ended while the sums are being rebuilt would be counted twice.
  while (!parts_.control.is_restored() && !parts_.control.is_going_down())
    co_await parts_.control.changed.wait(never);
  if (parts_.control.is_going_down())
    co_return Error(Errc::unavailable, "the server is shutting down");
  FL_CO_CHECK(check_figures_of(facts));
  // The client may have been revoked since it was admitted, or its name was enrolled with another
  // key.
  auto touch = [facts](Store& store) -> Result<void> {
    if (!facts.serial.empty()) {
      FL_CHECK(store.members().admit(facts.name, facts.serial));
      FL_TRY(const auto member, store.members().find(facts.name));
      FL_CHECK(check_claims(facts, *member));
    }
    return store.members().touch(facts.name, facts.evaluator, facts.model, facts.tensors);
  };
  FL_CO_CHECK(co_await parts_.control.store.with_store(std::move(touch)));
  if (parts_.control.has_ended()) co_return Error(Errc::unavailable, "the run is over");
  replace_session_of(facts.name);
  parts_.roster.enter(peer);
  newcomers_.forget(facts.name);
  if (parts_.roster.bench().forgive_fresh_start(facts.name, facts.uptime)) {
    report_unless_over(facts.name,
                       facts.name + " was started anew: its misses don't count any more");
  } else {
    parts_.roster.bench().tell(*peer);
  }
  parts_.evaluations.welcome(*peer, parts_.end.is_over());
  Task* const task = parts_.tasks.task_of(facts.name);
  if (task != nullptr && task->record.state == TaskState::offered && !parts_.end.is_over())
    parts_.offers.send(*task);
  report_unless_over(facts.name,
                     fmt::format("{} {}{} examples", facts.name,
                                 facts.evaluator ? "is here: evaluator, " : "is here: trainer, ",
                                 facts.evaluator ? facts.holdout_examples : facts.train_examples));
  parts_.control.changed.notify();
  co_return success();
}

/// Ends the client's session that was here before, if there is one.
void Attendance::replace_session_of(const std::string& name) {
  const auto old = parts_.roster.find(name);
  if (!old) return;
  leave(old, false, "");
  old->dismiss(wire::Bye::BROKEN, "the same client has connected again");
  parts_.control.store.record_audit(AuditKind::displacement, name, "its other session has ended");
  if (!parts_.roster.count_displacement(name)) return;
  parts_.control.report(
      EventLevel::warning,
      fmt::format("{} has displaced its own session {} times within {} s: do two programs use one "
                  "identity, from a state that was copied?",
                  name, limits::displaced_max,
                  std::chrono::seconds(limits::displaced_window).count()));
}

void Attendance::leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason) {
  parts_.control.expect_strand();
  if (!parts_.roster.leave(peer, for_good)) return;
  // Another client is asked in its place at once.
  const Task* const task = parts_.tasks.task_of(peer->facts().name);
  if (for_good && task != nullptr && task->is_open() && !parts_.control.has_ended())
    parts_.control.group.spawn(
        parts_.decisions.lose_task(peer->facts().name, task->record.id, std::move(reason)));
  report_unless_over(peer->facts().name, peer->facts().name + " left");
  parts_.control.changed.notify();
}

void Attendance::pardon(const std::string& name, double at) {
  parts_.control.expect_strand();
  // A clock that was set back makes the time since then negative: then it counts as zero.
  const Duration ago = duration_of(Clock::unix_seconds() - at);
  if (!parts_.roster.bench().pardon(name, Clock::now() - ago)) return;
  parts_.control.report(EventLevel::info, name + " was pardoned: it may be asked again");
  parts_.control.changed.notify();
}

void Attendance::expel(const std::string& name, const std::string& reason) {
  parts_.control.expect_strand();
  const Task* const task = parts_.tasks.task_of(name);
  parts_.roster.expel(name, reason);
  newcomers_.forget(name);
  // A client that is not here would keep its task until the deadline.
  const bool has_task = task != nullptr && task->is_open();
  if (!parts_.control.has_ended() && (!parts_.control.is_restored() || has_task)) {
    const TaskId id = task != nullptr ? task->record.id : TaskDecisions::any_task;
    parts_.control.group.spawn(parts_.decisions.lose_task(name, id, reason));
  }
  const auto peer = parts_.roster.find(name);
  if (!peer) {
    parts_.control.changed.notify();
    return;
  }
  parts_.control.report(EventLevel::warning, fmt::format("{}: {}", name, reason));
  leave(peer, true, reason);
  peer->dismiss(wire::Bye::REFUSED, reason);
}

/// When a run is over all clients leave: the history need not say so.
void Attendance::report_unless_over(const std::string& client, std::string text) {
  if (parts_.end.is_over()) {
    log_info("{}", text);
  } else {
    parts_.control.report_of(client, EventLevel::info, std::move(text));
  }
}

}  // namespace fl::server
