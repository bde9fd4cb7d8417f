// SPDX-License-Identifier: Apache-2.0
// How the calls of a group end when the agent says that a rank is lost: over Gloo, and with a
// backend that behaves as NCCL's does.
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fl::test {

using namespace fl::site;
namespace {

using namespace std::chrono_literals;

/// Work on a device that is a thread of the test.
class FakeWork final : public c10d::Work {
 public:
  bool isCompleted() override {
    if (++looks > looks_at_once) {
      while (!is_done) std::this_thread::yield();
    }
    return is_done;
  }
  bool wait(std::chrono::milliseconds) override {
    ++waits;
    return true;
  }
  void synchronize() override { ++synchronized; }

  int looks_at_once = 1 << 30;  // Later ones return when the work is done.
  std::atomic<bool> is_done = false;
  std::atomic<int> looks = 0;
  std::atomic<int> waits = 0;
  std::atomic<int> synchronized = 0;
};

/// Has NCCL's name and ways: transfers go as one group, and an abort ends a kernel as if it had
/// done its work.
class FakeNccl final : public c10d::Backend {
 public:
  FakeNccl() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { ++open; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    --open;
    if (end_throws) throw std::runtime_error("the end of the group fails too");
    return work;
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return work;
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override {
    if (send_throws) throw std::runtime_error("no connection");
    return work;
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override { return work; }
  void abort() override {
    ++aborts;
    open_at_abort += open;
    work->is_done = true;
    if (abort_throws) throw std::runtime_error("the abort took too long");
  }

  c10::intrusive_ptr<FakeWork> work = c10::make_intrusive<FakeWork>();
  std::atomic<int> aborts = 0;
  int open = 0;
  int open_at_abort = 0;
  bool send_throws = false;
  bool end_throws = false;
  bool abort_throws = false;
};

/// A group of two over the backend; this is rank 0.
std::unique_ptr<Ranks> ranks_over(const c10::intrusive_ptr<FakeNccl>& backend,
                                  const RankOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::intrusive_ptr<c10d::Backend>(backend));
  return std::make_unique<Ranks>(std::move(group), torch::Device(torch::kCPU), store, options,
                                 Ranks::Maker());
}

/// The text of the RankFailure that the call ends with; "" if it ends well.
std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const RankFailure& failure) {
    return failure.what();
  }
  return "";
}

void exchange_ones(Ranks& ranks) {
  const Transfer transfer{.rank = 1, .tensor = torch::ones({3})};
  ranks.exchange({&transfer, 1}, {&transfer, 1});
}

}  // namespace

TEST_CASE("the end of work on a device is looked for, without libtorch's sleeps") {
  const auto backend = c10::make_intrusive<FakeNccl>();
  const auto ranks = ranks_over(backend, {.timeout = 60s});
  std::thread device([&] {
    while (backend->work->looks < 3) std::this_thread::yield();
    backend->work->is_done = true;
  });
  torch::Tensor values = torch::ones({3});
  ranks->sum(values);
  device.join();
  CHECK(backend->work->looks > 3);
  CHECK(backend->work->waits == 0);
  CHECK(backend->work->synchronized == 1);  // So later work on the device waits for the sum.
}

TEST_CASE("work on a device that does not end is a lost rank, also if the abort fails") {
  for (const bool abort_throws : {false, true}) {
    CAPTURE(abort_throws);
    const auto backend = c10::make_intrusive<FakeNccl>();
    backend->abort_throws = abort_throws;
    const auto ranks = ranks_over(backend, {.timeout = 50ms});
    torch::Tensor values = torch::ones({3});
    CHECK(failure_of([&] { ranks->sum(values); }) == "sum failed: no end within 50ms");
    CHECK(backend->aborts == 1);
    CHECK(failure_of([&] { ranks->sum(values); }) == "sum failed: the group failed before");
  }
}

TEST_CASE("a group of transfers is closed on every way out, before the abort") {
  for (const bool end_throws : {false, true}) {
    for (const bool send_throws : {false, true}) {
      CAPTURE(end_throws);
      CAPTURE(send_throws);
      const auto backend = c10::make_intrusive<FakeNccl>();
      backend->work->is_done = true;
      backend->end_throws = end_throws;
      backend->send_throws = send_throws;
      const auto ranks = ranks_over(backend, {.timeout = 60s});
      const std::string failure = failure_of([&] { exchange_ones(*ranks); });
      CHECK(failure == (send_throws  ? "exchange failed: no connection"
                        : end_throws ? "exchange failed: the end of the group fails too"
                                     : ""));
      CHECK(backend->open == 0);
      CHECK(backend->open_at_abort == 0);
      CHECK(backend->aborts == (failure.empty() ? 0 : 1));
      CHECK(ranks->bytes_sent() == (failure.empty() ? 12 : 0));
    }
  }
}

TEST_CASE("work that an abort ends is no result, though the device says that it is done") {
  const auto backend = c10::make_intrusive<FakeNccl>();
  const auto abort = std::make_shared<AbortSwitch>();
  abort->begin(1);
  // So the first thing that the rank sees of the abort is that the work is done.
  backend->work->looks_at_once = 2;
  const auto ranks = ranks_over(backend, {.timeout = 60s, .abort = abort});
  std::thread link([&] {
    while (backend->work->looks < 3) std::this_thread::yield();
    abort->abort(1, "rank 1 is lost");
  });
  torch::Tensor values = torch::ones({3});
  CHECK(failure_of([&] { ranks->sum(values); }) == "sum failed: rank 1 is lost");
  link.join();
  CHECK(backend->aborts >= 1);
  CHECK(failure_of([&] { exchange_ones(*ranks); }) == "exchange failed: the group failed before");
}

TEST_CASE("a group that is made after the abort fails at its first call") {
  const auto backend = c10::make_intrusive<FakeNccl>();
  const auto abort = std::make_shared<AbortSwitch>();
  abort->abort(1, "rank 1 is lost");
  abort->begin(1);
  const auto ranks = ranks_over(backend, {.timeout = 60s, .abort = abort});
  CHECK(backend->aborts == 1);
  torch::Tensor values = torch::ones({3});
  CHECK(failure_of([&] { ranks->sum(values); }) == "sum failed: rank 1 is lost");
}

TEST_CASE("whatever ranks wait for over Gloo, an abort ends it, in groups of groups too") {
  const std::map<std::string, std::function<void(Ranks&)>> calls = {
      {"sum",
       [](Ranks& ranks) {
         torch::Tensor values = torch::ones({100'000});
         ranks.sum(values);
       }},
      {"sum through memory", [](Ranks& ranks) { (void)ranks.sum(1); }},
      {"broadcast",
       [](Ranks& ranks) {
         torch::Tensor values = torch::ones({1000});
         ranks.broadcast(values, 1);
       }},
      {"all-gather",
       [](Ranks& ranks) {
         torch::Tensor all = torch::empty({3, 1000});
         ranks.all_gather(all, torch::ones({1000}));
       }},
      {"all-to-all",
       [](Ranks& ranks) {
         torch::Tensor all = torch::empty({3, 10});
         ranks.all_to_all(all, torch::ones({3, 10}), {1, 1, 1}, {1, 1, 1});
       }},
      {"barrier", [](Ranks& ranks) { ranks.barrier(); }},
      {"send", [](Ranks& ranks) { send(ranks, torch::ones({10}), 1); }},
      {"receive", [](Ranks& ranks) { receive(ranks, torch::ones({10}), 1); }},
      {"posted",
       [](Ranks& ranks) {
         auto posted = ranks.post(Ranks::Way::receive, {1, torch::ones({10})}, 0);
         ranks.finish(posted, 3);
       }},
      {"subgroup",
       [](Ranks& ranks) {
         ranks.subgroup({0, 1, 2}, "again")->barrier();
       }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    std::atomic<int> waiting = 0;
    std::atomic<int> ended = 0;
    std::atomic<int> right = 0;
    std::vector<std::shared_ptr<AbortSwitch>> switches(3);
    for (auto& one : switches) one = std::make_shared<AbortSwitch>();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        RankOptions options = loopback(120s);
        options.shares_memory = true;
        options.abort = switches[static_cast<std::size_t>(rank)];
        options.abort->begin(5);
        const auto ranks = make_gloo_ranks(store, rank, 3, options);
        if (rank == 1) {  // It hangs: its connections stay.
          const auto again = name == "subgroup" ? ranks->subgroup({0, 1, 2}, "again") : nullptr;
          while (ended < 2) std::this_thread::sleep_for(5ms);
          return;
        }
        ++waiting;
        const std::string failure = failure_of([&] { call(*ranks); });
        right += failure.ends_with("rank 1 is lost");
        ++ended;
      });
    }
    while (waiting < 2) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(100ms);
    switches[0]->abort(5, "rank 1 is lost");
    switches[2]->abort(5, "rank 1 is lost");
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 2);
    CHECK(std::chrono::steady_clock::now() - begin < 60s);  // And not the time limit.
  }
}

}  // namespace fl::test
