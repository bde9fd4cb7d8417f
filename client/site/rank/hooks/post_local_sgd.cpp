// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"

#include <algorithm>

namespace fl::site {

namespace {

struct LocalSgdSettings {
  std::int64_t period = 4;
  std::int64_t start = 100;
  int group = 1;
};

class PostLocalSgd final : public GradientHook {
 public:
  explicit PostLocalSgd(const LocalSgdSettings& settings) : settings_(settings) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    if (step_ < settings_.start) return divide_and_sum(bucket.gradient, ranks);
    if (settings_.group == 1) return;
    if (settings_.group >= ranks.size()) return divide_and_sum(bucket.gradient, ranks);
    if (!group_) group_ = group_of(ranks);
    divide_and_sum(bucket.gradient, *group_);
  }

  /// The last step of a round always makes the mean, because the ranks have one update.
  void after_step(const std::vector<torch::Tensor>& parameters, bool is_last,
                  Ranks& ranks) override {
    const bool is_due =
        step_ >= settings_.start && (step_ - settings_.start) % settings_.period == 0;
    if (is_due || is_last) {
      const torch::NoGradGuard no_gradient;
      std::vector<torch::Tensor> flat;
      for (const torch::Tensor& parameter : parameters) flat.push_back(parameter.flatten());
      torch::Tensor mean = torch::cat(flat).to(ranks.device());
      divide_and_sum(mean, ranks);
      std::int64_t offset = 0;
      for (const torch::Tensor& parameter : parameters) {
        parameter.copy_(mean.narrow(0, offset, parameter.numel()).view_as(parameter));
        offset += parameter.numel();
      }
    }
    ++step_;
  }

  [[nodiscard]] HookState save() const override { return state_with_step(step_); }
  void load(const HookState& state) override { step_ = step_in(state); }

 private:
  [[nodiscard]] std::unique_ptr<Ranks> group_of(Ranks& ranks) const {
    const int first = ranks.rank() / settings_.group * settings_.group;
    std::vector<int> members;
    for (int rank = first; rank < std::min(first + settings_.group, ranks.size()); ++rank)
      members.push_back(rank);
    return ranks.subgroup(members, "post-local-sgd/" + std::to_string(first));
  }

  LocalSgdSettings settings_;
  std::int64_t step_ = 0;
  std::unique_ptr<Ranks> group_;
};

}  // namespace

std::unique_ptr<GradientHook> make_post_local_sgd(SpecOptions& options) {
  LocalSgdSettings settings;
  settings.period = options.count("period", 4, 1);
  settings.start = options.count("start", 100, 0);
  settings.group = static_cast<int>(std::min<std::uint32_t>(options.count("group", 1, 1), 1 << 20));
  return std::make_unique<PostLocalSgd>(settings);
}

}  // namespace fl::site
