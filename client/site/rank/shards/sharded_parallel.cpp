// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/shards/sharded_parallel.hpp"

#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/units.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/shards/gathered_unit.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fl::site {

namespace {

/// Gradients of at most this many units are on their way at a time.
constexpr std::size_t units_on_way_max = 2;

}  // namespace

/// This rank's parts of a module, and the buffers in which its units come together.
class ShardedParallel::Held final : public HeldParameters, public UnitKeeper {
 public:
  Held(const Module& module, const Layout& layout, torch::Device device, Units& units,
       ShardedParallel& parallel)
      : module_(module), units_(units), device_(device), parallel_(parallel) {
    module->to(device);  // The parameters have no memory yet: a group gives them their places.
    drop_values(*module);
    const Layout::Stretch& statistics = layout.statistics();
    const auto count = static_cast<std::int64_t>(statistics.end - statistics.begin);
    const auto fp32 = torch::dtype(torch::kFloat32).device(device);
    hold_statistics(module, layout, torch::zeros({count}, fp32));
    hold(torch::zeros({0}, fp32), torch::zeros({0}, fp32), {});
    for (std::size_t number = 0; number < units.units().size(); ++number) watch(number);
    units.keep_with(this);
  }
  ~Held() override {
    drop_units();
    units_.keep_with(nullptr);
    if (parallel_.held_ == this) parallel_.held_ = nullptr;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void prepare() override {
    if (gathered_.empty()) divide();  // For the group that has been entered.
    // A pass that ended early may have left work and gradients.
    parallel_.conductor().run([](Ranks&) {});
    for_each_unit([](GatheredUnit& unit) { unit.forget(); });
    reached_.reset();
  }

  [[nodiscard]] double gradient_norm() override {
    torch::Tensor squares = torch::full({1}, owned_squares(), torch::dtype(torch::kFloat64));
    parallel_.sum_of_all(squares);
    return std::sqrt(squares.item<double>());
  }

  void before_forward(std::size_t unit) override {
    is_mixed_ = MixedPass::current().has_value();
    gather(unit, unit + 1);
  }

  void after_forward(std::size_t unit) override {
    if (!parallel_.options_.frees_parameters) return;
    const bool is_last = unit + 1 == gathered_.size();
    const bool has_backward = torch::GradMode::is_enabled();
    // The backward pass begins with the last unit. What is shared is used there.
    const bool is_used_later = units_.units()[unit].is_shared && is_here(gathered_.size() - 1);
    const bool stays = is_used_later || (is_last && has_backward);
    if (!stays) free(unit);
    if (is_last && !has_backward) free_all();
  }

  void before_backward(std::size_t unit) override {
    // Now the unit behind this one is done.
    if (parallel_.options_.frees_parameters && reached_) free(*reached_);
    reached_ = units_.units()[unit].is_shared ? std::nullopt : std::optional(unit);
    if (is_here(unit + units_on_way_max))
      for_parts(unit + units_on_way_max, [](GatheredUnit& part) { part.limit_sending(); });
    gather(unit, unit - 1);
  }

  /// `reduces`: in the backward pass that follows gradients go to the ranks that have the parts:
  /// those of these units, and of what they use.
  void expect_gradients(bool reduces, const std::vector<std::size_t>& units) {
    reduces_ = reduces;
    expected_.clear();
    if (!reduces) return;
    expected_ = units;
    if (const auto used = units_.units()[units.back()].uses; used && *used != units.front())
      expected_.push_back(*used);
    for (const std::size_t unit : expected_)
      for_parts(unit, [](GatheredUnit& part) { part.expect_gradients(); });
  }
  /// Of all units.
  void expect_gradients(bool reduces) { expect_gradients(reduces, here_); }
  void end_backward() {
    if (reduces_) await_gradients();
    reached_.reset();
    if (parallel_.options_.frees_parameters) free_all();
  }
  void outdate() {
    for_each_unit([](GatheredUnit& unit) { unit.outdate(); });
  }
  void drop_units() { gathered_.clear(); }

 protected:
  void loaded() override { outdate(); }

 private:
  void await_gradients() {
    std::size_t missing = 0;
    for (const std::size_t unit : expected_)
      missing +=
          std::ranges::all_of(gathered_[unit], [](const auto& part) { return part->is_reduced(); })
              ? 0
              : 1;
    if (missing > 0)
      throw std::logic_error(fmt::format(
          "{} of {} layers' gradients were not summed, because a parameter got no gradient in this "
          "step: such a model needs --unused-parameters find, which goes with --zero 0 and 1",
          missing, expected_.size()));
    for (const std::size_t unit : expected_)
      for_parts(unit, [](GatheredUnit& part) { part.await_reduced(); });
  }

  /// Whether this rank has the unit: with a pipeline others have some.
  [[nodiscard]] bool is_here(std::size_t unit) const {
    return unit < gathered_.size() && !gathered_[unit].empty();
  }
  template <class Call>
  void for_parts(std::size_t unit, const Call& call) {
    for (const auto& part : gathered_[unit]) call(*part);
  }
  template <class Call>
  void for_each_unit(const Call& call) {
    for (std::size_t unit = 0; unit < gathered_.size(); ++unit) for_parts(unit, call);
  }

  /// Brings a unit's parameters together, with those that it uses, and meanwhile those of the unit
  /// that comes next.
  void gather(std::size_t unit, std::size_t next) {
    const auto ahead = [this](GatheredUnit& part) { part.gather_ahead(is_mixed_); };
    const auto now = [this](GatheredUnit& part) { part.gather(is_mixed_); };
    const auto used = units_.units()[unit].uses;
    if (used) for_parts(*used, ahead);
    for_parts(unit, ahead);
    if (parallel_.options_.prefetches && is_here(next)) for_parts(next, ahead);
    if (used) for_parts(*used, now);
    for_parts(unit, now);
  }

  void free(std::size_t unit) {
    for_parts(unit, [](GatheredUnit& part) { part.free(); });
  }
  void free_all() {
    for_each_unit([](GatheredUnit& unit) { unit.free(); });
  }

  /// Has the unit told of each of its gradients, once a backward pass.
  void watch(std::size_t number) {
    const Unit& unit = units_.units()[number];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(unit.parameters[i]);
      using torch::autograd::variable_list;
      const bool is_expert = i >= unit.experts_from;
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, number, is_expert](const variable_list& outputs, const variable_list& /*inputs*/) {
            auto& parts = gathered_[number];
            if (reduces_) (is_expert ? parts.back() : parts.front())->note_gradient();
            return outputs;
          }));
      accumulators_.push_back(std::move(accumulator));
    }
  }

  /// Divides the parameters over the ranks of a new group.
  void divide() {
    const std::int64_t member = parallel_.member();
    const std::vector<UnitCut> cuts = parallel_.cuts_of(member);
    const auto fp32 = torch::dtype(torch::kFloat32).device(device_);
    const ShardedVectors vectors{.weights = torch::zeros({elements_of(cuts)}, fp32),
                                 .gradient = torch::zeros({elements_of(cuts)}, fp32),
                                 .gradient_parts = parallel_.sharers().size(),
                                 .exchange = parallel_.exchange_};
    if (parallel_.parts().layers().is_divided())
      hold_part(parallel_.parts().part_of(member), parallel_.groups());
    hold(vectors.weights, vectors.gradient, parallel_.pieces_of_member(member));
    drop_units();
    drop_values(*module_);
    const std::vector<Unit>& units = units_.units();
    here_ = parallel_.parts().units_of(member, units.size());
    gathered_.resize(units.size());
    auto cut = cuts.begin();
    for (const std::size_t unit : here_) {
      const bool has_others = parallel_.sizes_[unit].experts > 0;
      const std::size_t all = units[unit].parameters.size();
      const std::size_t dense = has_others ? units[unit].experts_from : all;
      const auto add = [&](std::size_t first, std::size_t last, Ranks& ranks) {
        gathered_[unit].push_back(std::make_unique<GatheredUnit>(
            unit, tensors_of(units[unit], first, last), *cut++, vectors, ranks,
            parallel_.conductor(), parallel_.times()));
      };
      add(0, dense, parallel_.gradient_ranks());
      if (has_others) add(dense, all, parallel_.replicas());
    }
    FL_ASSERT(cut == cuts.end());
    train(units_.parameters_of(here_));
  }

  static UnitTensors tensors_of(const Unit& unit, std::size_t first, std::size_t last) {
    const auto from = static_cast<std::ptrdiff_t>(first);
    const auto to = static_cast<std::ptrdiff_t>(last);
    return {{unit.parameters.begin() + from, unit.parameters.begin() + to},
            {unit.formats.begin() + from, unit.formats.begin() + to}};
  }

  Module module_;
  Units& units_;
  torch::Device device_;
  ShardedParallel& parallel_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  /// By unit: its tensors, or those but the experts' and then these, which other ranks share.
  /// Empty: other ranks have it.
  std::vector<std::vector<std::unique_ptr<GatheredUnit>>> gathered_;
  std::vector<std::size_t> here_;       // The units that this rank has.
  std::vector<std::size_t> expected_;   // As expect_gradients() was told.
  std::optional<std::size_t> reached_;  // The unit where the backward pass is.
  bool reduces_ = true;                 // As expect_gradients() was told.
  bool is_mixed_ = false;               // The pass is a MixedPass, or goes back through one.
};

ShardedParallel::ShardedParallel(std::function<void()> on_progress, Options options,
                                 const PassDivision& division)
    : GroupedParallel(std::move(on_progress), division), options_(options) {}

ShardedParallel::~ShardedParallel() { ShardedParallel::leave(); }

Result<void> ShardedParallel::enter_group(std::unique_ptr<Ranks> ranks, const GroupOptions& group,
                                          std::size_t /*model_bytes*/,
                                          MeasuredChoices& /*choices*/) {
  FL_TRY(const ParsedHook parsed, parse_hook(group.hook));
  const auto format = parsed.hook->plain_format();
  FL_ASSERT(format);  // Other hooks were refused (make_parallel()).
  enter(std::move(ranks), *format);
  return {};
}

void ShardedParallel::enter(std::unique_ptr<Ranks> ranks, torch::ScalarType exchange) {
  leave();
  enter_ranks(std::move(ranks));
  exchange_ = exchange;
}

void ShardedParallel::leave() {
  end_conductor();  // The conductor's work refers to the units' buffers.
  if (held_ != nullptr) held_->drop_units();
  GroupedParallel::leave();
}

std::unique_ptr<HeldParameters> ShardedParallel::hold(const Module& module, const Layout& layout,
                                                      torch::Device device, Units& units) {
  parts().hold(layout);
  sizes_.clear();
  const bool has_others = groups().experts != nullptr;
  for (const Unit& unit : units.units()) {
    UnitSize size{.dense = unit.count};
    for (std::size_t i = unit.experts_from; has_others && i < unit.parameters.size(); ++i)
      size.experts += unit.parameters[i].numel();
    size.dense -= size.experts;
    sizes_.push_back(size);
  }
  auto held = std::make_unique<Held>(module, layout, device, units, *this);
  held_ = held.get();
  return held;
}

/// How the units that one of all ranks has are divided, in its vector of these.
std::vector<UnitCut> ShardedParallel::cuts_of(std::int64_t member) const {
  std::vector<Extent> extents;
  std::int64_t at = 0;
  const auto add = [&](std::int64_t count, std::int64_t apart) {
    extents.push_back({at, count, apart});
    at += count;
  };
  for (const std::size_t unit : parts().units_of(member, sizes_.size())) {
    add(sizes_[unit].dense, 1);
    if (sizes_[unit].experts > 0) add(sizes_[unit].experts, parts().layers().experts.ranks);
  }
  return cut_units(extents, sharers().size());
}

std::vector<Piece> ShardedParallel::pieces_of_member(std::int64_t member) const {
  return pieces_of(cuts_of(member), parts().sharer_of(member));
}

std::vector<Piece> ShardedParallel::read_by(std::int64_t rank) const {
  return parts().in_model(rank, pieces_of_member(rank));
}

std::vector<Piece> ShardedParallel::written_by(std::int64_t rank) const {
  return parts().in_model(rank, pieces_of_member(rank), &LayersPart::owned);
}

void ShardedParallel::before_forward(const std::vector<torch::Tensor>& /*parameters*/,
                                     bool /*is_last*/) {
  times().forward();
  advance();
}

void ShardedParallel::backward(const torch::Tensor& loss, bool is_last) {
  held_->expect_gradients(is_last || !options_.keeps_gradients);
  times().backward();
  loss.backward();
  held_->end_backward();
  times().backward_ended(is_last);
}

void ShardedParallel::backward_stage(const std::vector<std::size_t>& units,
                                     const std::function<void()>& work) {
  held_->expect_gradients(!options_.keeps_gradients, units);
  times().backward();
  work();
  held_->end_backward();
  times().backward_ended(false);
}

void ShardedParallel::reduce_stages(const std::vector<torch::Tensor>& parameters) {
  if (options_.keeps_gradients) GroupedParallel::reduce_stages(parameters);
  // Else they have gone after each pass.
}

void ShardedParallel::after_step(const std::vector<torch::Tensor>& /*parameters*/,
                                 bool /*is_last*/) {
  held_->outdate();
}

}  // namespace fl::site
