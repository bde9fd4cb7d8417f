// SPDX-License-Identifier: Apache-2.0
// The ranks of a site that compute together: blocking collectives of one group over c10d, with Gloo
// on CPUs or NCCL on GPUs. Each wait of a call ends within the group's timeout. All ranks of a
// group make the same calls in the same order, with tensors of the same sizes; Gloo ends the whole
// process when sizes differ, so compare layouts before the first collective. One thread at a time
// makes calls.
//
// The group is neither encrypted nor authenticated (the Gloo of the torch wheel can do neither):
// its network must be trusted, and the interface named.
#pragma once

#include "client/site/abort_switch.hpp"
#include "client/site/rank/call_order.hpp"
#include "client/site/rank/guarded_calls.hpp"
#include "client/site/rank/near_sums.hpp"
#include "client/site/rank/sent_bytes.hpp"

#include <torch/types.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace fl::site {

/// A tensor that goes to another rank or comes from it: contiguous, of the same number of bytes at
/// both ends.
struct Transfer {
  int rank = 0;
  torch::Tensor tensor;
};

/// A rank makes all transfers of a step at the same time, in any order: no rank waits for another
/// one that waits for it.
struct Step {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  /// If given, received(i) is called when receives[i] has arrived. The calls are in the order of
  /// the receives; later ones may still be on their way.
  std::function<void(std::size_t)> received = {};
};

struct RankOptions;

/// All functions throw RankFailure, on every rank that notices; after that each throws at once.
/// Tensors are contiguous and on the group's device.
class Ranks {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Store = c10::intrusive_ptr<c10d::Store>;
  /// Makes a group with the same backend over another store.
  using Maker = std::function<std::unique_ptr<Ranks>(Store store, int rank, int size)>;

  /// Use make_gloo_ranks() or make_nccl_ranks(). `group` has one backend, for `device`.
  Ranks(Group group, torch::Device device, Store store, const RankOptions& options, Maker maker);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  [[nodiscard]] int rank() const { return group_->getRank(); }
  [[nodiscard]] int size() const { return group_->getSize(); }
  [[nodiscard]] torch::Device device() const { return device_; }

  /// Sums over the ranks, in place, with the backend's own algorithm. All ranks get the same bits.
  /// Sums of integers are exact. Floats are rounded at each hop, in an order that depends on the
  /// place in the vector.
  void sum(torch::Tensor& values);
  [[nodiscard]] std::int64_t sum(std::int64_t value);
  /// Gives the values of rank `root` to all ranks.
  void broadcast(torch::Tensor& values, int root);
  /// Gathers `in` [n, …] of all ranks, in the order of the ranks, into `out` [size, n, …].
  void all_gather(torch::Tensor& out, const torch::Tensor& in);
  /// Sends in_rows[r] rows of `in` to rank r and receives out_rows[r] rows of `out` from it, in the
  /// order of the ranks. A row is an element of the first dimension. Rank s has in_rows[r] equal to
  /// out_rows[s] of rank r.
  void all_to_all(torch::Tensor& out, const torch::Tensor& in, std::vector<std::int64_t> out_rows,
                  std::vector<std::int64_t> in_rows);
  /// Returns when all ranks have called it.
  void barrier();

  enum class Way { send, receive };
  /// A transfer that goes on while this rank does something else.
  struct Posted {
    c10::intrusive_ptr<c10d::Work> work;
    Transfer transfer;
    Way way = Way::send;
  };
  /// Begins a transfer, which meets the one of the same number `tag` at the other end. Call
  /// finish(), which waits at most `times` as long as other calls do; until then the tensor must
  /// not change. A group has either such transfers or exchange() between two ranks.
  [[nodiscard]] Posted post(Way way, const Transfer& transfer, int tag);
  void finish(Posted& posted, int times);
  /// Takes steps one after the other; what a step sends may depend on what earlier steps received.
  /// The n-th send to a rank meets the n-th receive of that rank from this one. Empty tensors are
  /// skipped at both ends. Over Gloo all receives are started at once. So a tensor into which a
  /// later step receives may be used before only if the sender can't send until that use is over.
  void exchange(std::span<const Step> steps);
  /// Takes one step.
  void exchange(std::span<const Transfer> sends, std::span<const Transfer> receives);

  /// Makes the mean over the ranks in place, with the same bits in each run. Each rank adds up a
  /// part of the vector in rank order ((x0 + x1) + x2 …, in the vector's type), divides by size(),
  /// and all gather the parts. Over Gloo it sends as much as sum(). Flat tensors of floats.
  void mean_in_rank_order(torch::Tensor& values);

  /// Each rank has its part_of() a vector, in place; afterwards all have all parts. Flat.
  void gather_parts(torch::Tensor& values);

  /// Payload bytes that this rank has sent since the group was made, by each collective's formula:
  /// what Gloo's algorithms send, also where values went through memory; for NCCL what a ring
  /// sends. It counts the groups of subgroup(), and neither headers nor calls of others on group().
  [[nodiscard]] std::uint64_t bytes_sent() const { return sent_.all(); }

  /// A call's name, its beginning and end, and the bytes that this rank has sent in it. On a GPU
  /// the call ends for the host before it ends on the device.
  struct Call {
    const char* operation = "";
    std::chrono::steady_clock::time_point begin{};
    std::chrono::steady_clock::time_point end{};
    std::uint64_t bytes = 0;
  };
  using Observer = std::function<void(const Call&)>;
  /// From now on `observer` is called after each call, on its thread; the groups that subgroup()
  /// makes from then on have the same observer.
  void observe(Observer observer) { observer_ = std::move(observer); }

  /// A group of some ranks of this one: members[i] of this group is rank i of the new one. Exactly
  /// the members call this, with the same list and a name that this group has not used before.
  [[nodiscard]] std::unique_ptr<Ranks> subgroup(const std::vector<int>& members,
                                                const std::string& name);

  /// From now on sums of few values go through memory that the ranks share, if all are on one
  /// machine (near_sums.hpp). Their bits are the same. A collective.
  void share_memory();
  /// From now on ranks compare their next call before each collective (CallOrder), so that one that
  /// goes another way is named before others wait for it. All ranks of the group call this.
  void check_order();

  /// For tests and other users of c10d. Whoever starts collectives on it keeps to the same rule:
  /// one thread at a time.
  [[nodiscard]] const Group& group() const { return group_; }

 private:
  class Turn;
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  /// `bytes`: those of a tensor that is as large on all ranks, or 0.
  void run(const char* operation, std::uint64_t bytes, const Start& start);
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;  // An empty tensor has a null.
  [[nodiscard]] c10::intrusive_ptr<c10d::Work> begin(Way way, const Transfer& transfer, int tag);
  Works start(Way way, std::span<const Transfer> transfers, std::vector<int>& tags);
  void exchange_as_one(const Step& step);

  Group group_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  torch::Device device_;
  Store store_;
  std::chrono::milliseconds timeout_;
  Maker maker_;
  GuardedCalls calls_;
  std::atomic<bool> is_busy_ = false;
  SentBytes sent_;
  Observer observer_;
  std::unique_ptr<NearSums> near_;    // Null if all sums go through the backend.
  std::unique_ptr<CallOrder> order_;  // Null: calls are not compared.
};

/// Sends to a rank, or receives from it, as an exchange().
inline void send(Ranks& ranks, const torch::Tensor& values, int to) {
  const Transfer transfer{.rank = to, .tensor = values};
  ranks.exchange({&transfer, 1}, {});
}
inline void receive(Ranks& ranks, const torch::Tensor& values, int from) {
  const Transfer transfer{.rank = from, .tensor = values};
  ranks.exchange({}, {&transfer, 1});
}

/// Calls call(there) with the values on the group's device, where they may not be, and copies back
/// what the call made of them.
template <class Call>
void on_device_of(const Ranks& ranks, torch::Tensor& values, const Call& call) {
  torch::Tensor there = values.to(ranks.device());  // No copy if they are there.
  call(there);
  if (!there.is_same(values)) values.copy_(there);
}

struct RankOptions {
  /// The time limit of each call, and of making the group.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Gloo's network interface, such as "eth0".
  std::string interface = {};
  /// Without an interface, the address of this machine at which Gloo listens. If it is empty too,
  /// Gloo takes the address that this host's name has, or loopback.
  std::string address = {};
  /// Whether Gloo's groups and their subgroups call Ranks::share_memory().
  bool shares_memory = false;
  /// Whether groups and their subgroups call Ranks::check_order().
  bool checks_order = false;
  /// Ends the calls of groups and their subgroups, from any thread; null: nobody does.
  std::shared_ptr<AbortSwitch> abort = {};
};

/// A group of `size` ranks that meet at `store`, over Gloo, for tensors on the CPU. Throws
/// RankFailure when not all of them come in time.
[[nodiscard]] std::unique_ptr<Ranks> make_gloo_ranks(Ranks::Store store, int rank, int size,
                                                     const RankOptions& options = {});

/// A variable that libtorch's part of NCCL reads when a group is made.
struct NcclVariable {
  const char* name;
  std::string value;
  bool overwrites;  // Set it even if the user has: another value could end the process.
};
/// The variables for groups whose calls end within this time.
[[nodiscard]] std::vector<NcclVariable> nccl_variables(std::chrono::milliseconds timeout);

/// A group over NCCL, for tensors on the CUDA device of that number, with a non-blocking
/// communicator that is aborted at a failure. Sets nccl_variables() for the process, so that no
/// watchdog ends it. Throws RankFailure in a build without NCCL.
[[nodiscard]] std::unique_ptr<Ranks> make_nccl_ranks(Ranks::Store store, int rank, int size,
                                                     int device, const RankOptions& options = {});
[[nodiscard]] bool has_nccl();
/// The version of NCCL that this program is linked with, such as "2.28.9"; "" without NCCL.
[[nodiscard]] std::string nccl_version();

}  // namespace fl::site
