// The main loop and its five steps; who is asked, and for what, is in engine_offer.cpp. What
// sessions call is in engine_uploads.cpp and engine_peers.cpp; what is measured of the versions, in
// engine_evaluation.cpp; what is different in an asynchronous run, in engine_async.cpp.
#include "server/round/engine.hpp"

#include "server/versions/make_version.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

RoundEngine::RoundEngine(net::any_io_executor strand, RunSettings settings, RunRecord run,
                         const Layout& model, Files& files, Store& store, Workers workers,
                         Paths paths)
    : strand_(std::move(strand)),
      settings_(std::move(settings)),
      run_(std::move(run)),
      ladder_(parse_ladder(settings_.codec).value()),
      mode_(parse_mode(settings_.mode).value()),
      strategy_(parse_strategy(settings_.strategy).value()),
      model_(model),
      vector_(run_layout(model, *strategy_).value()),
      layout_(vector_.all),
      files_(files),
      store_(store),
      workers_(workers),
      paths_(std::move(paths)),
      spool_(files, paths_.spool),
      references_(files, paths_.references, layout_.bytes()),
      changed_(strand_),
      decided_(strand_),
      group_(strand_) {}

RoundEngine::~RoundEngine() = default;

Awaitable<Result<RoundEngine::Outcome>> RoundEngine::run() {
  started_at_ = Clock::unix_seconds();
  group_.spawn(commit_decisions());
  Result<Outcome> outcome = Outcome::stopped;
  // One pass is one round. Each step returns false when the server was asked to stop.
  auto going = co_await restore();
  while (going && !is_over()) {
    auto step = co_await gather();
    if (step && *step && is_over()) {  // An evaluator has said so meanwhile.
      ask_evaluators();                // And the trainers, as at every run's end.
      break;
    }
    if (step && *step && !round_) {
      auto offered = co_await offer();
      if (!offered) step = offered.error();
    }
    if (step && *step && mode_.is_async) {
      step = co_await collect_async();
    } else if (step && *step) {
      step = co_await collect();
    }
    if (!step) {
      going = step.error();
      break;
    }
    if (!*step) break;
    going = co_await apply_and_record();
  }
  if (going && is_over()) {
    changed_.notify();  // No update waits for a round any more.
    if (const auto why = early_end(); !why.empty() && run_.state != RunState::finished)
      report("notice", fmt::format("the run ends after {} of {} rounds: {}",
                                   versions_.rbegin()->first, settings_.rounds, why));
    co_await await_absent();
    co_await await_last_evaluations();
    // Killed after they are told and before it is recorded, we come back and tell them again.
    if (run_.state != RunState::finished) co_await say_it_is_over();
    auto close = [run = run_.id](Store& store) {
      return store.set_run_state(run, RunState::finished);
    };
    going = co_await with_store(std::move(close));
    if (going) going = spool_.keep_only({});  // What was still under way.
    if (going) outcome = Outcome::finished;
  }
  // Whoever is stopped while the disk is full has nothing left to save.
  const bool is_pause = !going && stopping_ && will_pass(going.error());
  if (!going && !is_pause) outcome = going.error();
  phase_ = outcome && *outcome == Outcome::finished ? "finished" : "stopping";
  ended_ = true;
  if (auto dropped = spool_.drop_spares(); !dropped) fail(dropped.error());
  decided_.notify();
  changed_.notify();
  if (!outcome) fail(outcome.error());
  if (phase_ == "finished") {
    dismiss_all(wire::Bye::FINISHED, "the run is over");
  } else {
    dismiss_all(wire::Bye::RESTARTING, "the server goes down");
  }
  // They hold this engine: with one that is slow to go it would never be freed.
  const auto peers = peers_;
  for (const auto& [name, peer] : peers) leave(peer, true);
  co_await group_.join();
  if (!round_) sums_.reset();  // A server may stay long after a run, and wait for another.
  if (fatal_) co_return *fatal_;
  co_return outcome;
}

void RoundEngine::stop() {
  stopping_ = true;
  changed_.notify();
}

void RoundEngine::fail(const Error& error) {
  if (!fatal_) {
    fatal_ = error;
    log_error("stopping: {}", error.message());
  }
  stop();
  decided_.notify();
}

bool RoundEngine::is_over() const {
  if (run_.state == RunState::finished) return true;
  if (round_ || versions_.empty()) return false;
  return versions_.rbegin()->first >= settings_.rounds || !early_end().empty();
}

/// Why the run ends before its last round; empty: it does not.
std::string RoundEngine::early_end() const {
  if (!accuracy_ || versions_.rbegin()->first >= settings_.rounds) return "";
  if (settings_.target_accuracy > 0 && *accuracy_ >= settings_.target_accuracy)
    return fmt::format("version {} has {:.2f}% of the wanted {:.2f}% accuracy", accuracy_version_,
                       100 * *accuracy_, 100 * settings_.target_accuracy);
  if (settings_.patience > 0 && accuracy_version_ - best_version_ >= settings_.patience)
    return fmt::format("no version was better than version {}, with {:.2f}%, in {} rounds",
                       best_version_, 100 * best_accuracy_, settings_.patience);
  return "";
}

// Restore --------------------------------------------------------------------------------------

Result<void> RoundEngine::remove_files(const CheckpointRecord& version) {
  FL_CHECK(files_.remove(paths_.checkpoints / version.file));
  if (version.delta_file.empty()) return {};
  return files_.remove(paths_.checkpoints / version.delta_file);
}

Awaitable<Result<void>> RoundEngine::restore() {
  phase_ = "restoring";
  FL_CO_CHECK(spool_.prepare());
  auto read = [run = run_.id](Store& store) { return store.checkpoints(run); };
  FL_CO_TRY(const auto records, co_await with_store(std::move(read)));
  for (const auto& record : records) {
    auto version = open_version(files_, paths_.checkpoints, record, layout_);
    const bool is_lost = !version && (version.error().code() == Errc::not_found ||
                                      version.error().code() == Errc::corrupt);
    if (is_lost)
      co_return Error(
          version.error().code(),
          fmt::format("{}; the run can't go on without this checkpoint: put it back, or "
                      "begin another with --new-run",
                      version.error().message()));
    FL_CO_CHECK(version);
    versions_[record.version] = std::move(*version);
  }
  auto list_dropped = [run = run_.id](Store& store) { return store.last_dropped(run); };
  FL_CO_TRY(const auto dropped, co_await with_store(std::move(list_dropped)));
  for (const auto& record : dropped) FL_CO_CHECK(remove_files(record));
  if (!versions_.empty()) {
    // All else is made of the newest one.
    auto check = [this] { return check_digest(*versions_.rbegin()->second, layout_); };
    FL_CO_CHECK(co_await workers_.compute->run(std::move(check)));
  }
  auto measured = [run = run_.id](Store& store) { return store.summary(run); };
  FL_CO_TRY(const auto rounds, co_await with_store(std::move(measured)));
  for (const auto& round : rounds) losses_.push_back(round.train_loss.value_or(std::nan("")));
  auto look_back = [run = run_.id](Store& store) { return store.rounds_before(run); };
  FL_CO_TRY(before_, co_await with_store(std::move(look_back)));
  auto judged = [run = run_.id](Store& store) { return store.evaluator_accuracies(run); };
  FL_CO_TRY(const auto accuracies, co_await with_store(std::move(judged)));
  for (const auto& [version, accuracy] : accuracies) note_accuracy(version, accuracy);
  if (!rounds.empty()) {
    auto list = [run = run_.id, round = rounds.back().round](Store& store) {
      return store.tasks(run, round);
    };
    FL_CO_TRY(const auto tasks, co_await with_store(std::move(list)));
    for (const auto& task : tasks) absent_[task.client] = Clock::now() + limits::farewell_max;
  }
  auto find = [run = run_.id](Store& store) { return store.newest_evaluations(run); };
  FL_CO_TRY(const auto evaluations, co_await with_store(std::move(find)));
  for (const auto& [name, newest] : evaluations) {
    next_evaluation_[name] = newest.version + 1;
    if (!newest.is_evaluator) continue;
    unasked_evaluation_[name] = 0;
    absent_[name] = Clock::now() + limits::farewell_max;
  }
  if (mode_.ahead > 0) {
    auto count = [run = run_.id](Store& store) { return store.accepted_counts(run); };
    FL_CO_TRY(clocks_, co_await with_store(std::move(count)));
  }
  auto refer = [run = run_.id](Store& store) { return store.newest_deltas(run); };
  FL_CO_TRY(auto newest, co_await with_store(std::move(refer)));
  FL_CO_CHECK(references_.prepare(std::move(newest)));
  auto find_open = [run = run_.id](Store& store) { return store.open_round_of(run); };
  FL_CO_TRY(auto open, co_await with_store(std::move(find_open)));
  auto list = [run = run_.id](Store& store) { return store.offered_tasks(run); };
  FL_CO_TRY(const auto under_way, co_await with_store(std::move(list)));
  std::set<std::int64_t> wanted;
  for (const auto& record : under_way) wanted.insert(record.id);
  if (open) {
    OpenRound round;
    round.record = open->round;
    round.opened_at = Clock::now();
    round.is_recorded = true;
    round.weight_bound =
        1ull << std::max(0, 62 - open->round.range_log2 - open->round.fraction_bits);
    for (auto& record : open->tasks) {
      if (record.state == TaskState::accepted) wanted.insert(record.id);
      Task task;
      task.offered_at = round.opened_at;
      task.record = std::move(record);
      round.put(std::move(task));
    }
    round_ = std::move(round);
  } else {
    for (const auto& record : under_way) {
      Task& task = carried_[record.client];
      task.offered_at = Clock::now();
      task.record = record;
    }
  }
  FL_CO_CHECK(spool_.keep_only(wanted));
  if (round_) {
    FL_CO_CHECK(co_await rebuild_sums());
    if (const auto accepted = round_->count(TaskState::accepted); accepted > 0)
      log_info("round {} goes on with {} accepted updates", round_->record.round, accepted);
    if (!mode_.is_async) round_->deadline = deadline_after(Clock::now());
  }
  if (versions_.empty() && !settings_.initial_weights.empty())
    FL_CO_CHECK(co_await take_initial_file());
  is_restored_ = true;
  changed_.notify();
  co_return success();
}

/// Those that the open round's updates have, where all are asked for one codec.
SummedSketches RoundEngine::summed_sketches() const {
  if (ladder_.size() != 1 || strategy_->adds_what_clients_see()) return {};
  return parse_codec(ladder_.front(), round_->record.round).value()->summed_sketches(layout_);
}

/// In the vector that is there, if there is one: two are as much as the server has.
void RoundEngine::begin_sums(const FixedPoint& fixed) {
  const std::uint64_t shared_seed = shared_seed_of(round_->record.base_version + 1);
  SummedSketches sketches = summed_sketches();
  if (sums_) {
    sums_->reset(fixed, shared_seed, std::move(sketches));
  } else {
    sums_ = std::make_unique<Accumulator>(layout_, fixed, shared_seed, std::move(sketches));
  }
}

/// The accepted updates of the round that was open, added up again from the spool: the same sums.
Awaitable<Result<void>> RoundEngine::rebuild_sums() {
  const FixedPoint fixed{round_->record.range_log2, round_->record.fraction_bits,
                         round_->weight_bound};
  begin_sums(fixed);
  for (const auto& entry : round_->tasks) {
    const TaskRecord& task = entry.second.record;
    if (task.state != TaskState::accepted) continue;
    std::shared_ptr<File> file;
    auto work = [this, &task, &file]() -> Result<void> {
      if (!file) {
        FL_TRY(file, spool_.open_accepted(task.spool_file));
      }
      FL_TRY([[maybe_unused]] auto norms, add_to_sums(*file, task.update_bytes, task));
      return {};
    };
    auto added = co_await with_room(std::move(work));
    if (!added) {
      const Error error = added.error().at(fmt::format("the accepted update {}", task.spool_file));
      if (error.code() != Errc::not_found && error.code() != Errc::corrupt) co_return error;
      co_return Error(error.code(), fmt::format("{}; the round can't go on without: put the file "
                                                "back, or begin another run with --new-run",
                                                error.message()));
    }
  }
  co_return success();
}

/// What a round's sums have when nothing is known of the updates.
FixedPoint RoundEngine::widest() const {
  return choose_fixed_point(versions_.at(round_->record.base_version)->record.value_max,
                            round_->weight_bound);
}

/// An update is much larger than all before it, and yet none that can't be right. While nobody adds
/// anything, what was accepted is added up again with less digits.
Awaitable<Result<void>> RoundEngine::widen_range() {
  auto& round = *round_;
  const FixedPoint wide = widest();
  report("info", fmt::format("round {}: an update is much larger than all before; the sums' range "
                             "becomes 2^{}",
                             round.record.round, wide.range_log2));
  auto write = [run = run_.id, number = round.record.round, wide](Store& store) {
    return store.set_fixed_point(run, number, wide.range_log2, wide.fraction_bits);
  };
  FL_CO_CHECK(co_await with_store(std::move(write)));
  failpoint("round.widened");
  round.record.range_log2 = wide.range_log2;
  round.record.fraction_bits = wide.fraction_bits;
  FL_CO_CHECK(co_await rebuild_sums());
  round.is_too_narrow = false;
  changed_.notify();
  co_return success();
}

// Gather ---------------------------------------------------------------------------------------

/// Waits for enough clients, and for the initial model.
Awaitable<Result<bool>> RoundEngine::gather() {
  // Here, where clients may still go: nobody leaves between the last look and the sampling.
  FL_CO_CHECK(co_await read_histories());
  std::string said;
  while (!stopping_) {
    const std::size_t here = trainer_count();
    if (is_over()) co_return true;
    if (round_) co_return true;  // Goes on after a restart; who was asked may come back.
    const bool are_here = here >= settings_.min_clients && peers_.size() >= expected_sessions_;
    if (!versions_.empty() && are_here) co_return true;
    if (versions_.empty()) pick_initialiser();
    phase_ = here < settings_.min_clients
                 ? fmt::format("waiting for {} clients ({} {} here)", settings_.min_clients, here,
                               here == 1 ? "is" : "are")
                 : "waiting for the initial model";
    if (phase_ != said) log_info("{}", phase_);
    said = phase_;
    const bool asks_others = versions_.empty() && !initialisers_.empty();
    co_await changed_.wait(asks_others ? next_initialiser_at_ : never);
  }
  if (fatal_) co_return *fatal_;
  co_return false;
}

std::vector<std::shared_ptr<Peer>> RoundEngine::trainers() const {
  std::vector<std::shared_ptr<Peer>> found;  // In the order of their names.
  for (const auto& [name, peer] : peers_) {
    if (!peer->facts().evaluator) found.push_back(peer);
  }
  return found;
}

std::size_t RoundEngine::trainer_count() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      peers_, [](const auto& entry) { return !entry.second->facts().evaluator; }));
}

/// Also from several workers at once: it reads what stays while a round is open.
Result<UpdateNorms> RoundEngine::add_to_sums(File& file, std::uint64_t bytes,
                                             const TaskRecord& task) {
  FileSource source(file);
  FL_TRY(auto reader, PayloadReader::open(source, bytes, layout_));
  FL_TRY(const AdjustUpdate adjust, adjustment_of(task));
  return sums_->add(reader, discounted_weight_of(task), adjust);
}

// Collect --------------------------------------------------------------------------------------

TimePoint RoundEngine::deadline_after(TimePoint start) const {
  if (settings_.deadline_s == 0) return never;
  return start +
         std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings_.deadline_s));
}

/// Returns when the round has what it needs: its target of accepted updates; or every task's end,
/// or the deadline, with at least the quorum. Short of the quorum others are asked, and the
/// deadline moves.
Awaitable<Result<bool>> RoundEngine::collect() {
  auto& round = *round_;
  while (!stopping_) {
    if (round.is_too_narrow && !round.is_adding()) FL_CO_CHECK(co_await widen_range());
    const std::uint32_t accepted = round.count(TaskState::accepted);
    const std::uint32_t open = round.count(TaskState::offered);
    const TimePoint now = Clock::now();
    const bool is_late = now >= round.deadline;
    TimePoint wake_at = round.deadline;
    if (accepted >= round.record.target || (accepted >= quorum() && (open == 0 || is_late))) {
      if (is_late && open > 0 && !round.is_closing)
        report("info", fmt::format("round {}: the deadline passed without {}", round.record.round,
                                   names_missing()));
      round.is_closing = true;  // What is being checked is let finish; nothing new begins.
      if (!round.is_verifying()) co_return true;
    } else if (is_late) {
      report("warning",
             fmt::format("round {}: {} of {} updates at the deadline; waiting for another {} s",
                         round.record.round, accepted, quorum(), settings_.deadline_s));
      round.deadline = deadline_after(Clock::now());
      FL_CO_TRY([[maybe_unused]] const bool asked, co_await add_tasks(quorum() - accepted));
      continue;
    } else if (accepted + open < quorum()) {
      FL_CO_TRY(const bool asked, co_await add_tasks(quorum() - accepted - open));
      if (asked) continue;
      wake_at = std::min(wake_at, next_candidate_after(now));
    }
    phase_ = "collecting";
    co_await changed_.wait(round.is_closing ? never : wake_at);
  }
  if (fatal_) co_return *fatal_;
  co_return false;
}

/// Of the clients that have not brought their updates; not of all, if they are many.
std::string RoundEngine::names_missing() const {
  constexpr std::size_t named_max = 10;
  std::string names;
  std::size_t count = 0;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::offered || ++count > named_max) continue;
    names += (names.empty() ? "" : ", ") + client;
  }
  return count > named_max ? fmt::format("{} and {} more", names, count - named_max) : names;
}

void RoundEngine::OpenRound::take(std::map<std::string, Task> carried) {
  tasks = std::move(carried);
  for (auto& [client, task] : tasks) {
    task.record.round = record.round;
    ++counts[static_cast<std::size_t>(task.record.state)];
  }
}

RoundEngine::Task& RoundEngine::OpenRound::put(Task task) {
  auto [place, is_new] = tasks.try_emplace(task.record.client);
  if (!is_new) --counts[static_cast<std::size_t>(place->second.record.state)];
  ++counts[static_cast<std::size_t>(task.record.state)];
  place->second = std::move(task);
  return place->second;
}

void RoundEngine::OpenRound::decide(Task& task, TaskRecord decided) {
  --counts[static_cast<std::size_t>(task.record.state)];
  ++counts[static_cast<std::size_t>(decided.state)];
  task.record = std::move(decided);
}

std::uint64_t RoundEngine::accepted_weight() const {
  std::uint64_t sum = 0;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state == TaskState::accepted) sum += weight_of(task.record);
  }
  return sum;
}

bool RoundEngine::OpenRound::is_verifying() const {
  return std::any_of(tasks.begin(), tasks.end(),
                     [](const auto& entry) { return entry.second.is_verifying; });
}

bool RoundEngine::OpenRound::is_adding() const {
  return std::any_of(tasks.begin(), tasks.end(), [](const auto& entry) {
    return entry.second.is_verifying && !entry.second.waits_for_range;
  });
}

// Apply and record -----------------------------------------------------------------------------

/// A function of what is durable, summed up in the order of the clients' names.
RoundFacts RoundEngine::facts_of_round() const {
  const TrainSettings work = work_of(round_->record.round);
  const auto accepted = static_cast<double>(accepted_weight());
  RoundFacts facts;
  facts.round = round_->record.round;
  facts.lr = work.lr;
  const auto all = static_cast<double>(std::max<std::uint64_t>(1, round_->record.population));
  facts.share = accepted / all;
  if (before_.population > 0) facts.regrouped = static_cast<double>(before_.population) / all;
  if (!work.optimizer.is_sgd()) return facts;
  double steps = 0;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::accepted) continue;
    const auto weight = static_cast<double>(weight_of(task.record));
    steps += weight / accepted * effective_steps(work, task.record.steps);
  }
  facts.effective_steps = steps;
  return facts;
}

std::map<std::string, std::int64_t> RoundEngine::accepted_deltas() const {
  std::map<std::string, std::int64_t> accepted;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state == TaskState::accepted && task.record.codec.starts_with(delta_prefix))
      accepted[client] = task.record.id;
  }
  return accepted;
}

Awaitable<Result<void>> RoundEngine::apply_and_record() {
  phase_ = "making the new model";
  auto& round = *round_;
  const auto base = versions_.at(round.record.base_version);
  const auto downlink = parse_downlink_codec(settings_.downlink_codec, round.record.round).value();
  StepJob job{files_,
              paths_.checkpoints,
              vector_,
              *base,
              *sums_,
              static_cast<double>(accepted_weight() * mode_.unit()),
              *strategy_,
              facts_of_round(),
              *downlink,
              settings_.seed,
              {{"run", run_.key},
               {"model", run_.model},
               {"clients", std::to_string(round.count(TaskState::accepted))}}};
  const auto deltas = accepted_deltas();
  auto work = [this, &job, &deltas]() -> Result<CheckpointRecord> {
    FL_CHECK(references_.sync(deltas));
    return make_next_version(job);
  };
  const auto next = co_await with_room(std::move(work));
  // Stopped while it waits, the round stays open, and the next start closes it.
  if (!next && next.error().code() == Errc::no_space) co_return success();
  FL_CO_TRY(const CheckpointRecord made, next);

  RoundCommit commit;
  commit.run = run_.id;
  commit.round = round.record.round;
  commit.ended_at = Clock::unix_seconds();
  commit.checkpoint = made;
  double loss = 0;
  double examples = 0;
  for (const auto& [client, task] : round.tasks) {
    if (task.record.state != TaskState::accepted) continue;
    loss += task.record.loss * static_cast<double>(task.record.examples);
    examples += static_cast<double>(task.record.examples);
  }
  commit.train_loss = loss / examples;
  const Traffic now = traffic();
  recorded_ = now;
  commit.bytes_up = now.up - round.up_before;
  commit.bytes_down = now.down - round.down_before;
  commit.oldest_base = made.version > mode_.late_max ? made.version - mode_.late_max : 0;
  const auto is_base = [&](Round version) {
    return version >= commit.oldest_base &&
           std::ranges::any_of(round.tasks, [version](const auto& entry) {
             return entry.second.is_open() && entry.second.record.base_version == version;
           });
  };
  if (settings_.keep_checkpoints > 0) {
    const Round awaited = oldest_awaited(made.version);
    for (const auto& [version, files] : versions_) {
      if (version + settings_.keep_checkpoints <= made.version && version < awaited &&
          !is_base(version))
        commit.dropped_versions.push_back(version);
    }
  }
  for (const auto& [client, task] : round.tasks) {
    const Traffic total = traffic_of(client);
    const bool is_decided = task.record.state != TaskState::offered;
    commit.traffic.push_back(
        {task.record.id, total.up - task.up_before, total.down - task.down_before,
         is_decided ? task.record.seconds : seconds(Clock::now() - task.offered_at)});
  }
  auto write = [commit](Store& store) { return store.commit_round(commit); };
  failpoint("round.before_commit");
  FL_CO_CHECK(co_await with_store(std::move(write)));
  failpoint("round.committed");

  const double took = seconds(Clock::now() - round.opened_at);
  log_info("round {}/{}: {} updates, loss {:.4f}, {:.2f} s, up {:.2f} MB, down {:.2f} MB",
           commit.round, settings_.rounds, round.count(TaskState::accepted), commit.train_loss,
           took, static_cast<double>(commit.bytes_up) / 1e6,
           static_cast<double>(commit.bytes_down) / 1e6);
  losses_.push_back(commit.train_loss);
  before_.population = round.record.population;
  for (const auto& [client, task] : round.tasks) {
    before_.examples[client] = task.record.examples;
    if (task.record.state == TaskState::accepted)
      before_.norm_max = std::max(before_.norm_max, task.record.norm);
  }
  rounds_seconds_ += took;
  ++rounds_run_;
  carry_tasks(commit.oldest_base);
  round_.reset();
  std::set<std::int64_t> under_way;
  for (const auto& [client, task] : carried_) under_way.insert(task.record.id);
  // What is removed here is garbage already: if we die before, the next start removes it.
  FL_CO_CHECK(spool_.keep_only(under_way));
  FL_CO_CHECK(references_.advance(deltas));
  for (const Round version : commit.dropped_versions) {
    const auto dropped = versions_.extract(version);
    FL_CO_CHECK(remove_files(dropped.mapped()->record));
  }
  FL_CO_TRY(auto version, open_version(files_, paths_.checkpoints, made, layout_));
  publish(std::move(version));
  co_return success();
}

void RoundEngine::publish(std::shared_ptr<const ModelVersion> version) {
  const Round number = version->record.version;
  versions_[number] = std::move(version);
  ask_evaluators();
  changed_.notify();
}

}  // namespace fl
