// SPDX-License-Identifier: Apache-2.0
#include "server/round/engine.hpp"

#include "server/round/masked_intake.hpp"
#include "server/round/retention.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fl::server {

RoundEngine::RoundEngine(net::any_io_executor strand, RunSettings settings, RunRecord run,
                         const Layout& model, Files& files, Store& store, Shared shared,
                         RunFiles::Paths paths, WeightsFromSeed make_weights)
    : plan_(std::move(settings), std::move(run), model),
      compute_(*shared.compute),
      recorded_(std::move(shared.recorded)),
      store_(strand, store, *shared.store, plan_.run.id,
             {[this](const Error& error) { control_.fail(error); },
              [this] { return files_.spool.drop_spares(); }},
             std::move(shared.pause)),
      control_(strand, plan_, store_),
      files_(plan_, files, std::move(paths)),
      roster_(plan_.mode.ahead),
      tasks_(plan_, roster_),
      evaluations_({control_, roster_, files_.versions}),
      end_(plan_, tasks_, files_.versions, evaluations_),
      sums_({store_, compute_, plan_, files_.spool, files_.references, files_.versions, tasks_,
             past_}),
      verdicts_(control_, files_.spool),
      decisions_({control_, roster_, tasks_, verdicts_, evaluations_, end_}),
      upload_files_(control_, compute_, files_.spool),
      transfers_(std::move(shared.bulk)),
      masked_(make_masked(std::move(shared.members))),
      intake_(make_intake()),
      uploads_({control_, tasks_, decisions_, upload_files_, *intake_, evaluations_, past_,
                transfers_.budget()}),
      initial_({control_, compute_, files, roster_, files_.versions, evaluations_},
               std::move(make_weights)),
      offers_({control_, files_, roster_, tasks_, *intake_, decisions_, past_, masked_.get()}),
      collector_({control_, tasks_, evaluations_, end_, offers_, decisions_, masked_.get()}),
      next_({store_, compute_, plan_, files_.references, files_.versions, tasks_, past_}),
      attendance_({control_, files_.versions, roster_, tasks_, evaluations_, end_, offers_,
                   decisions_, masked_.get()}),
      host_({control_, attendance_, files_.versions, transfers_, tasks_, uploads_, decisions_,
             evaluations_, masked_.get()}),
      view_({control_, files_.versions, roster_, attendance_.newcomers(), tasks_, past_,
             evaluations_, verdicts_, transfers_}) {}

std::unique_ptr<MaskedRound> RoundEngine::make_masked(std::string members) {
  if (!plan_.masked) return nullptr;
  return std::make_unique<MaskedRound>(
      MaskedRound::Parts{control_, compute_, files_, roster_, tasks_, decisions_, transfers_,
                         evaluations_, past_},
      std::move(members));
}

std::unique_ptr<UpdateIntake> RoundEngine::make_intake() {
  if (masked_)
    return std::make_unique<MaskedIntake>(
        MaskedIntake::Parts{control_, compute_, files_.spool, *masked_});
  return std::make_unique<DecodedIntake>(
      DecodedIntake::Parts{control_, compute_, files_.references, tasks_, sums_, past_});
}

Awaitable<Result<RoundEngine::Outcome>> RoundEngine::run() {
  control_.expect_strand();
  control_.started_at = Clock::unix_seconds();
  control_.group.spawn(verdicts_.commit_all());
  Result<void> going = co_await restore();
  while (going && is_going()) {  // One pass is one round.
    going = co_await gather();
    if (going && is_going() && !tasks_.has_round()) going = co_await offers_.open_round();
    if (going && is_going()) going = co_await collector_.collect();
    if (!going || !is_going()) continue;
    const TimePoint collected_at = Clock::now();
    const auto settled = co_await settle();
    if (!settled) going = settled.error();
    if (!settled || !*settled) continue;
    const auto made = co_await apply();
    if (made && *made) going = co_await record(**made, Clock::now() - collected_at);
    if (!made) going = made.error();
  }
  bool is_finished = false;
  if (going && !control_.failure() && end_.is_over()) {
    going = co_await finish();
    is_finished = going.has_value();
  }
  co_return co_await end(std::move(going), is_finished);
}

/// Ends the engine's work, whether the run is finished or not. Returns the result of run().
Awaitable<Result<RoundEngine::Outcome>> RoundEngine::end(Result<void> going, bool is_finished) {
  // A run that is stopped while the disk is full has nothing left to save.
  const bool is_pause = !going && control_.is_stopping() && will_pass(going.error());
  control_.phase = is_finished ? Phase::finished : Phase::stopping;
  control_.end();
  if (auto dropped = files_.spool.drop_spares(); !dropped) control_.fail(dropped.error());
  verdicts_.close();
  if (!going && !is_pause) control_.fail(going.error());
  const auto cause = is_finished ? wire::Bye::FINISHED : wire::Bye::RESTARTING;
  // Sessions hold this engine: one that is slow to go would keep it from being freed.
  for (const auto& peer : roster_.here()) {
    peer->dismiss(cause, is_finished ? "the run is over" : "the server stops its work on this run");
    attendance_.leave(peer, true, "the run has ended");
  }
  co_await control_.group.join();
  co_await store_.join();
  if (!tasks_.has_round()) intake_->release();  // The server may wait long for another run.
  if (control_.failure()) co_return *control_.failure();
  co_return is_finished ? Outcome::finished : Outcome::stopped;
}

void RoundEngine::stop() {
  control_.expect_strand();
  control_.stop();
}

// Restore --------------------------------------------------------------------------------------

Awaitable<Result<void>> RoundEngine::restore() {
  control_.phase = Phase::restoring;
  FL_CO_CHECK(files_.spool.prepare());
  FL_CO_CHECK(co_await restore_versions());
  FL_CO_CHECK(co_await restore_kept());
  FL_CO_CHECK(co_await restore_clients());
  FL_CO_CHECK(co_await restore_round());
  if (files_.versions.empty() && !plan_.settings.initial_weights.empty())
    FL_CO_CHECK(co_await initial_.make());
  control_.set_restored();
  co_return success();
}

Awaitable<Result<void>> RoundEngine::restore_versions() {
  auto read = [run = plan_.run.id](Store& store) { return store.rounds().checkpoints(run); };
  FL_CO_TRY(const auto records, co_await store_.with_store(std::move(read)));
  FL_CO_CHECK(files_.versions.open_all(records));
  auto list_dropped = [run = plan_.run.id](Store& store) {
    return store.rounds().last_dropped(run);
  };
  FL_CO_TRY(const auto dropped, co_await store_.with_store(std::move(list_dropped)));
  for (const auto& record : dropped) FL_CO_CHECK(files_.versions.remove_files(record));
  if (!files_.versions.empty()) {
    // All later versions are made from the newest one, so its values are checked too.
    auto check = [this] { return check_digest(*files_.versions.newest(), plan_.layout); };
    FL_CO_CHECK(co_await compute_.run(std::move(check)));
  }
  co_return success();
}

/// Reads what earlier rounds left: losses, weights, who took part and how often, misses, and which
/// clients to wait for. Removes references that no update needs.
Awaitable<Result<void>> RoundEngine::restore_clients() {
  const RunId run = plan_.run.id;
  auto summarise = [run](Store& store) { return store.summaries().rounds(run); };
  FL_CO_TRY(const auto rounds, co_await store_.with_store(std::move(summarise)));
  for (const auto& round : rounds) past_.losses.push_back(round.train_loss.value_or(std::nan("")));
  auto look_back = [run](Store& store) { return store.rounds().before(run); };
  FL_CO_TRY(past_.totals, co_await store_.with_store(std::move(look_back)));
  if (!rounds.empty()) {
    auto list = [run, round = rounds.back().round](Store& store) {
      return store.rounds().tasks(run, round);
    };
    FL_CO_TRY(const auto tasks, co_await store_.with_store(std::move(list)));
    for (const auto& task : tasks) roster_.expect_back(task.client);
  }
  FL_CO_TRY(const auto evaluators, co_await evaluations_.restore());
  for (const auto& name : evaluators) roster_.expect_back(name);
  if (plan_.mode.ahead > 0) {
    auto count = [run](Store& store) { return store.rounds().accepted_counts(run); };
    FL_CO_TRY(const auto counts, co_await store_.with_store(std::move(count)));
    roster_.set_update_counts(counts);
  }
  // Where late updates count, a late client does no harm.
  const double deadline = plan_.mode.carries() ? 0 : plan_.settings.deadline_s;
  auto list_misses = [run, deadline, now = Clock::unix_seconds()](Store& store) {
    return store.rounds().misses(run, deadline, now);
  };
  FL_CO_TRY(const auto misses, co_await store_.with_store(std::move(list_misses)));
  roster_.bench().restore(misses);
  auto refer = [run](Store& store) { return store.rounds().newest_deltas(run); };
  FL_CO_TRY(auto newest, co_await store_.with_store(std::move(refer)));
  co_return files_.references.prepare(std::move(newest));
}

/// Restores the updates of the last recorded round that a crash has left in the spool, and the
/// references they need.
Awaitable<Result<void>> RoundEngine::restore_kept() {
  const Round last = files_.versions.empty() ? 0 : round_of(files_.versions.newest_number());
  auto list = [run = plan_.run.id, last](Store& store) { return store.rounds().tasks(run, last); };
  FL_CO_TRY(const auto tasks, co_await store_.with_store(std::move(list)));
  co_return files_.kept.restore(last, tasks);
}

/// Restores the round that was open, with its sums, and the tasks that are under way.
Awaitable<Result<void>> RoundEngine::restore_round() {
  const RunId run = plan_.run.id;
  auto find_open = [run](Store& store) { return store.rounds().unfinished(run); };
  FL_CO_TRY(auto open, co_await store_.with_store(std::move(find_open)));
  auto list = [run](Store& store) { return store.rounds().offered_tasks(run); };
  FL_CO_TRY(const auto under_way, co_await store_.with_store(std::move(list)));
  std::set<TaskId> spooled;  // Tasks whose files the spool keeps.
  for (const auto& record : under_way) spooled.insert(record.id);
  if (!open) {
    for (const auto& record : under_way) tasks_.carry(record);
    co_return files_.spool.keep_only(spooled);
  }
  OpenRound round;
  round.record = open->round;
  round.opened_at = Clock::now();
  round.seconds_before = std::max(0.0, Clock::unix_seconds() - round.record.started_at);
  round.is_durable = true;
  for (auto& record : open->tasks) {
    if (record.state == TaskState::accepted) spooled.insert(record.id);
    Task task;
    task.offered_at = round.opened_at;
    task.record = std::move(record);
    round.put(std::move(task));
  }
  tasks_.open(std::move(round));
  FL_CO_CHECK(files_.spool.keep_only(spooled));
  FL_CO_CHECK(co_await intake_->rebuild());
  // Set the deadline only now: adding up again may take long, or wait for the disk.
  if (!plan_.mode.is_async) tasks_.round().deadline = plan_.deadline_after(Clock::now());
  if (const auto accepted = tasks_.round().count(TaskState::accepted); accepted > 0)
    log_info("round {} goes on with {} accepted updates", tasks_.round().record.round, accepted);
  co_return success();
}

// Gather ---------------------------------------------------------------------------------------

/// Waits for enough clients, and for the initial model.
Awaitable<Result<void>> RoundEngine::gather() {
  // Reads the histories before the wait: nobody can leave between the last look at the clients and
  // the sampling.
  FL_CO_CHECK(co_await offers_.read_histories());
  std::string said;
  while (is_going()) {
    if (tasks_.has_round())
      co_return success();  // The round was open before a restart, and goes on.
    const bool has_trainers = roster_.trainer_count() >= plan_.settings.min_clients;
    // Makes no model before a client is here: until there is a model, the run's method may be
    // changed (Changeable::before_first_model). A model that scales values is made of the summaries
    // of --min-clients trainers.
    const bool may_make = plan_.summaries() > 0 ? has_trainers : roster_.trainer_count() > 0;
    if (may_make && files_.versions.empty()) {
      FL_CO_CHECK(co_await initial_.make());
      continue;
    }
    if (has_trainers && roster_.sessions() >= expected_sessions_) co_return success();
    control_.phase = Phase::waiting_for_clients;
    if (std::string text = view_.phase_text(); text != said) {
      log_info("{}", text);
      said = std::move(text);
    }
    co_await control_.changed.wait(never);
  }
  if (end_.is_over()) evaluations_.ask_all(true);  // An evaluation has ended the run meanwhile.
  co_return success();
}

// Settle, apply and record ---------------------------------------------------------------------

/// Stands between the last update and the next version: makes the result of the accepted updates
/// final. Meanwhile the round is closing, so nothing else is taken in, and nobody is asked to
/// train. False: the run was stopped while it waited for room on the disk.
///
/// The history knows nothing of this step. After a kill, also one in apply(), the restart has the
/// round open with its accepted tasks; it takes them in again from the spool, collects, and settles
/// anew. So what is settled must follow from the accepted tasks and their spooled files alone. What
/// does not follow from them has to be durable before anybody is told of it.
Awaitable<Result<bool>> RoundEngine::settle() {
  FL_ASSERT(tasks_.round().is_closing && !tasks_.round().is_deciding());
  control_.phase = Phase::making_model;
  const auto settled = co_await intake_->settle();
  if (will_pass(settled)) co_return false;
  FL_CO_CHECK(settled);
  co_return true;
}

/// Makes the next version durable. None: the run was stopped while it waited for room on the disk;
/// the round stays open, and the next start closes it.
Awaitable<Result<std::optional<CheckpointRecord>>> RoundEngine::apply() {
  auto open_mean = [this] { return intake_->mean(); };
  const auto made = co_await next_.make(files_.versions.folder(), std::move(open_mean));
  if (will_pass(made)) co_return std::optional<CheckpointRecord>();
  FL_CO_CHECK(made);
  CheckpointRecord record = *made;
  FL_CO_TRY(record.lane_steps, co_await next_.lane_steps(*intake_));
  co_return std::optional<CheckpointRecord>(std::move(record));
}

/// Collects what the round's transaction writes. Decides which versions go (retention.hpp), and
/// which open tasks end.
RoundCommit RoundEngine::commit_of(const CheckpointRecord& made) const {
  const OpenRound& round = tasks_.round();
  RoundCommit commit;
  commit.run = plan_.run.id;
  commit.round = round.record.round;
  commit.ended_at = round.ends_at();
  commit.checkpoint = made;
  commit.train_loss = tasks_.training_loss();
  const Traffic now = roster_.traffic();
  commit.bytes_up = now.up - round.before.up;
  commit.bytes_down = now.down - round.before.down;
  commit.oldest_base = made.version > plan_.mode.late_max ? made.version - plan_.mode.late_max : 0;
  const Retention retention{plan_, tasks_, evaluations_, files_.versions};
  commit.dropped_versions = retention.outdated(made.version, commit.oldest_base);
  for (const auto& [client, task] : round.tasks) {
    const Traffic total = roster_.traffic_of(client);
    const bool is_decided = task.record.state != TaskState::offered;
    commit.traffic.push_back(
        {task.record.id, total.up - task.before.up, total.down - task.before.down,
         is_decided ? task.record.seconds : seconds(Clock::now() - task.offered_at)});
  }
  return commit;
}

/// Records the round in one transaction; the new version's file is durable already. Then removes
/// what is not needed any more, and publishes the version. `apply_time`: how long it took to make
/// that file.
Awaitable<Result<void>> RoundEngine::record(CheckpointRecord made, Duration apply_time) {
  const OpenRound& round = tasks_.round();
  FL_ASSERT(round.is_closing && made.version == made_by(round.record.round));
  const TimePoint applied_at = Clock::now();
  const auto deltas = tasks_.accepted_deltas();
  RoundCommit commit = commit_of(made);
  if (auto cosines = co_await intake_->cosines(next_.sample())) {
    commit.cosines = std::move(*cosines);
  } else {
    control_.report(EventLevel::warning,
                    "the updates' cosines are not known: " + cosines.error().message());
  }
  roster_.set_recorded_traffic(
      {round.before.up + commit.bytes_up, round.before.down + commit.bytes_down});
  const KeptRound described = files_.kept.description_of(round);
  auto describe = [this, &described] { return files_.kept.describe(described); };
  FL_CO_CHECK(co_await store_.with_room(compute_, std::move(describe)));
  auto write = [this, commit](Store& store) { return commit_round(store, plan_, commit); };
  failpoint("round.before_commit");
  FL_CO_TRY(const auto dropped, co_await store_.with_store(std::move(write)));
  failpoint("round.committed");
  if (recorded_) {
    recorded_->add(
        {commit.run, commit.round, seconds(apply_time), seconds(Clock::now() - applied_at)});
  }

  const double took = seconds(Clock::now() - round.opened_at);
  log_info("round {}/{}: {} updates, loss {:.4f}, {:.2f} s, up {:.2f} MB, down {:.2f} MB",
           commit.round, plan_.settings.rounds, round.count(TaskState::accepted), commit.train_loss,
           took, static_cast<double>(commit.bytes_up) / 1e6,
           static_cast<double>(commit.bytes_down) / 1e6);
  for (const auto& [client, text] : tasks_.wild_losses())
    control_.report_of(client, EventLevel::warning, text);
  past_.losses.push_back(commit.train_loss);
  past_.totals.population = round.record.population;
  for (const auto& [client, task] : round.tasks) {
    past_.totals.examples[client] = task.record.examples;
    if (task.record.state == TaskState::accepted) past_.totals.norms[client] = task.record.norm;
  }
  past_.seconds_here += took;
  ++past_.recorded_here;
  if (masked_) masked_->end();
  tasks_.close(commit.oldest_base);

  // A kill after this point leaves unused files, which the next start removes.
  auto take = [this, &described] { return files_.kept.take(described); };
  FL_CO_CHECK(co_await store_.with_room(compute_, std::move(take)));
  std::set<TaskId> under_way;
  for (const auto& [client, task] : tasks_.carried()) under_way.insert(task.record.id);
  const auto tidy_up = [&]() -> Result<void> {
    FL_CHECK(files_.spool.keep_only(under_way));
    FL_CHECK(files_.references.advance(deltas));
    return files_.versions.publish(made);
  };
  auto tidied = tidy_up();
  if (will_pass(tidied))
    control_.report(EventLevel::warning, "paused after a round: " + tidied.error().message());
  while (will_pass(tidied) && !control_.is_going_down()) {
    co_await sleep_for(limits::full_disk_pause);
    tidied = tidy_up();
  }
  FL_CO_CHECK(tidied);
  for (const Version version : dropped) FL_CO_CHECK(files_.versions.drop(version));
  evaluations_.ask_all(end_.is_over());
  control_.changed.notify();
  co_return success();
}

// Finish ---------------------------------------------------------------------------------------

/// Ends the run: tells its clients first, then records it as finished. After a kill in between, the
/// next start tells them again.
Awaitable<Result<void>> RoundEngine::finish() {
  control_.changed.notify();  // No update waits for a round any more.
  const bool has_model = !files_.versions.empty();
  if (const auto why = evaluations_.early_end(); !why.empty() && !end_.was_over()) {
    FL_CO_CHECK(co_await evaluations_.keep_end(why));
    const Round done = has_model ? round_of(files_.versions.newest_number()) : 0;
    control_.report(EventLevel::notice, fmt::format("the run ends after {} of {} rounds: {}", done,
                                                    plan_.settings.rounds, why));
  }
  if (!end_.was_over()) co_await await_absent();
  co_await evaluations_.await_last();
  if (!end_.was_over()) {
    co_await dismiss_finished();
    const Retention retention{plan_, tasks_, evaluations_, files_.versions};
    FL_CO_CHECK(co_await retention.drop_at_end(store_, files_.versions));
    const RunState state = has_model ? RunState::finished : RunState::stopped;
    auto close = [run = plan_.run.id, state](Store& store) {
      return store.runs().set_state(run, state);
    };
    FL_CO_CHECK(co_await store_.with_store(std::move(close)));
  }
  co_return files_.spool.keep_only({});  // Uploads that were still under way are removed.
}

/// Waits for clients that lost the connection a moment ago, or were here when the server was
/// killed: otherwise they would try to reach it for ever.
Awaitable<void> RoundEngine::await_absent() {
  for (bool is_said = false; !control_.is_stopping(); is_said = true) {
    const TimePoint next = roster_.expire_absences();
    if (next == never) co_return;
    if (!is_said)
      log_info("waiting a moment for {} of the clients to come back", roster_.absent_count());
    control_.phase = Phase::waiting_for_absent;
    co_await control_.changed.wait(next);
  }
}

/// Tells the clients that the run is over. Returns when all have answered or are given up,
/// including clients that come back only now.
Awaitable<void> RoundEngine::dismiss_finished() {
  control_.phase = Phase::dismissing;
  std::set<std::shared_ptr<Peer>> told;
  const TimePoint limit = Clock::now() + limits::farewell_max;
  while (!control_.is_stopping() && Clock::now() < limit) {
    for (const auto& peer : roster_.here()) {
      if (told.insert(peer).second) peer->dismiss(wire::Bye::FINISHED, "the run is over");
    }
    const TimePoint awaited_until = roster_.expire_absences();
    if (roster_.sessions() == 0 && awaited_until == never) co_return;
    co_await control_.changed.wait(std::min(limit, awaited_until));
  }
}

}  // namespace fl::server
