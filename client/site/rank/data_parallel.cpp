// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/data_parallel.hpp"

#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/units.hpp"
#include "client/site/rank/comm_hook.hpp"
#include "client/site/rank/reducer_group.hpp"
#include "client/site/rank/reduction.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace fl::site {

namespace {

constexpr std::size_t first_bucket_bytes = 1 << 20;  // Small, so that it is ready early.

std::string changed_graph(const char* what) {
  return fmt::format(
      "a parameter {}: --unused-parameters static is for models that use the same parameters in "
      "each step; use find",
      what);
}

}  // namespace

Result<UnusedParameters> parse_unused_parameters(std::string_view text) {
  if (text == "refuse") return UnusedParameters::refuse;
  if (text == "find") return UnusedParameters::find;
  if (text == "static") return UnusedParameters::static_graph;
  return Error(Errc::invalid_input,
               fmt::format("--unused-parameters '{}' is none of refuse, find, static", text));
}

Result<void> DataParallel::enter_group(std::unique_ptr<Ranks> ranks, const GroupOptions& group,
                                       std::size_t model_bytes, MeasuredChoices& choices) {
  FL_TRY(const UnusedParameters unused, parse_unused_parameters(group.unused_parameters));
  leave();
  enter_ranks(std::move(ranks));  // Measuring is progress, too.
  const std::size_t held_bytes = model_bytes * static_cast<std::size_t>(sharers().size()) /
                                 static_cast<std::size_t>(members());
  FL_TRY(Reduction reduction, make_reduction(group, held_bytes, choices, sharers()));
  take_hook(std::move(reduction.hook), reduction.bucket_bytes, reduction.row.is_local, unused);
  returns_step_ = reduction.row.returns_step;
  if (unused != UnusedParameters::refuse)
    log_info("unused parameters: {}", group.unused_parameters);
  return {};
}

Result<void> DataParallel::check(const TrainSettings& settings) const {
  const bool is_plain_sgd = settings.optimizer.kind == LocalOptimizer::Kind::sgd &&
                            settings.momentum == 0 && settings.weight_decay == 0;
  if (!returns_step_ || is_plain_sgd) return {};
  return Error(Errc::invalid_input,
               "the site's --hook is an optimizer of its own: it needs --optimizer sgd without "
               "momentum and weight decay");
}

void DataParallel::enter(std::unique_ptr<Ranks> ranks, std::unique_ptr<GradientHook> hook,
                         std::size_t bucket_bytes, bool is_local, UnusedParameters unused) {
  leave();
  enter_ranks(std::move(ranks));
  take_hook(std::move(hook), bucket_bytes, is_local, unused);
}

void DataParallel::take_hook(std::unique_ptr<GradientHook> hook, std::size_t bucket_bytes,
                             bool is_local, UnusedParameters unused) {
  hook_ = std::move(hook);
  bucket_bytes_ = bucket_bytes;
  is_local_ = is_local;
  unused_ = unused;
}

void DataParallel::leave() {
  end_conductor();  // First, as its work refers to what the Reducer owns.
  logger_.reset();
  reducer_.reset();
  reduced_.clear();
  parameters_.clear();
  hook_.reset();
  GroupedParallel::leave();
}

/// All parameters of its layers, of which this rank's optimizer steps a part or all.
class DataParallel::Held final : public WholeParameters {
 public:
  Held(const Module& module, const Layout& layout, torch::Device device, Units& units,
       DataParallel& parallel)
      : WholeParameters(module, layout, device, {}, parallel.groups().pipeline == nullptr),
        module_(module),
        units_(units),
        parallel_(parallel) {}
  void prepare() override {
    const std::int64_t member = parallel_.member();
    if (parallel_.groups().pipeline != nullptr) take_stages(member);
    if (parallel_.parts().layers().is_divided())
      hold_part(parallel_.parts().part_of(member), parallel_.groups());
    const Piece stepped = parallel_.stepped_by(member);
    step_only(stepped.begin, stepped.count);
  }

 private:
  /// Takes the layers that this rank has in its group, if they are others than before.
  void take_stages(std::int64_t member) {
    std::vector<std::size_t> here = parallel_.parts().units_of(member, units_.units().size());
    if (here == taken_) return;
    drop_values(*module_);
    take_parameters(units_.parameters_of(here));
    parallel_.held_ = weights();
    taken_ = std::move(here);
  }

  Module module_;
  Units& units_;
  DataParallel& parallel_;
  std::vector<std::size_t> taken_;  // The units of a pipeline's stages.
};

std::unique_ptr<HeldParameters> DataParallel::hold(const Module& module, const Layout& layout,
                                                   torch::Device device, Units& units) {
  parts().hold(layout);
  auto held = std::make_unique<Held>(module, layout, device, units, *this);
  held_ = held->weights();
  return held;
}

/// The number of parameters in the layers that one of all ranks has.
std::int64_t DataParallel::elements_of(std::int64_t member) const {
  return parts().layers().is_divided() ? parts().part_of(member).elements : held_.size(0);
}

/// Those of them that it steps.
Piece DataParallel::stepped_by(std::int64_t member) const {
  const std::int64_t all = elements_of(member);
  if (!steps_parts_) return {0, all, 0};
  const RankPart part = part_of(all, parts().sharer_of(member), sharers().size());
  return {part.begin, part.end - part.begin, 0};
}

std::vector<Piece> DataParallel::read_by(std::int64_t rank) const {
  return parts().in_model(rank, {{0, elements_of(rank), 0}});
}

std::vector<Piece> DataParallel::written_by(std::int64_t rank) const {
  // Where ranks step the same parameters, the first of them writes.
  if (!steps_parts_ && parts().sharer_of(rank) > 0) return {};
  return parts().in_model(rank, {stepped_by(rank)}, &LayersPart::owned);
}

void DataParallel::make_reducer(const std::vector<torch::Tensor>& parameters) {
  const std::size_t first = std::min(first_bucket_bytes, bucket_bytes_);
  // A backward pass finishes the last parameters first. The Reducer could find that out in its
  // first step and form its buckets anew (rebuild_buckets()); then the first step of each group
  // would have other buckets, and so other bits.
  const std::vector<torch::Tensor> reversed(parameters.rbegin(), parameters.rend());
  std::vector<std::int64_t> numbers(parameters.size());
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      reversed, {first, bucket_bytes_}, std::vector<bool>(parameters.size(), false), numbers);
  buckets_ = buckets.size();
  auto group = make_reducer_group(sharers().rank(), sharers().size(), conductor(), times());
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters, std::move(buckets), std::move(group), std::vector<bool>(parameters.size(), false),
      static_cast<std::int64_t>(bucket_bytes_),
      /*find_unused_parameters=*/unused_ == UnusedParameters::find,
      /*gradient_as_bucket_view=*/false, std::unordered_map<std::size_t, std::string>(),
      static_cast<std::int64_t>(first), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>());
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (unused_ == UnusedParameters::static_graph) reducer_->set_static_graph();
  reducer_->register_comm_hook(make_comm_hook(*hook_, conductor(), parameters, times(),
                                              [this](const std::shared_ptr<Bucket>& bucket) {
                                                // In the first step of a static graph the Reducer
                                                // gives every bucket the number 0.
                                                bucket->index = reduced_.size();
                                                bucket->is_last = bucket->index + 1 == buckets_;
                                                reduced_.push_back(bucket);
                                              }));
  parameters_ = parameters;
  has_stepped_ = false;
}

void DataParallel::before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) {
  times().forward();
  advance();
  // A Reducer that looks for unused parameters must also see those that the first passes of the
  // first step use. With a static graph it must see only one pass of the first step, because there
  // it counts the gradients of one pass.
  const bool looks = unused_ == UnusedParameters::find;
  if (!reducer_ && (is_last || looks)) make_reducer(parameters);
  if (!is_last) return;
  reduced_.clear();
  reducer_->prepare_for_forward();
}

void DataParallel::backward(const torch::Tensor& loss, bool is_last) {
  if (is_last) {
    const bool looks = unused_ == UnusedParameters::find;
    reducer_->prepare_for_backward(looks ? std::vector<torch::Tensor>{loss}
                                         : std::vector<torch::Tensor>());
  }
  times().backward();
  run_backward(loss, is_last);
  times().backward_ended(is_last);
  if (!is_last) return;
  has_stepped_ = true;
  check_buckets();
  if (unused_ != UnusedParameters::refuse) take_unused();
  // The Reducer notes in which order gradients come, step after step, until it forms its buckets
  // anew. It never does so here, so it must forget those notes.
  reducer_->reset_state();
}

void DataParallel::run_backward(const torch::Tensor& loss, bool is_last) {
  const bool is_static = unused_ == UnusedParameters::static_graph;
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    if (!is_static || text.find("training graph has changed") == std::string_view::npos) throw;
    throw std::logic_error(changed_graph("got a gradient in this step, but not in the first"));
  }
  // In its first step of a static graph the Reducer only counts which gradients come.
  if (is_static && is_last && !has_stepped_) reducer_->delay_all_reduce();
}

/// The Reducer sums a bucket when all of its gradients are there or are known not to come. If a
/// gradient never comes, it silently sums neither that bucket nor those after it, and each rank
/// keeps its own gradients. So this checks that all buckets were summed.
void DataParallel::check_buckets() const {
  if (reduced_.size() == buckets_) return;
  if (unused_ == UnusedParameters::static_graph)
    throw std::logic_error(changed_graph("got no gradient in this step, but did in the first"));
  throw std::logic_error(fmt::format(
      "{} of {} pieces of the gradient were not summed, because a parameter got no gradient in "
      "this step. Where a model does not use all of its parameters in each step, ranks need "
      "--unused-parameters find, or static if each step leaves the same ones out",
      buckets_ - reduced_.size(), buckets_));
}

/// The Reducer leaves the gradient alone of a parameter that no rank has used. What a hook makes of
/// it may be more than 0: what it has kept back before, or a step of its own.
void DataParallel::take_unused() {
  const torch::Tensor uses = reducer_->get_local_used_map_on_device().cpu();
  for (const auto& bucket : reduced_) {
    for (const Bucket::Part& part : bucket->parts) {
      if (uses[part.parameter].item<int>() > 0) continue;
      const torch::Tensor& parameter = parameters_[static_cast<std::size_t>(part.parameter)];
      parameter.mutable_grad().copy_(bucket->view(part));
    }
  }
}

void DataParallel::backward_stage(const std::vector<std::size_t>& /*units*/,
                                  const std::function<void()>& work) {
  times().backward();
  work();
  times().backward_ended(false);
}

void DataParallel::after_step(const std::vector<torch::Tensor>& parameters, bool is_last) {
  const auto begin = StepTimes::Clock::now();
  conductor().run([&](Ranks& ranks) {
    if (steps_parts_)
      on_device_of(ranks, held_, [&ranks](torch::Tensor& there) { ranks.gather_parts(there); });
    hook_->after_step(parameters, is_last, ranks);
  });
  times().waited(begin, StepTimes::Clock::now());
}

}  // namespace fl::site
