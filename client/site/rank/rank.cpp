// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/rank.hpp"

#include "client/learn/torch/torch_trainer.hpp"
#include "client/site/rank/hub_store.hpp"
#include "client/site/shared_values.hpp"
#include "shared/base/async/parallel.hpp"

#include <fmt/format.h>
#include <torch/cuda.h>

#include <unistd.h>
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace fl {

using nlohmann::json;

namespace {

/// The options of one of `place.local_size` ranks that share a machine.
LearnOptions share_machine(LearnOptions learn, const SitePlace& place) {
  learn.threads = std::max(1, threads_for(learn.threads) / place.local_size);
  if (learn.device != "cpu" && torch::cuda::is_available())
    learn.device = fmt::format("cuda:{}", place.local_rank);
  const auto ranks = static_cast<std::uint64_t>(place.local_size);
  if (learn.data_memory_bytes == 0) {
    const auto memory = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    learn.data_memory_bytes = memory / 4;
  }
  learn.data_memory_bytes = std::max<std::uint64_t>(1, learn.data_memory_bytes / ranks);
  return learn;
}

/// A vector that rank 0 has in a file and the others in memory.
struct Vector {
  SharedValues shared;
  std::vector<float> own;
  [[nodiscard]] std::span<float> values() { return own.empty() ? shared.values() : own; }
};

Result<Vector> open_or_make(const std::string& path, std::size_t elements) {
  Vector vector;
  if (path.empty()) {
    vector.own.resize(elements);
  } else {
    FL_TRY(vector.shared, SharedValues::open(path, elements));
  }
  return vector;
}

/// Turns an exception of libtorch or of another rank's loss into an error.
template <class Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const SyncFailure& error) {
    return Error(Errc::unavailable, error.what());
  } catch (const std::exception& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what()));
  }
}

}  // namespace

Result<void> Rank::run() {
  for (;;) {
    const auto request = link_.next();
    if (!request && request.error().code() == Errc::cancelled) return {};
    if (!request) return request.error();
    auto answered = answer(*request);
    // Those who wait for this rank hear of it by the loss of its connections.
    if (!answered) leave_group();
    link_.answer(std::move(answered));
  }
}

Result<json> Rank::answer(const json& request) {
  const std::string type = member_text(request, "type");
  if (type == "load") {
    FL_TRY(LearnOptions learn, parse_as<LearnOptions>(request.value("learn", json())));
    return load(std::move(learn));
  }
  if (type == "group") {
    FL_TRY(const auto group, parse_as<GroupOptions>(request.value("group", json())));
    return guarded([&] { return enter(group); });
  }
  FL_TRY(const RankWork work, parse_as<RankWork>(request.value("work", json())));
  FL_CHECK(check_ready());
  trainer_->enter_run(work.run);
  if (type == "train") return guarded([&] { return train(work); });
  if (type == "evaluate") return evaluate(work);
  if (type == "gradient") return gradient(work);
  return Error(Errc::protocol, fmt::format("the agent asks for '{}'", type));
}

Result<json> Rank::load(LearnOptions learn) {
  const std::string model = learn.model;
  learn.model.clear();
  const std::string key = json_text(to_json_of(learn));
  if (key != data_key_) {
    trainer_.reset();
    model_.clear();
    FL_TRY(data_, load_local_data(learn));
    data_key_ = key;
  }
  RankLoaded loaded;
  loaded.train = data_.train.size();
  loaded.holdout = data_.holdout.size();
  if (model.empty()) return to_json_of(loaded);
  if (model != model_ || !trainer_) {
    leave_group();
    trainer_.reset();
    learn.model = model;
    FL_TRY(trainer_,
           make_torch_trainer(share_machine(std::move(learn), place_), data_, &together_));
    model_ = model;
  }
  loaded.layout = trainer_->layout().digest().hex();
  loaded.train = trainer_->train_examples();
  loaded.holdout = trainer_->holdout_examples();
  loaded.summaries = trainer_->summaries();
  return to_json_of(loaded);
}

Result<json> Rank::enter(const GroupOptions& group) {
  leave_group();
  RankOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1000));
  options.interface = group.interface;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group {}", group.generation), make_hub_store(link_));
  const bool is_nccl = group.backend == "nccl" ||
                       (group.backend == "auto" && has_nccl() && torch::cuda::is_available());
  ranks_ = is_nccl ? make_nccl_ranks(store, group.rank, group.size, place_.local_rank, options)
                   : make_gloo_ranks(store, group.rank, group.size, options);
  DataParallelOptions parallel;
  parallel.hook = group.hook;
  if (group.bucket_mb > 0)
    parallel.bucket_bytes = static_cast<std::size_t>(group.bucket_mb * (1 << 20));
  together_.enter(ranks_, parallel);
  return json::object();
}

void Rank::leave_group() {
  together_.enter(nullptr, {});
  ranks_.reset();
}

Result<void> Rank::check_ready() const {
  if (!trainer_ || !ranks_) return Error(Errc::unavailable, "this rank is in no group");
  return {};
}

Result<json> Rank::train(const RankWork& work) {
  const std::size_t elements = trainer_->layout().elements();
  const auto shared = [this](Vector& vector) {
    torch::Tensor values =
        torch::from_blob(vector.values().data(),
                         {static_cast<std::int64_t>(vector.values().size())}, torch::kFloat32);
    torch::Tensor moved = values.to(ranks_->device());
    ranks_->broadcast(moved, 0);
    if (ranks_->rank() > 0) values.copy_(moved);
  };
  FL_TRY(Vector weights, open_or_make(work.files.weights, elements));
  shared(weights);
  Vector correction;
  if (work.has_correction) {
    FL_TRY(correction, open_or_make(work.files.correction, elements));
    shared(correction);
  }
  FL_TRY(Vector update, open_or_make(work.files.result, elements));
  FL_TRY(const TrainReport report,
         trainer_->train(weights.values(), work.settings, correction.values(), update.values(),
                         link_.stop_token()));
  return to_json_of(report);
}

Result<json> Rank::evaluate(const RankWork& work) {
  FL_TRY(const auto weights, SharedValues::open(work.files.weights, trainer_->layout().elements()));
  FL_TRY(const EvalReport report, trainer_->evaluate(weights.values(), link_.stop_token()));
  return to_json_of(report);
}

Result<json> Rank::gradient(const RankWork& work) {
  const std::size_t elements = trainer_->layout().elements();
  FL_TRY(const auto weights, SharedValues::open(work.files.weights, elements));
  FL_TRY(const auto result, SharedValues::open(work.files.result, elements));
  FL_CHECK(
      trainer_->gradient(weights.values(), work.settings, result.values(), link_.stop_token()));
  return json::object();
}

}  // namespace fl
