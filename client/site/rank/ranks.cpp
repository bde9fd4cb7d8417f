// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/ranks.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace fl::site {

namespace {

const char* name_of(Ranks::Way way) { return way == Ranks::Way::send ? "send" : "receive"; }

std::uint64_t bytes_of(const torch::Tensor& values) {
  return static_cast<std::uint64_t>(values.nbytes());
}

/// How many ranks get the values from this one in a broadcast: Gloo's is a binomial tree, NCCL's
/// goes along the ring.
int children_of(int rank, int size, int root, bool is_ring) {
  const int place = (rank + size - root) % size;
  if (is_ring) return place + 1 < size ? 1 : 0;
  int count = 0;
  for (int bit = 1; bit < size; bit *= 2)
    if (place < bit && place + bit < size) ++count;
  return count;
}

/// NCCL's group of calls that begin as one. It is closed on every way out: what is left open takes
/// the calls of all groups of this thread into it, and none of them begins.
class GroupCall {
 public:
  explicit GroupCall(c10d::Backend& backend) : backend_(backend) { backend_.startCoalescing(); }
  ~GroupCall() {
    if (!is_open_) return;
    try {
      (void)backend_.endCoalescing();
    } catch (const std::exception&) {
      // The error that ends the call here comes first.
    }
  }
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  [[nodiscard]] c10::intrusive_ptr<c10d::Work> end() {
    is_open_ = false;
    return backend_.endCoalescing();
  }

 private:
  c10d::Backend& backend_;
  bool is_open_ = true;
};

}  // namespace

/// Stands for one call. Asserts that no other thread is inside one, and tells the observer at the
/// call's end.
class Ranks::Turn {
 public:
  Turn(Ranks& ranks, const char* operation)
      : ranks_(ranks), operation_(operation), sent_(ranks.sent_.own()) {
    FL_ASSERT(!ranks.is_busy_.exchange(true));
  }
  ~Turn() {
    ranks_.is_busy_ = false;
    tell();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Tells the observer of a part that is over; the rest counts as another call.
  void tell() {
    const auto now = std::chrono::steady_clock::now();
    if (ranks_.observer_) ranks_.observer_({operation_, begin_, now, ranks_.sent_.own() - sent_});
    begin_ = now;
    sent_ = ranks_.sent_.own();
  }

 private:
  Ranks& ranks_;
  const char* operation_;
  std::uint64_t sent_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Ranks::Ranks(Group group, torch::Device device, Store store, const RankOptions& options,
             Maker maker)
    : group_(std::move(group)),
      backend_(group_->getBackend(device.type())),
      device_(device),
      store_(std::move(store)),
      timeout_(options.timeout),
      maker_(std::move(maker)),
      calls_(backend_, options.timeout, options.abort) {}

Ranks::~Ranks() = default;

void Ranks::run(const char* operation, std::uint64_t bytes, const Start& start) {
  calls_.run(operation, -1, [&] {
    if (order_) order_->check(operation, bytes);
    calls_.await(*start());
  });
}

void Ranks::check_order() {
  order_ = std::make_unique<CallOrder>(backend_, device_, timeout_,
                                       [this](c10d::Work& work) { calls_.await(work); });
}

void Ranks::sum(torch::Tensor& values) {
  FL_ASSERT(values.is_contiguous());
  if (size() == 1 || values.numel() == 0) return;
  const Turn turn(*this, "sum");
  if (near_ && near_->takes(values)) {
    calls_.run("sum", -1, [&] {
      if (order_) order_->check("sum", bytes_of(values));
      near_->sum(values, timeout_, [this] { calls_.check_aborted(); });
    });
  } else {
    run("sum", bytes_of(values), [&] {
      std::vector<at::Tensor> tensors = {values};
      return backend_->allreduce(tensors, {.timeout = timeout_});
    });
  }
  sent_.add(2 * bytes_of(values) * (size() - 1) / size());
}

std::int64_t Ranks::sum(std::int64_t value) {
  torch::Tensor values = torch::tensor({value}, torch::kInt64).to(device_);
  sum(values);
  return values.item<std::int64_t>();
}

void Ranks::broadcast(torch::Tensor& values, int root) {
  FL_ASSERT(values.is_contiguous() && root >= 0 && root < size());
  if (size() == 1 || values.numel() == 0) return;
  const Turn turn(*this, "broadcast");
  run("broadcast", bytes_of(values), [&] {
    std::vector<at::Tensor> tensors = {values};
    return backend_->broadcast(tensors, {.rootRank = root, .timeout = timeout_});
  });
  sent_.add(bytes_of(values) * children_of(rank(), size(), root, device_.is_cuda()));
}

void Ranks::all_gather(torch::Tensor& out, const torch::Tensor& in) {
  FL_ASSERT(in.is_contiguous() && out.is_contiguous() && out.numel() == in.numel() * size());
  if (in.numel() == 0) return;
  const Turn turn(*this, "all-gather");
  run("all-gather", bytes_of(in), [&] {
    torch::Tensor to = out.flatten();
    torch::Tensor from = in.flatten();
    return backend_->_allgather_base(to, from, {.timeout = timeout_});
  });
  sent_.add(bytes_of(in) * (size() - 1));
}

void Ranks::all_to_all(torch::Tensor& out, const torch::Tensor& in,
                       std::vector<std::int64_t> out_rows, std::vector<std::int64_t> in_rows) {
  FL_ASSERT(in.is_contiguous() && out.is_contiguous());
  FL_ASSERT(std::cmp_equal(out_rows.size(), size()) && std::cmp_equal(in_rows.size(), size()));
  const std::int64_t rows = in.size(0);
  const std::int64_t sent = rows - in_rows[static_cast<size_t>(rank())];
  const Turn turn(*this, "all-to-all");
  run("all-to-all", 0, [&] {
    torch::Tensor from = in;
    return backend_->alltoall_base(out, from, out_rows, in_rows, {.timeout = timeout_});
  });
  if (rows > 0) sent_.add(bytes_of(in) / rows * sent);
}

void Ranks::barrier() {
  const Turn turn(*this, "barrier");
  run("barrier", 0, [&] {
    c10d::BarrierOptions options;
    options.timeout = timeout_;
    return backend_->barrier(options);
  });
}

Ranks::Posted Ranks::post(Way way, const Transfer& transfer, int tag) {
  FL_ASSERT(transfer.tensor.is_contiguous() && transfer.rank != rank());
  Posted posted{.work = {}, .transfer = transfer, .way = way};
  if (transfer.tensor.numel() == 0) return posted;
  calls_.run(name_of(way), transfer.rank, [&] { posted.work = begin(way, transfer, tag); });
  return posted;
}

c10::intrusive_ptr<c10d::Work> Ranks::begin(Way way, const Transfer& transfer, int tag) {
  std::vector<at::Tensor> tensors = {transfer.tensor};
  return way == Way::send ? backend_->send(tensors, transfer.rank, tag)
                          : backend_->recv(tensors, transfer.rank, tag);
}

void Ranks::finish(Posted& posted, int times) {
  if (!posted.work) return;
  const Turn turn(*this, name_of(posted.way));
  calls_.run(name_of(posted.way), posted.transfer.rank, [&] { calls_.await(*posted.work, times); });
  if (posted.way == Way::send) sent_.add(bytes_of(posted.transfer.tensor));
}

/// `tags` counts the transfers that were started with each rank in that direction.
Ranks::Works Ranks::start(Way way, std::span<const Transfer> transfers, std::vector<int>& tags) {
  Works started;
  for (const Transfer& transfer : transfers) {
    const bool is_empty = transfer.tensor.numel() == 0;
    const int tag = is_empty ? 0 : tags.at(static_cast<size_t>(transfer.rank))++;
    started.push_back(post(way, transfer, tag).work);
    if (way == Way::send) sent_.add(bytes_of(transfer.tensor));
  }
  return started;
}

/// Starts transfers over NCCL as one group: one by one they would block. Empty ones are left out.
/// NCCL has no tags.
void Ranks::exchange_as_one(const Step& step) {
  const auto is_empty = [](const Transfer& transfer) { return transfer.tensor.numel() == 0; };
  if (std::ranges::all_of(step.sends, is_empty) && std::ranges::all_of(step.receives, is_empty))
    return;
  calls_.run("exchange", -1, [&] {
    GroupCall call(*backend_);
    for (const Transfer& transfer : step.receives)
      if (!is_empty(transfer)) (void)begin(Way::receive, transfer, 0);
    for (const Transfer& transfer : step.sends)
      if (!is_empty(transfer)) (void)begin(Way::send, transfer, 0);
    calls_.await(*call.end());
  });
  for (const Transfer& transfer : step.sends) sent_.add(bytes_of(transfer.tensor));
}

void Ranks::exchange(std::span<const Step> steps) {
  Turn turn(*this, "exchange");
  std::vector<int> sent(static_cast<size_t>(size()));
  std::vector<int> expected(static_cast<size_t>(size()));
  const bool is_as_one = backend_->supportsCoalescing();
  std::vector<Works> in(steps.size());
  // Gloo sends nothing until the other end has said that it receives. When that message arrives
  // while this thread sends, Gloo's own thread wakes up and spins for the lock that this one holds,
  // for a time slice if both are on one core. Receives that were started early avoid most of that.
  for (std::size_t i = 0; i < steps.size() && !is_as_one; ++i)
    in[i] = start(Way::receive, steps[i].receives, expected);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    Works out;
    if (is_as_one) {
      exchange_as_one(step);
      in[i].resize(step.receives.size());
    } else {
      out = start(Way::send, step.sends, sent);
    }
    for (std::size_t j = 0; j < in[i].size(); ++j) {
      if (in[i][j]) calls_.run("exchange", step.receives[j].rank, [&] { calls_.await(*in[i][j]); });
      if (step.received) step.received(j);
    }
    for (std::size_t j = 0; j < out.size(); ++j)
      if (out[j]) calls_.run("exchange", step.sends[j].rank, [&] { calls_.await(*out[j]); });
    if (i + 1 < steps.size()) turn.tell();
  }
}

void Ranks::exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  const Step step{.sends = {sends.begin(), sends.end()},
                  .receives = {receives.begin(), receives.end()}};
  exchange({&step, 1});
}

void Ranks::mean_in_rank_order(torch::Tensor& values) {
  FL_ASSERT(values.is_contiguous() && values.dim() == 1);
  const std::int64_t length = values.numel();
  const std::int64_t part = (length + size() - 1) / size();
  std::vector<std::int64_t> lengths;  // lengths[r]: elements of the part that rank r adds up.
  for (int i = 0; i < size(); ++i) lengths.push_back(std::clamp(length - i * part, 0L, part));
  const std::int64_t own = lengths[static_cast<size_t>(rank())];

  torch::Tensor all = torch::empty({size(), part}, values.options());
  torch::Tensor received = all.flatten().narrow(0, 0, size() * own);
  all_to_all(received, values, std::vector<std::int64_t>(static_cast<size_t>(size()), own),
             lengths);
  torch::Tensor mean = torch::zeros({part}, values.options());
  torch::Tensor sums = mean.narrow(0, 0, own);
  for (int i = 0; i < size(); ++i) {
    const torch::Tensor addend = received.narrow(0, i * own, own);
    if (i == 0)
      sums.copy_(addend);
    else
      sums.add_(addend);
  }
  sums.div_(size());
  all_gather(all, mean);
  values.copy_(all.flatten().narrow(0, 0, length));
}

void Ranks::gather_parts(torch::Tensor& values) {
  FL_ASSERT(values.is_contiguous() && values.dim() == 1);
  const auto part = [&](int rank) {
    const RankPart its = part_of(values.numel(), rank, size());
    return values.narrow(0, its.begin, its.end - its.begin);
  };
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    sends.push_back({.rank = other, .tensor = part(rank())});
    receives.push_back({.rank = other, .tensor = part(other)});
  }
  exchange(sends, receives);
}

void Ranks::share_memory() {
  near_ =
      NearSums::make(*store_, rank(), size(), [this](std::int64_t value) { return sum(value); });
}

std::unique_ptr<Ranks> Ranks::subgroup(const std::vector<int>& members, const std::string& name) {
  const auto place = std::ranges::find(members, rank());
  FL_ASSERT(place != members.end());
  auto group = maker_(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                      static_cast<int>(place - members.begin()), static_cast<int>(members.size()));
  group->observe(observer_);
  group->sent_.count_in(sent_);
  return group;
}

}  // namespace fl::site
