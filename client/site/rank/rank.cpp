// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/rank.hpp"

#include "client/learn/data/fit.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "client/learn/process/json_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "client/learn/torch/guarded.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "client/site/rank/hub_store.hpp"
#include "client/site/rank/own_gpu.hpp"
#include "client/site/rank/rank_facts.hpp"
#include "client/site/rank/work_vectors.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

/// Options for one of the `place.local_size` ranks that share a machine.
LearnOptions share_machine(LearnOptions learn, const SitePlace& place) {
  learn.threads =
      learn.threads > 0 ? std::max(1, learn.threads / place.local_size) : cores_of(place);
  if (const auto gpu = gpu_of(learn.device, place)) learn.device = fmt::format("cuda:{}", *gpu);
  const auto ranks = static_cast<std::uint64_t>(place.local_size);
  if (learn.data_memory_bytes == 0) learn.data_memory_bytes = data_memory_default();
  learn.data_memory_bytes = std::max<std::uint64_t>(1, learn.data_memory_bytes / ranks);
  return learn;
}

/// Whether this program and this machine have what --backend asks for.
Result<void> check_backend(const std::string& backend, const std::string& device) {
  if (backend != "nccl") return {};
  if (!has_nccl())
    return Error(Errc::invalid_input,
                 "--backend nccl: this fl-rank was built without NCCL; use gloo, or build it with "
                 "FL_TORCH_CUDA=1 where nccl.h is installed");
  if (!torch::cuda::is_available())
    return Error(Errc::invalid_input,
                 "--backend nccl: libtorch finds no GPU on this machine; use gloo");
  if (device == "cpu")
    return Error(Errc::invalid_input,
                 "--backend nccl sums between GPUs; with --device cpu use gloo");
  return {};
}

/// By which flags ranks share a step, in words, as far as these are not the usual ones.
std::string setup_of(const ParallelSettings& settings) {
  const ParallelSettings usual;
  std::string setup;
  if (settings.zero != usual.zero) setup += fmt::format(", zero {}", settings.zero);
  if (settings.tp != usual.tp) setup += fmt::format(", tp {}", settings.tp);
  if (settings.sequence_parallel) setup += ", sequence parallel";
  if (settings.cp != usual.cp)
    setup += fmt::format(", cp {} {}", settings.cp, settings.context_parallel);
  if (settings.ep != usual.ep)
    setup += fmt::format(", ep {} {}", settings.ep, settings.expert_parallel);
  if (settings.pp != usual.pp) setup += fmt::format(", pp {} {}", settings.pp, settings.pipeline);
  if (settings.hook != usual.hook) setup += fmt::format(", hook {}", settings.hook);
  if (settings.topology != usual.topology) setup += fmt::format(", topology {}", settings.topology);
  return setup;
}

}  // namespace

Rank::Rank(RankLink& link, SitePlace place) : link_(link), place_(std::move(place)) {
  torch::set_num_threads(cores_of(place_));
}

Result<void> Rank::run() {
  for (;;) {
    const auto request = link_.next();
    if (!request && request.error().code() == Errc::cancelled) return {};
    if (!request) return request.error();
    auto answered = answer(*request);
    // Ranks that wait for this one notice the loss of its connections.
    if (!answered && parallel_) parallel_->leave();
    link_.answer(std::move(answered));
  }
}

Result<json> Rank::answer(const json& request) {
  const std::string type = member_text(request, "type");
  if (type == "load") {
    FL_TRY(LearnOptions learn, parse_as<LearnOptions>(request.value("learn", json())));
    FL_CHECK(choose_parallel(request));
    FL_CHECK(check_backend(member_text(request, "backend"), learn.device));
    link_.count_computing(true);
    auto loaded = guarded([&] { return load(std::move(learn)); });
    link_.count_computing(false);
    return loaded;
  }
  if (type == "group") {
    FL_TRY(const auto group, parse_as<GroupOptions>(request.value("group", json())));
    return guarded([&] { return enter(group); });
  }
  if (type == "facts") {
    return guarded([&]() -> Result<json> {
      return json{{"facts", to_json_of(facts_of(place_, device_))}};
    });
  }
  if (type == "measure") {
    if (!parallel_ || !parallel_->has_group())
      return Error(Errc::unavailable, "this rank is in no group");
    return guarded([&]() -> Result<json> {
      return json{{"measured", to_json_of(measure_site(parallel_->ranks()))}};
    });
  }
  FL_TRY(const RankWork work, parse_as<RankWork>(request.value("work", json())));
  FL_CHECK(check_ready());
  trainer_->enter_run(work.run);
  if (type == "train") return guarded([&] { return train(work); });
  if (type == "evaluate") return guarded([&] { return evaluate(work); });
  if (type == "gradient") return guarded([&] { return gradient(work); });
  return Error(Errc::protocol, fmt::format("the agent asks for '{}'", type));
}

/// The first load decides: the settings are the agent's flags, which stay as long as it lives.
Result<void> Rank::choose_parallel(const json& request) {
  if (parallel_) return {};
  FL_TRY(const auto settings, parse_as<ParallelSettings>(request.value("parallel", json())));
  FL_TRY(parallel_, make_parallel(settings, [this] { link_.advance(); }));
  // What stages before this one do is no progress of this rank, and yet it rightly waits.
  parallel_->observe_waiting([this](bool waits) { link_.count_waiting(waits); });
  setup_ = setup_of(settings);
  return {};
}

Result<json> Rank::load(LearnOptions learn) {
  state_ = learn.state;
  device_ = learn.device;
  const std::string model = learn.model;
  learn.model.clear();
  const std::string key = json_text(to_json_of(learn));
  if (key != data_key_ && !learn.data.empty()) {
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
    FL_CHECK(check_gpu(device_, place_));
    parallel_->leave();
    trainer_.reset();
    learn.model = model;
    FL_CHECK(check_values(model, data_));
    FL_TRY(trainer_,
           make_torch_trainer(share_machine(std::move(learn), place_), data_, parallel_.get()));
    model_ = model;
  }
  loaded.layout = trainer_->layout().digest().hex();
  loaded.train = trainer_->train_examples();
  loaded.holdout = trainer_->holdout_examples();
  loaded.summaries = trainer_->summaries();
  return to_json_of(loaded);
}

// Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, and some machines' names
// have no address at all: then it is the address at which agent and rank have met.
std::string Rank::listening_address(const GroupOptions& group) const {
  if (leads_here(host_name())) return "";
  const std::string own = link_.own_address();
  return own.empty() ? group.agent_address : own;
}

Result<json> Rank::enter(const GroupOptions& group) {
  if (!parallel_) return Error(Errc::protocol, "a rank loads before it enters a group");
  parallel_->leave();
  RankOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_s * 1000));
  options.interface = place_.interface;
  options.address = listening_address(group);
  options.shares_memory = true;
  options.checks_order = group.check_calls;
  options.abort = link_.abort_switch();
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group {}", group.generation), make_hub_store(link_));
  const auto gpu = gpu_of(device_, place_);
  const bool is_nccl = group.backend == "nccl" || (group.backend == "auto" && has_nccl() && gpu);
  auto ranks = is_nccl ? make_nccl_ranks(store, group.rank, group.size, gpu.value_or(0), options)
                       : make_gloo_ranks(store, group.rank, group.size, options);
  MeasuredChoices choices = group.measured;
  const std::size_t model_bytes = trainer_ ? trainer_->layout().elements() * sizeof(float) : 0;
  FL_CHECK(parallel_->enter_group(std::move(ranks), group, model_bytes, choices));
  log_info("entered a group of {} ranks, as its rank {}", group.size, group.rank);
  return json{{"measured", choices}};
}

Result<void> Rank::check_ready() const {
  if (trainer_ && parallel_->has_group()) return {};
  return Error(Errc::unavailable, "this rank is in no group");
}

Result<void> Rank::begin_hook(const RankWork& work) {
  if (!kept_) {
    const auto folder = state_ / "ranks";
    FL_CHECK(posix_files().make_folder(folder));
    kept_.emplace(posix_files(), folder, place_.rank);
  }
  FL_TRY(const HookState state, kept_->before(work.run, work.settings.round));
  parallel_->load(state);
  return {};
}

Result<json> Rank::train(const RankWork& work) {
  const TrainSettings& settings = work.settings;
  FL_CHECK(parallel_->check(settings));
  parallel_->times().begin_round(work.has_trace);
  FL_TRY(WorkVectors vectors, WorkVectors::open(work, trainer_->layout(), *parallel_));
  FL_CHECK(begin_hook(work));
  const std::uint64_t sent = parallel_->gradient_bytes();
  FL_TRY(TrainReport report, trainer_->train(vectors.weights(), settings, vectors.correction(),
                                             vectors.result(), link_.stop_token()));
  vectors.bring_result();
  if (const HookState state = parallel_->save(); !state.empty())
    FL_CHECK(kept_->keep(work.run, settings.round, state));
  report.sync = parallel_->times().sums();
  report.sync.ranks = static_cast<std::uint32_t>(parallel_->members());
  report.setup += fmt::format(", {} ranks{}", report.sync.ranks, setup_);
  json answer = to_json_of(report);
  answer["gradient_bytes"] = parallel_->gradient_bytes() - sent;
  if (work.has_trace) answer["spans"] = to_json_of(parallel_->times().take_spans());
  return answer;
}

Result<json> Rank::evaluate(const RankWork& work) {
  FL_TRY(WorkVectors vectors, WorkVectors::open(work, trainer_->layout(), *parallel_));
  FL_TRY(const EvalReport report, trainer_->evaluate(vectors.weights(), link_.stop_token()));
  return to_json_of(report);
}

Result<json> Rank::gradient(const RankWork& work) {
  FL_TRY(WorkVectors vectors, WorkVectors::open(work, trainer_->layout(), *parallel_));
  FL_CHECK(
      trainer_->gradient(vectors.weights(), work.settings, vectors.result(), link_.stop_token()));
  vectors.bring_result();
  return json::object();
}

}  // namespace fl::site
