// SPDX-License-Identifier: Apache-2.0
#include "server/app/run_loop.hpp"

#include "server/history/format.hpp"
#include "server/run/best_of_run.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace fl::server {

namespace {

void print_summary(const std::string& rounds, const RunRecord& run,
                   const std::filesystem::path& state) {
  fmt::print("\n{}\nhistory      {}\ncheckpoints  {}\n", rounds,
             (state / "history.sqlite").string(), checkpoints_of(state, run).string());
  std::fflush(stdout);
}

/// Transient and machine errors leave the run open; the next start resumes it.
bool is_of_run(const Error& error) {
  return error.code() != Errc::no_space && error.code() != Errc::io &&
         error.code() != Errc::unavailable;
}

}  // namespace

RunLoop::RunLoop(Engines& engines, StoreThread& store, HistoryChanges& changes, RunRecord run,
                 const ServeOptions& options, Actions actions, const std::atomic<bool>& stop)
    : engines_(engines),
      store_(store),
      changes_(changes),
      run_(std::move(run)),
      options_(options),
      actions_(std::move(actions)),
      stop_(stop),
      group_(engines.find(run_.id)->executor()) {}

Awaitable<Result<RoundEngine::Outcome>> RunLoop::run() {
  using Outcome = RoundEngine::Outcome;
  for (;;) {
    const auto engine = engines_.find(run_.id);
    is_aside_ = false;
    const auto has_ended = std::make_shared<bool>(false);
    group_.spawn(watch_clients(engine, has_ended));
    const auto outcome = co_await engine->run();
    *has_ended = true;
    changes_.wake();
    co_await group_.join();
    engines_.remove(run_.id);
    if (!outcome && (!run_.queued || !is_of_run(outcome.error()))) co_return outcome;
    const bool is_stopped = outcome && *outcome == Outcome::stopped;
    if (is_stopped && !is_aside_) co_return outcome;
    if (is_stopped) {
      log_info("run {} comes again after the others that wait", run_.id);
    } else if (outcome) {
      co_await summarise();
    } else {
      FL_CO_CHECK(co_await give_up(outcome.error()));
    }
    FL_CO_TRY(const bool has_next, co_await begin_next());
    if (!has_next) co_return stop_ ? Outcome::stopped : Outcome::finished;
  }
}

/// Lets the run step aside for the next one when the clients that come can't take part in it.
Awaitable<void> RunLoop::watch_clients(std::shared_ptr<RoundEngine> engine,
                                       std::shared_ptr<bool> has_ended) {
  if (options_.queue_patience_s == 0) co_return;
  const TimePoint patient_until = Clock::now() + duration_of(options_.queue_patience_s);
  std::uint64_t changes_seen = 0;
  while (!*has_ended && !is_aside_) {
    co_await changes_.wait(changes_seen);
    const std::string why = engine->view().why_unfit();
    if (*has_ended || Clock::now() < patient_until || why.empty()) continue;
    auto move = [run = run_.id, why](Store& store) -> Result<bool> {
      FL_TRY(const bool is_moved, store.runs().step_aside(run));
      if (is_moved)
        store.events().note(
            run, EventLevel::warning,
            "the run steps aside for the next one, as its clients can't take part: " + why);
      return is_moved;
    };
    const auto moved = co_await store_.with_store(std::move(move));
    is_aside_ = moved && *moved;
    if (!is_aside_) continue;
    log_warn("run {} steps aside for the next one, as its clients can't take part: {}", run_.id,
             why);
    if (!*has_ended) engine->stop();
  }
}

Awaitable<void> RunLoop::summarise() {
  auto read = [run = run_.id](Store& store) -> Result<std::string> {
    FL_TRY(const auto rounds, store.summaries().rounds(run));
    FL_TRY(const auto best, best_of_runs(store, rounds));
    return rounds.empty() ? std::string() : format_rows(rounds, best, Format::table);
  };
  const auto rounds = co_await store_.with_store(std::move(read));
  if (rounds && !rounds->empty()) print_summary(*rounds, run_, options_.state);
  if (!rounds) {
    log_warn("the summary of the run can't be read: {}", rounds.error().message());
  }
}

/// Gives up a queued run that can't begin, for example because of its initial weights: nobody is
/// there to correct it, and others may wait behind it. Other errors come back.
Awaitable<Result<void>> RunLoop::give_up(const Error& error) {
  auto mark = [run = run_.id, error](Store& store) -> Result<void> {
    FL_TRY(const bool is_given_up, store.runs().give_up(run, error.message()));
    if (!is_given_up) return error;
    return store.events().add(run, EventLevel::error, "given up: " + error.message());
  };
  FL_CO_CHECK(co_await store_.with_store(std::move(mark)));
  log_error("run {} is given up: {}", run_.id, error.message());
  co_return success();
}

/// Returns false if no run waits, or the server is to stop.
Awaitable<Result<bool>> RunLoop::begin_next() {
  for (;;) {
    FL_CO_TRY(const auto next, co_await wait_for_next());
    if (!next) co_return false;
    run_ = next->record;
    auto made = actions_.make_engine(*next);
    if (!made) {
      FL_CO_CHECK(co_await give_up(made.error()));
      continue;
    }
    if (stop_) co_return false;  // Sessions must not join an engine that will not run.
    FL_CO_CHECK(engines_.add(std::move(*made)));
    if (auto announced = actions_.announce(run_); !announced)
      log_warn("the address file still names the run before: {}", announced.error().message());
    co_return true;
  }
}

/// None: no run waits and --stay was not given, or the server is to stop.
Awaitable<Result<std::optional<ChosenRun>>> RunLoop::wait_for_next() {
  bool has_said = false;
  std::uint64_t changes_seen = 0;
  while (!stop_) {
    auto look = [](Store& store) { return next_run(store.runs()); };
    FL_CO_TRY(auto found, co_await store_.with_store(std::move(look)));
    if (found || !options_.stay) co_return found;
    if (!std::exchange(has_said, true))
      log_info("waiting for another run: fl-server queue --state {} [--rounds N ...]",
               options_.state);
    co_await changes_.wait(changes_seen);
  }
  co_return std::optional<ChosenRun>();
}

}  // namespace fl::server
