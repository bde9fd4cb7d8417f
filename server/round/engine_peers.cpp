// The engine's half of a session: who comes and goes, who has heard that the run is over, what they
// fetch.
#include "server/round/engine.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

Result<wire::Welcome> RoundEngine::welcome(const std::string& name,
                                           const wire::Hello& hello) const {
  if (ended_ && phase_ == "finished")
    return Error(Errc::cancelled, "the run is over, and no other has begun");
  if (ended_ || stopping_) return Error(Errc::unavailable, "the server goes down");
  if (!hello.model().empty() && hello.model() != run_.model) {
    return Error(Errc::invalid_input, fmt::format("the client trains '{}', this run '{}'",
                                                  hello.model().substr(0, 64), run_.model));
  }
  if (hello.evaluator() && strategy_->has_personal()) {
    return Error(
        Errc::invalid_input,
        "parts of this run's model are personal, and an evaluator has none: it is measured "
        "on the clients' held-out data");
  }
  for (const std::string& spec : ladder_) {
    for (const std::string& wanted : parse_codec(spec).value()->names()) {
      const auto& known = hello.codecs();
      if (hello.evaluator() || std::ranges::find(known, wanted) != known.end()) continue;
      return Error(
          Errc::invalid_input,
          fmt::format("the client does not know the run's codec '{}'; a newer fl-client does, and "
                      "--codec none is for all",
                      wanted));
    }
  }
  wire::Welcome welcome;
  welcome.set_protocol(protocol_version);
  welcome.set_run_key(run_.key);
  welcome.set_model(run_.model);
  welcome.set_strategy(settings_.strategy);
  welcome.set_seed(run_.seed);
  welcome.set_layout_digest(layout_.digest().raw());
  welcome.set_name(name);
  if (!versions_.empty()) {
    const auto& newest = versions_.rbegin()->second->record;
    welcome.set_version(newest.version);
    welcome.set_version_digest(newest.digest.raw());
  }
  return welcome;
}

Awaitable<Result<void>> RoundEngine::join(std::shared_ptr<Peer> peer) {
  const auto& facts = peer->facts();
  // An upload that ended while the sums are added up again would be counted twice.
  while (!is_restored_ && !ended_ && !stopping_) co_await changed_.wait(never);
  if (ended_ || stopping_) co_return Error(Errc::unavailable, "the server goes down");
  if (!facts.evaluator && facts.train_examples == 0) {
    co_return Error(Errc::invalid_input, "the client has no training examples");
  }
  const std::uint64_t examples_max = update_weight_max / mode_.unit();
  if (facts.train_examples > examples_max) {
    co_return Error(Errc::invalid_input,
                    fmt::format("{} training examples; at most {} are believed",
                                facts.train_examples, examples_max));
  }
  // It may have been revoked since it was admitted, or its name joined again with another key.
  bool was_evaluator = false;
  auto touch = [facts, &was_evaluator](Store& store) -> Result<void> {
    if (!facts.serial.empty()) FL_CHECK(store.admit(facts.name, facts.serial));
    FL_TRY(const auto before, store.find_client(facts.name));
    was_evaluator = before && before->evaluator;
    return store.touch_client(facts.name, facts.evaluator);
  };
  if (auto touched = co_await with_store(std::move(touch)); !touched) co_return touched.error();
  if (ended_) co_return Error(Errc::unavailable, "the run is over");  // All others are dismissed.
  if (const auto old = peers_.find(facts.name); old != peers_.end()) {
    const auto before = old->second;
    leave(before);
    before->dismiss(wire::Bye::BROKEN, "the same client has connected again");
    note_displaced(facts.name);
  }
  absent_.erase(facts.name);
  expelled_.erase(facts.name);
  if (!facts.evaluator) enter_clock(facts.name);
  peers_[facts.name] = peer;
  if (facts.evaluator) {
    unasked_evaluation_[facts.name] = 0;
    ask_to_catch_up(*peer);
  } else if (is_over() && owes_last_evaluation(*peer)) {
    ask_to_evaluate(*peer, *versions_.rbegin()->second);
  }
  if (Task* const task = task_of(facts.name);
      task != nullptr && task->record.state == TaskState::offered && !is_over()) {
    send_offer(*task);
  }
  report("info", fmt::format("{} is here: {}, {} examples", facts.name,
                             facts.evaluator ? "evaluator" : "trainer",
                             facts.evaluator ? facts.holdout_examples : facts.train_examples));
  if (was_evaluator && !facts.evaluator)
    report("warning", fmt::format("{} has evaluated until now and trains from here on: if that is "
                                  "the test set, start it with --evaluate-only",
                                  facts.name));
  changed_.notify();
  co_return success();
}

/// One whose line broke comes again, and displaces what is left of its last session. Again and
/// again within a short time do so two programs with one identity, as in a copied state.
void RoundEngine::note_displaced(const std::string& name) {
  auto& seen = displaced_[name];
  if (Clock::now() - seen.since > limits::displaced_window)
    seen = {.since = Clock::now(), .times = 0};
  if (++seen.times != limits::displaced_max) return;
  report("warning",
         fmt::format(
             "{} has displaced its own session {} times within {} s: do two programs use "
             "one identity, from a state that was copied?",
             name, seen.times,
             std::chrono::duration_cast<std::chrono::seconds>(limits::displaced_window).count()));
}

void RoundEngine::leave(const std::shared_ptr<Peer>& peer, bool for_good) {
  const auto& name = peer->facts().name;
  const auto found = peers_.find(name);
  if (found == peers_.end() || found->second != peer) return;  // Replaced by a newer session.
  auto& total = departed_[name];
  total.up += peer->bytes_up();
  total.down += peer->bytes_down();
  peers_.erase(found);
  initialisers_.erase(name);
  know_initial_.erase(name);
  if (!for_good) absent_[name] = Clock::now() + limits::farewell_max;
  report("info", name + " left");
  changed_.notify();
}

void RoundEngine::expel(const std::string& name, const std::string& reason) {
  // Also of one that is not here, which nobody else would end before the deadline.
  const Task* const task = task_of(name);
  expelled_[name] = reason;
  if (!ended_ && (!is_restored_ || (task != nullptr && task->is_open())))
    group_.spawn(lose_task(name, task != nullptr ? task->record.id : any_task, reason));
  const auto found = peers_.find(name);
  if (found == peers_.end()) return;
  const auto peer = found->second;
  report("warning", fmt::format("{}: {}", name, reason));
  leave(peer, true);
  peer->dismiss(wire::Bye::REFUSED, reason);
}

/// Of those that were sampled or being verified when their clients were expelled.
void RoundEngine::end_tasks_of_expelled() {
  for (const auto& [name, reason] : expelled_) {
    const Task* const task = task_of(name);
    if (task != nullptr && task->is_open()) group_.spawn(lose_task(name, task->record.id, reason));
  }
}

/// Ends a client's open task without an update. While a round is being recorded its tasks stay as
/// they are; then some go on.
Awaitable<void> RoundEngine::lose_task(std::string client, std::int64_t id, std::string reason) {
  while (!stopping_ && !ended_ && (!is_restored_ || (round_ && round_->is_closing)))
    co_await changed_.wait(never);
  if (stopping_ || ended_ || is_over()) co_return;
  Task* const task = id == any_task ? task_of(client) : find_task(client, id);
  if (task == nullptr || !task->is_open()) co_return;
  TaskRecord record = task->record;
  record.state = TaskState::lost;
  record.reason = std::move(reason);
  [[maybe_unused]] const auto settled = co_await settle(*task, std::move(record));
}

/// Whoever lost the connection a moment ago, or was there when we were killed, is trying to reach
/// us, and would try for ever.
Awaitable<void> RoundEngine::await_absent() {
  if (run_.state == RunState::finished) co_return;
  for (bool is_said = false; !stopping_; is_said = true) {
    const TimePoint next = end_of_absence();
    if (next == never) co_return;
    if (!is_said) log_info("waiting a moment for {} of the clients to come back", absent_.size());
    phase_ = "the run is over: waiting for its clients";
    co_await changed_.wait(next);
  }
}

/// When the next of those who are waited for is given up; `never` when there are none.
TimePoint RoundEngine::end_of_absence() {
  std::erase_if(absent_, [](const auto& entry) { return entry.second <= Clock::now(); });
  TimePoint next = never;
  for (const auto& [name, until] : absent_) next = std::min(next, until);
  return next;
}

void RoundEngine::dismiss_all(wire::Bye::Cause cause, const std::string& reason) {
  for (const auto& [name, peer] : peers_) peer->dismiss(cause, reason);
}

/// Returns when all have heard it, those too that only now come back, or are given up.
Awaitable<void> RoundEngine::say_it_is_over() {
  phase_ = "the run is over";
  std::set<std::shared_ptr<Peer>> told;
  const TimePoint limit = Clock::now() + limits::farewell_max;
  while (!stopping_ && Clock::now() < limit) {
    for (const auto& [name, peer] : peers_) {
      if (told.insert(peer).second) peer->dismiss(wire::Bye::FINISHED, phase_);
    }
    const TimePoint awaited_until = end_of_absence();
    if (peers_.empty() && awaited_until == never) co_return;
    co_await changed_.wait(std::min(limit, awaited_until));
  }
}

Result<RoundEngine::Download> RoundEngine::download(const wire::Fetch& fetch) {
  const auto found = versions_.find(fetch.version());
  if (found == versions_.end()) {
    return Error(Errc::not_found, fmt::format("model version {} is not kept", fetch.version()));
  }
  const auto& version = *found->second;
  Download answer;
  answer.version = found->second;
  answer.chunk_bytes_max = chunk_bytes_max();
  auto& model = answer.model;
  model.set_version(fetch.version());
  model.set_digest(version.record.digest.raw());

  // The chain of coded steps from the client's version, when all are there and shorter than the
  // model.
  std::vector<Segment> chain;
  std::uint64_t chain_bytes = 0;
  bool has_chain = fetch.have_base() && fetch.have_version() < fetch.version();
  if (has_chain) {
    const auto base = versions_.find(fetch.have_version());
    has_chain = base != versions_.end() && base->second->record.digest.raw() == fetch.have_digest();
  }
  for (Round step = fetch.have_version() + 1; has_chain && step <= fetch.version(); ++step) {
    const auto at = versions_.find(step);
    has_chain = at != versions_.end() && at->second->delta != nullptr;
    if (!has_chain) break;
    const auto& record = at->second->record;
    chain.push_back(Segment{at->second->delta, 0, record.delta_bytes});
    chain_bytes += record.delta_bytes;
    auto& delta = *model.add_deltas();
    delta.set_version(step);
    delta.set_bytes(record.delta_bytes);
  }
  if (has_chain && chain_bytes < layout_.bytes()) {
    answer.source = SegmentSource(std::move(chain));
  } else {
    model.clear_deltas();
    model.set_full(true);
    answer.source = SegmentSource({Segment{version.file, version.data_offset, layout_.bytes()}});
  }
  model.set_bytes(answer.source.bytes());
  // What these bytes are, and so the same for every client and after a restart.
  const std::string identity =
      fmt::format("{}/{}/{}", version.record.digest.hex(), model.full() ? "full" : "delta",
                  model.full() ? 0 : fetch.have_version());
  // Two that share a name are told apart by the digest in the end.
  model.set_transfer(
      static_cast<std::uint32_t>(Digest::of(bytes_of(std::string_view(identity))).short_id()));
  const bool resumes = fetch.transfer() == model.transfer() && fetch.offset() < model.bytes();
  model.set_offset(resumes ? fetch.offset() : 0);
  return answer;
}

Awaitable<void> RoundEngine::failed(std::shared_ptr<Peer> peer, wire::Failed failed) {
  const std::string name = peer->facts().name;
  report("warning", fmt::format("{}: {}", name, failed.reason().substr(0, 1000)));
  if (failed.task() == 0) {
    // An evaluation that can't be done is not waited for.
    note_evaluated(*peer, failed.version());
    // Nor are initial weights: perhaps another client can make them.
    if (initialisers_.contains(name)) next_initialiser_at_ = Clock::now() + limits::ask_again_min;
    changed_.notify();
    co_return;
  }
  co_await lose_task(name, failed.task(), failed.reason().substr(0, 1000));
}

void RoundEngine::disk_is_full(const std::string& text) {
  report("warning", text);
  if (auto dropped = spool_.drop_spares(); !dropped) fail(dropped.error());
}

void RoundEngine::report(std::string level, std::string text) {
  log_at(level == "warning" ? LogLevel::warn : LogLevel::info, "{}", text);
  if (level == "info" && is_over()) return;  // That all leave then is no news.
  note(std::move(level), std::move(text));
}

void RoundEngine::note(std::string level, std::string text) {
  if (ended_) return;                                 // Nobody would join it.
  if (notes_ >= limits::notes_under_way_max) return;  // The log has it.
  // Nor is it worth waiting for room on the disk, as with_store() does.
  auto write = [this, level = std::move(level), text = std::move(text)]() -> Result<void> {
    note_event(store_, run_.id, level, text);
    return {};
  };
  class Note {
   public:
    static Awaitable<void> run(Offload& worker, int& under_way, decltype(write) work) {
      [[maybe_unused]] auto ignored = co_await worker.run(std::move(work));
      --under_way;
    }
  };
  ++notes_;
  group_.spawn(Note::run(*workers_.store, notes_, std::move(write)));
}

RoundEngine::Traffic RoundEngine::traffic_of(const std::string& client) const {
  Traffic total;
  if (const auto gone = departed_.find(client); gone != departed_.end()) total = gone->second;
  if (const auto here = peers_.find(client); here != peers_.end()) {
    total.up += here->second->bytes_up();
    total.down += here->second->bytes_down();
  }
  return total;
}

RoundEngine::Traffic RoundEngine::traffic() const {
  Traffic total;
  for (const auto& [name, gone] : departed_) {
    total.up += gone.up;
    total.down += gone.down;
  }
  for (const auto& [name, peer] : peers_) {
    total.up += peer->bytes_up();
    total.down += peer->bytes_down();
  }
  return total;
}

EngineStatus RoundEngine::status() const {
  EngineStatus status;
  status.run = run_.id;
  status.run_key = run_.key;
  status.model = run_.model;
  status.phase = pause_.empty() ? phase_ : pause_;
  status.rounds_total = settings_.rounds;
  status.round = round_ ? round_->record.round : versions_.empty() ? 0 : versions_.rbegin()->first;
  for (const auto& [name, peer] : peers_)
    ++(peer->facts().evaluator ? status.evaluators : status.clients);
  if (round_) {
    status.offered = static_cast<std::uint32_t>(round_->tasks.size());
    status.accepted = round_->count(TaskState::accepted);
  }
  const Traffic total = traffic();
  status.bytes_up = total.up;
  status.bytes_down = total.down;
  status.accuracy = accuracy_;
  status.round_seconds = rounds_run_ > 0 ? rounds_seconds_ / rounds_run_ : 0;
  status.started_at = started_at_;
  return status;
}

}  // namespace fl
