// SPDX-License-Identifier: Apache-2.0
// The functions of the engine that sessions, admission and the status line call.
#include "server/round/engine.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

Result<wire::Welcome> RoundEngine::welcome(const std::string& name,
                                           const wire::Hello& hello) const {
  control_.expect_strand();
  if (control_.has_ended() && control_.phase == Phase::finished)
    return Error(Errc::cancelled, "the run is over, and no other has begun");
  if (control_.is_going_down()) return Error(Errc::unavailable, "the server is shutting down");
  if (!hello.model().empty() && hello.model() != plan_.run.model) {
    return Error(Errc::invalid_input, fmt::format("the client trains '{}', this run trains '{}'",
                                                  hello.model().substr(0, 64), plan_.run.model));
  }
  if (hello.evaluator() && plan_.strategy->has_personal()) {
    return Error(Errc::invalid_input,
                 "parts of this run's model are personal, and an evaluator has none: the model is "
                 "measured on the clients' held-out data instead");
  }
  FL_TRY(const Features features, Features::read(hello));
  if (hello.evaluator())
    FL_CHECK(demand(features, End::client, Feature::evaluation, "an evaluator"));
  const bool must_summarize = versions_.empty() && plan_.summaries() > 0 && !hello.evaluator();
  if (must_summarize) FL_CHECK(demand(features, End::client, Feature::summaries, "this run"));
  for (const std::string& spec : plan_.ladder) {
    for (const std::string& wanted : parse_codec(spec).value()->names()) {
      const auto& known = hello.codecs();
      if (hello.evaluator() || std::ranges::find(known, wanted) != known.end()) continue;
      return Error(Errc::invalid_input,
                   fmt::format("the client does not know the run's codec '{}': use a newer "
                               "fl-client, or --codec none, which all clients know",
                               wanted));
    }
  }
  wire::Welcome welcome;
  welcome.set_protocol(protocol_version);
  welcome.set_run_key(plan_.run.key);
  welcome.set_model(plan_.run.model);
  welcome.set_strategy(plan_.settings.strategy);
  welcome.set_seed(plan_.run.seed);
  welcome.set_layout_digest(plan_.layout.digest().raw());
  welcome.set_name(name);
  if (!versions_.empty()) {
    const auto& newest = versions_.newest()->record;
    welcome.set_version(newest.version);
    welcome.set_version_digest(newest.digest.raw());
  }
  return welcome;
}

Error RoundEngine::other_tensors(const wire::Bye& bye) const {
  control_.expect_strand();
  std::vector<TensorSpec> told;
  for (const auto& tensor : bye.tensors())
    told.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}});
  return {
      Errc::invalid_input,
      fmt::format("the run's model '{}' has other tensors than the client's: {}", plan_.run.model,
                  describe_differences(plan_.layout, told, !bye.has_more_tensors()))};
}

void RoundEngine::note_refusal(const std::string& name, const std::string& remote,
                               const Error& error) {
  control_.expect_strand();
  const std::string text =
      fmt::format("{} ({}) was turned away: {}", name, remote, error.message());
  control_.note_trouble(name, text);
  if (std::exchange(refused_[name], error.message()) == error.message()) {
    log_warn("{}", text);
  } else {
    report(EventLevel::warning, text);
  }
}

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

Awaitable<Result<void>> RoundEngine::join(std::shared_ptr<Peer> peer) {
  control_.expect_strand();
  const auto& facts = peer->facts();
  // An upload that ended while the sums are being rebuilt would be counted twice.
  while (!control_.is_restored() && !control_.is_going_down())
    co_await control_.changed.wait(never);
  if (control_.is_going_down()) co_return Error(Errc::unavailable, "the server is shutting down");
  if (!facts.evaluator && facts.train_examples == 0)
    co_return Error(Errc::invalid_input, "the client has no training examples");
  const std::uint64_t examples_max = update_weight_max / plan_.mode.unit();
  if (facts.train_examples > examples_max) {
    co_return Error(Errc::invalid_input,
                    fmt::format("the client has {} training examples; the limit is {}",
                                facts.train_examples, examples_max));
  }
  FL_CO_CHECK(evaluations_.check_metrics_of(facts));
  if (!facts.summaries.empty() || (versions_.empty() && !facts.evaluator))
    FL_CO_CHECK(check_summaries(facts.summaries, plan_.summaries(), facts.train_examples));
  // The client may have been revoked since it was admitted, or its name was enrolled with another
  // key.
  auto touch = [facts](Store& store) -> Result<void> {
    if (!facts.serial.empty()) {
      FL_CHECK(store.members().admit(facts.name, facts.serial));
      FL_TRY(const auto member, store.members().find(facts.name));
      FL_CHECK(check_claims(facts, *member));
    }
    return store.members().touch(facts.name, facts.evaluator);
  };
  FL_CO_CHECK(co_await store_.with_store(std::move(touch)));
  if (control_.has_ended()) co_return Error(Errc::unavailable, "the run is over");
  if (const auto old = roster_.find(facts.name)) {
    leave(old);
    old->dismiss(wire::Bye::BROKEN, "the same client has connected again");
    store_.record_audit(AuditKind::displacement, facts.name, "its other session has ended");
    if (roster_.count_displacement(facts.name)) {
      report(EventLevel::warning,
             fmt::format("{} has displaced its own session {} times within {} s: do two programs "
                         "use one identity, from a state that was copied?",
                         facts.name, limits::displaced_max,
                         std::chrono::seconds(limits::displaced_window).count()));
    }
  }
  roster_.enter(peer);
  refused_.erase(facts.name);
  evaluations_.welcome(*peer, end_.is_over());
  Task* const task = tasks_.task_of(facts.name);
  if (task != nullptr && task->record.state == TaskState::offered && !end_.is_over())
    offers_.send(*task);
  report_unless_over(facts.name,
                     fmt::format("{} {}{} examples", facts.name,
                                 facts.evaluator ? "is here: evaluator, " : "is here: trainer, ",
                                 facts.evaluator ? facts.holdout_examples : facts.train_examples));
  control_.changed.notify();
  co_return success();
}

void RoundEngine::leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason) {
  control_.expect_strand();
  if (!roster_.leave(peer, for_good)) return;
  // Another client is asked in its place at once.
  const Task* const task = tasks_.task_of(peer->facts().name);
  if (for_good && task != nullptr && task->is_open() && !control_.has_ended())
    group_.spawn(decisions_.lose_task(peer->facts().name, task->record.id, std::move(reason)));
  report_unless_over(peer->facts().name, peer->facts().name + " left");
  control_.changed.notify();
}

void RoundEngine::revoke(const std::string& name) {
  expel(name, "it was revoked");
  evaluations_.forget(name);
}

void RoundEngine::expel(const std::string& name, const std::string& reason) {
  control_.expect_strand();
  const Task* const task = tasks_.task_of(name);
  roster_.expel(name, reason);
  // A client that is not here would keep its task until the deadline.
  const bool has_task = task != nullptr && task->is_open();
  if (!control_.has_ended() && (!control_.is_restored() || has_task)) {
    const TaskId id = task != nullptr ? task->record.id : TaskDecisions::any_task;
    group_.spawn(decisions_.lose_task(name, id, reason));
  }
  const auto peer = roster_.find(name);
  if (!peer) return;
  report(EventLevel::warning, fmt::format("{}: {}", name, reason));
  leave(peer, true);
  peer->dismiss(wire::Bye::REFUSED, reason);
}

Awaitable<Result<Download>> RoundEngine::download(std::shared_ptr<Peer> peer, wire::Fetch fetch) {
  control_.expect_strand();
  auto found = versions_.download(fetch);
  while (will_pass(found) && !control_.is_going_down()) {
    co_await sleep_for(limits::full_disk_pause);
    found = versions_.download(fetch);
  }
  if (!found) {
    // The client would wait for a version that never comes; the next start looks at all of them.
    if (!will_pass(found.error()) && found.error().code() != Errc::not_found)
      control_.fail(found.error());
    co_return found;
  }
  found->chunk_bytes_max = bulk_.chunk_bytes_max(found->model.bytes());
  bulk_.begin(found->chunk_bytes_max);
  transfers_.begin(peer, Transfers::Way::down, fetch.version(),
                   {found->model.bytes(), found->model.offset()});
  co_return found;
}

Awaitable<UploadGrant> RoundEngine::begin_upload(std::shared_ptr<Peer> peer,
                                                 wire::UploadBegin begin) {
  control_.expect_strand();
  UploadGrant grant = co_await uploads_.begin(peer, std::move(begin));
  if (!grant.upload) co_return grant;
  bulk_.begin(grant.chunk_bytes_max);
  transfers_.begin(peer, Transfers::Way::up, grant.begin.round(),
                   {grant.upload->bytes(), grant.offset});
  co_return grant;
}

Awaitable<wire::Verdict> RoundEngine::finish_upload(std::shared_ptr<Peer> peer, UploadGrant grant) {
  control_.expect_strand();
  transfers_.end(*peer, Transfers::Way::up);
  co_return co_await uploads_.finish(std::move(peer), std::move(grant));
}

Awaitable<void> RoundEngine::record_evaluation(std::shared_ptr<Peer> peer,
                                               wire::Evaluation evaluation) {
  co_await evaluations_.record(std::move(peer), std::move(evaluation));
}

Awaitable<void> RoundEngine::record_failure(std::shared_ptr<Peer> peer, wire::Failed failed) {
  control_.expect_strand();
  const std::string name = peer->facts().name;
  const std::string reason = printable(failed.reason(), limits::reason_bytes_max);
  report_of(name, EventLevel::warning, fmt::format("{} says: {}", name, reason));
  if (failed.task() == 0) {
    evaluations_.note_answered(*peer, failed.version());
    co_return;
  }
  const TaskId task{failed.task()};
  co_await decisions_.lose_task(name, task, reason);
}

Awaitable<void> RoundEngine::end_slow_upload(std::shared_ptr<Peer> peer, TaskId id, bool trickles,
                                             std::string text) {
  control_.expect_strand();
  const std::string name = peer->facts().name;
  report_of(name, EventLevel::warning, fmt::format("{}: {}", name, text));
  Task* const task = tasks_.find(name, id);
  if (task == nullptr) co_return;
  if (++task->slow_uploads < limits::slow_uploads_max && !trickles) co_return;
  co_await decisions_.lose_task(name, id, std::move(text));
}

/// When a run is over all clients leave: the history need not say so.
void RoundEngine::report_unless_over(const std::string& client, std::string text) {
  if (end_.is_over()) {
    log_info("{}", text);
  } else {
    report_of(client, EventLevel::info, std::move(text));
  }
}

std::string RoundEngine::phase_text() const {
  const std::size_t here = roster_.trainer_count();
  switch (control_.phase) {
    case Phase::starting: return "starting";
    case Phase::restoring: return "restoring";
    case Phase::waiting_for_clients:
      return fmt::format("waiting for {} clients ({} {} here)", plan_.settings.min_clients, here,
                         here == 1 ? "is" : "are");
    case Phase::collecting: return "collecting";
    case Phase::making_model: return "making the new model";
    case Phase::waiting_for_absent: return "the run is over: waiting for its clients";
    case Phase::waiting_for_evaluations: return "waiting for the last evaluations";
    case Phase::dismissing: return "the run is over";
    case Phase::finished: return "finished";
    case Phase::stopping: return "stopping";
  }
  return "";
}

EngineStatus RoundEngine::status() const {
  EngineStatus status;
  status.run = plan_.run.id;
  status.run_key = plan_.run.key;
  status.model = plan_.run.model;
  status.phase = store_.why_paused().empty() ? phase_text() : store_.why_paused();
  status.rounds_total = plan_.settings.rounds;
  if (!versions_.empty()) status.round = round_of(versions_.newest_number());
  status.clients = static_cast<std::uint32_t>(roster_.trainer_count());
  status.evaluators = static_cast<std::uint32_t>(roster_.evaluator_count());
  if (tasks_.has_round()) {
    const OpenRound& round = tasks_.round();
    status.round = round.record.round;
    status.asked = static_cast<std::uint32_t>(round.tasks.size());
    status.accepted = round.count(TaskState::accepted);
  }
  const Traffic total = roster_.traffic();
  status.bytes_up = total.up;
  status.bytes_down = total.down;
  status.metric = evaluations_.main_metric();
  status.metrics = evaluations_.newest_figures();
  status.round_seconds = past_.recorded_here > 0 ? past_.seconds_here / past_.recorded_here : 0;
  status.started_at = started_at_;
  status.queues = queues();
  return status;
}

QueueLengths RoundEngine::queues() const {
  QueueLengths queues;
  queues.store = store_.calls_under_way();
  queues.events = store_.events_under_way();
  queues.verdicts = verdicts_.waiting();
  if (tasks_.has_round()) {
    for (const auto& [client, task] : tasks_.round().tasks)
      queues.checks += task.is_verifying ? 1 : 0;
  }
  for (const auto& [key, transfer] : transfers_.all())
    ++(key.second == Transfers::Way::up ? queues.uploads : queues.downloads);
  queues.buffer_bytes = bulk_.bytes();
  return queues;
}

}  // namespace fl
