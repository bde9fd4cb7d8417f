// Who is asked to train in a round, and what for: the second step of the main loop, and
// replacements for clients that will not answer.
#include "server/cohort/over_selection.hpp"
#include "server/round/engine.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace fl {

std::uint32_t RoundEngine::target_clients(std::size_t available) const {
  const auto all = static_cast<double>(available);
  const double wanted = settings_.clients_per_round != 0
                            ? settings_.clients_per_round
                            : std::ceil(settings_.fraction * all - 1e-9);
  return static_cast<std::uint32_t>(
      std::clamp(wanted, std::min<double>(settings_.min_clients, all), all));
}

std::uint32_t RoundEngine::quorum() const {
  return std::min(settings_.min_clients, round_->record.target);
}

/// Not while it has a task, nor after a failure before a while has passed.
bool RoundEngine::may_be_asked(const std::string& client) const {
  const auto found = round_->tasks.find(client);
  if (found == round_->tasks.end()) return true;
  const TaskState state = found->second.record.state;
  const bool has_failed = state == TaskState::refused || state == TaskState::lost;
  return has_failed && Clock::now() >= found->second.ask_again_at;
}

/// When a client that failed in this round may be asked again; `never` if there is none. Who could
/// already be asked `by then`, and was not, waits for something else than time.
TimePoint RoundEngine::next_candidate_after(TimePoint by_then) const {
  TimePoint next = never;
  for (const auto& [client, task] : round_->tasks) {
    // One that was asked again and has not failed again is none.
    const bool has_failed =
        task.record.state == TaskState::refused || task.record.state == TaskState::lost;
    if (has_failed && task.ask_again_at > by_then && peers_.contains(client))
      next = std::min(next, task.ask_again_at);
  }
  return next;
}

void RoundEngine::note_failure(Task& task) {
  const Duration pause = limits::ask_again_min * (1 << std::min(task.failures, 10));
  task.ask_again_at = Clock::now() + std::min<Duration>(pause, limits::ask_again_max);
  ++task.failures;
}

Awaitable<Result<void>> RoundEngine::read_histories() {
  const bool sampler_needs_it = parse_sampler(settings_.sampling).value().needs_history();
  if (!sampler_needs_it && settings_.over_select != 0 && ladder_.size() == 1) co_return success();
  auto read = [run = run_.id](Store& store) { return store.client_histories(run); };
  FL_CO_TRY(histories_, co_await with_store(std::move(read)));
  co_return success();
}

Candidate RoundEngine::candidate(const Peer& peer) const {
  const auto& facts = peer.facts();
  const auto history = histories_.find(facts.name);
  return {facts.name, facts.train_examples,
          history == histories_.end() ? ClientHistory() : history->second};
}

/// Of those who are here, who may be asked in this round.
std::vector<Candidate> RoundEngine::free_candidates() const {
  const std::uint64_t latest = clock_max();
  std::vector<Candidate> free;
  for (const auto& peer : trainers()) {  // Only these have clocks.
    const std::string& name = peer->facts().name;
    const bool is_ahead = mode_.ahead != 0 && clocks_.at(name) > latest;
    if (!is_ahead && may_be_asked(name)) free.push_back(candidate(*peer));
  }
  return free;
}

/// How many a round asks that needs `target` updates.
std::size_t RoundEngine::cohort_for(std::uint32_t target) const {
  if (mode_.is_async) return free_places();
  if (settings_.over_select == 0) {
    std::vector<Candidate> all;
    for (const auto& peer : trainers()) all.push_back(candidate(*peer));
    return adapted_cohort(target, all);
  }
  return static_cast<std::size_t>(std::ceil(target * settings_.over_select - 1e-9));
}

/// `count` of the trainers that may be asked in this round: a function of (seed, round, who is
/// there, their history).
std::vector<TaskRecord> RoundEngine::sample(std::size_t count) const {
  const std::vector<Candidate> candidates = free_candidates();
  count = std::min(count, candidates.size());
  const Sampler sampler = parse_sampler(settings_.sampling).value();
  const auto rungs = rungs_of(ladder_, round_->record.round, layout_);
  const TimeLimit limit = time_limit(rungs, settings_.deadline_s, histories_);
  std::vector<TaskRecord> tasks;
  const std::size_t already = round_->tasks.size();
  for (const std::size_t pick :
       sampler.pick(candidates, count, settings_.seed, round_->record.round, already)) {
    TaskRecord task;
    task.round = round_->record.round;
    task.base_version = round_->record.base_version;
    task.client = candidates[pick].name;
    task.examples = candidates[pick].examples;
    const CodecChoice choice = choose_codec(rungs, limit, candidates[pick].history);
    task.codec = choice.codec;
    if (task.codec.starts_with(delta_prefix)) task.reference = references_.of(task.client);
    task.codec_reason = choice.reason;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

Awaitable<Result<void>> RoundEngine::offer() {
  const auto& base = *versions_.rbegin()->second;
  const std::size_t available = trainer_count();
  OpenRound round;
  round.record.round = base.record.version + 1;
  round.record.base_version = base.record.version;
  round.record.started_at = Clock::unix_seconds();
  auto everyone = before_.examples;
  for (const auto& peer : trainers()) everyone[peer->facts().name] = peer->facts().train_examples;
  for (const auto& [client, examples] : everyone)
    round.record.population += strategy_->weight_of(examples);
  round.opened_at = Clock::now();
  if (!mode_.is_async) round.deadline = deadline_after(round.opened_at);
  // What came between two rounds is of the later one.
  const Traffic before = recorded_.value_or(traffic());
  round.up_before = before.up;
  round.down_before = before.down;
  round.take(std::exchange(carried_, {}));
  round_ = std::move(round);
  const auto all = target_clients(available);
  auto tasks = sample(cohort_for(all));
  const auto under_way = static_cast<std::uint32_t>(round_->tasks.size() + tasks.size());
  round_->record.target = !mode_.is_async                          ? all
                          : mode_.is_barrier(round_->record.round) ? under_way
                                                                   : mode_.buffer;
  // Room for replacements: four times what these can weigh, and any one of those who are here.
  std::uint64_t weight = 1;
  std::uint64_t heaviest = 0;
  for (const TaskRecord& task : tasks) weight += weight_of(task);
  for (const auto& [client, task] : round_->tasks) weight += weight_of(task.record);
  for (const auto& peer : trainers())
    heaviest = std::max(heaviest, strategy_->weight_of(peer->facts().train_examples));
  // More are asked as soon as these are done, until the buffer is full.
  if (mode_.is_async)
    weight = std::max(weight, std::min(round_->record.target * heaviest, total_weight_max));
  const std::uint64_t room = std::min(4 * weight + heaviest, total_weight_max);
  round_->weight_bound = std::min(std::bit_ceil(room * mode_.unit()), total_weight_max);
  const FixedPoint fixed =
      choose_fixed_point(base.record.value_max, round_->weight_bound, before_.norm_max);
  round_->record.range_log2 = fixed.range_log2;
  round_->record.fraction_bits = fixed.fraction_bits;
  begin_sums(fixed);
  phase_ = "collecting";

  auto open = [run = run_.id, record = round_->record, tasks](Store& store) {
    return store.open_round(run, record, tasks);
  };
  FL_CO_TRY(auto opened, co_await with_store(std::move(open)));
  failpoint("round.opened");
  round_->is_recorded = true;
  for (auto& record : opened) {
    Task task;
    task.record = std::move(record);
    send_offer(round_->put(std::move(task)));
  }
  end_tasks_of_expelled();
  log_info("round {}/{}: asked {} of {} clients", round_->record.round, settings_.rounds,
           opened.size(), available);
  if (mode_.is_async && mode_.buffer > available && rounds_run_ == 0)
    report("warning",
           fmt::format("--mode async:buffer={} is more than the {} clients that are here: "
                       "a version is made when each has sent one update",
                       mode_.buffer, available));
  const bool wants_evaluator = settings_.target_accuracy > 0 || settings_.patience > 0;
  const bool has_evaluator = std::ranges::any_of(
      peers_, [](const auto& entry) { return entry.second->facts().evaluator; });
  if (wants_evaluator && !has_evaluator && rounds_run_ == 0)
    report("warning",
           "--target-accuracy and --patience act on what an evaluator measures, and none is here: "
           "fl-client --evaluate-only");
  changed_.notify();  // For updates that came between two rounds.
  co_return success();
}

/// Replacements for clients that will not answer.
Awaitable<Result<bool>> RoundEngine::add_tasks(std::size_t count) {
  auto tasks = sample(count);
  std::uint64_t weight = 0;
  for (const auto& [client, task] : round_->tasks) {
    const TaskState state = task.record.state;
    if (state == TaskState::offered || state == TaskState::accepted)
      weight += discounted_weight_of(task.record);
  }
  std::erase_if(tasks, [&](const TaskRecord& task) {
    const std::uint64_t more = discounted_weight_of(task);
    if (weight + more > round_->weight_bound) return true;
    weight += more;
    return false;
  });
  if (tasks.empty()) co_return false;
  auto add = [run = run_.id, round = round_->record.round, tasks](Store& store) {
    return store.add_tasks(run, round, tasks);
  };
  failpoint("replacement.before_added");
  FL_CO_TRY(auto added, co_await with_store(std::move(add)));
  failpoint("replacement.added");
  for (auto& record : added) {
    if (!mode_.is_async)
      log_info("round {}: asked {} in place of another", record.round, record.client);
    Task task;
    task.record = std::move(record);
    if (const Task* const before = task_of(task.record.client)) task.failures = before->failures;
    send_offer(round_->put(std::move(task)));
  }
  end_tasks_of_expelled();
  co_return true;
}

std::uint64_t RoundEngine::shared_seed_of(Round round) const {
  const std::string identity = fmt::format("{}/{}", settings_.seed, round);
  return Digest::of(bytes_of(std::string_view(identity))).short_id();
}

void RoundEngine::send_offer(Task& task) {
  const auto peer = peers_.find(task.record.client);
  const Traffic before = traffic_of(task.record.client);
  if (task.offered_at == TimePoint{}) {
    task.offered_at = Clock::now();
    task.up_before = before.up;
    task.down_before = before.down;
  }
  if (peer == peers_.end()) return;
  const auto& base = *versions_.at(task.record.base_version);
  const Round round = task.record.base_version + 1;  // The one that it was first offered in.
  wire::Header header;
  auto& offer = *header.mutable_offer();
  offer.set_task(task.record.id);
  offer.set_round(round);
  offer.set_version(base.record.version);
  offer.set_version_digest(base.record.digest.raw());
  fill_offer(settings_, work_of(round), offer);
  // Of the run, the round and the client, not of the task's number: the same in every restart.
  const std::string identity = fmt::format("{}/{}/{}", settings_.seed, round, task.record.client);
  offer.set_seed(Digest::of(bytes_of(std::string_view(identity))).short_id());
  offer.set_shared_seed(shared_seed_of(round));
  offer.set_codec(task.record.codec);
  offer.set_reference(task.record.reference);
  if (const TimePoint deadline = due(task); deadline != never) {
    const auto left = std::max(Duration::zero(), deadline - Clock::now());
    offer.set_deadline_ms(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(left).count()));
  }
  offer.set_evaluate_holdout(peer->second->facts().holdout_examples > 0);
  if (came_from_seed() && versions_.contains(0) && know_initial_.insert(task.record.client).second)
    offer.set_initial_digest(versions_.at(0)->record.digest.raw());
  peer->second->post(std::move(header));
}

}  // namespace fl
