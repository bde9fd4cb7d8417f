// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/worker_pool.hpp"

#include "client/learn/initial_file.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <optional>
#include <utility>

namespace fl::sim {

namespace {

constexpr const char* threads_variable = "OMP_NUM_THREADS";

/// Runs `work` on the thread. An exception of `work` comes out of the future.
std::future<void> call(net::thread_pool& thread, std::function<void()> work) {
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  net::post(thread, [done, work = std::move(work)] {
    try {
      work();
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  });
  return future;
}

/// The command of one worker, counted from 1. Several programs use the cores best with one thread
/// each.
TrainerCommand command_of(TrainerCommand command, int worker, int workers) {
  command.programs = workers;
  if (!command.socket.empty()) command.socket += fmt::format(".{}", worker);
  const bool is_given =
      std::getenv(threads_variable) != nullptr ||
      std::ranges::find(command.variables, threads_variable,
                        &std::pair<std::string, std::string>::first) != command.variables.end();
  if (!is_given) command.variables.emplace_back(threads_variable, "1");
  return command;
}

}  // namespace

Result<std::unique_ptr<WorkerPool>> WorkerPool::start(const TrainerCommand& command,
                                                      const std::filesystem::path& state,
                                                      int workers, std::stop_token stop) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool());
  {
    const WithoutStopSignals guard;
    for (int i = 0; i < workers; ++i) pool->workers_.push_back(std::make_unique<Worker>());
  }
  FL_CHECK(pool->start_all(command, state, std::move(stop)));
  FL_CHECK(pool->check());
  const MutexLock lock(pool->mutex_);
  for (const auto& worker : pool->workers_) pool->free_.push_back(worker.get());
  return pool;
}

Result<void> WorkerPool::start_all(const TrainerCommand& command,
                                   const std::filesystem::path& state, std::stop_token stop) {
  const auto failures = std::make_shared<TrainerFailures>();
  const int count = static_cast<int>(workers_.size());
  FL_CHECK(posix_files().make_folder(state / "workers"));
  std::stop_source failed;  // The first failure ends the starts of the others.
  const std::stop_callback pass_on(stop, [&] { failed.request_stop(); });
  struct First {
    Mutex mutex;
    std::optional<Error> error FL_GUARDED_BY(mutex);
  };
  First first;
  std::vector<std::future<void>> started;
  for (int i = 0; i < count; ++i) {
    Worker& worker = *workers_[static_cast<std::size_t>(i)];
    started.push_back(call(worker.thread, [&, i] {
      const auto folder = state / "workers" / fmt::format("{}", i + 1);
      auto made = posix_files().make_folder(folder);
      auto program = made ? TrainerProgram::start(command_of(command, i + 1, count), folder,
                                                  failed.get_token(), failures)
                          : Result<std::shared_ptr<TrainerProgram>>(made.error());
      if (program) {
        worker.program = std::move(*program);
        return;
      }
      const MutexLock lock(first.mutex);
      if (!first.error) first.error = program.error();
      failed.request_stop();
    }));
  }
  for (auto& one : started) one.get();
  const MutexLock lock(first.mutex);
  if (first.error) return *first.error;
  return {};
}

Result<void> WorkerPool::check() const {
  if (!hello().plays_clients) {
    return Error(Errc::invalid_input,
                 "the trainer plays one client only: for a simulation its hello must have "
                 "\"clients\": true (" +
                     document_path("docs/design/trainer-protocol.md") + ")");
  }
  const auto is_other = [this](const std::unique_ptr<Worker>& worker) {
    const TrainerHello& other = worker->program->hello();
    return other.layout.digest() != hello().layout.digest() || other.types != hello().types ||
           other.examples != hello().examples || !other.plays_clients;
  };
  if (std::ranges::none_of(workers_, is_other)) return {};
  return Error(Errc::conflict,
               "the trainer says something else each time it is started: other tensors, or other "
               "numbers of examples");
}

WorkerPool::~WorkerPool() {
  std::vector<std::future<void>> ended;
  for (const auto& worker : workers_) {
    ended.push_back(call(worker->thread, [&worker] {
      if (worker->program) worker->program->end();
      worker->program.reset();
    }));
  }
  for (auto& one : ended) one.wait();
}

void WorkerPool::run(const Work& work) {
  Worker* worker = nullptr;
  {
    const MutexLock lock(mutex_);
    while (free_.empty()) freed_.wait(mutex_);
    worker = std::exchange(free_.back(), nullptr);
    free_.pop_back();
  }
  auto done = call(worker->thread, [&] { work(worker->program); });
  done.wait();
  {
    const MutexLock lock(mutex_);
    free_.push_back(worker);
  }
  freed_.notify_one();
  done.get();
}

Result<void> WorkerPool::write_initial_weights(std::uint64_t seed,
                                               const std::filesystem::path& path) {
  Result<void> written;
  run([&](const std::shared_ptr<TrainerProgram>& program) {
    auto trainer = make_process_trainer(program, std::string(custom_prefix));
    written = trainer ? fl::write_initial_weights(**trainer, seed, path) : trainer.error();
  });
  if (written) return {};
  return written.error().at("no initial weights (--initial-weights FILE would give them)");
}

}  // namespace fl::sim
