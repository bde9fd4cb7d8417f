// SPDX-License-Identifier: Apache-2.0
#include "shared/algorithm/strategy.hpp"

#include "shared/algorithm/strategies/strategies.hpp"
#include "shared/base/spec/nearest_name.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <vector>

namespace fl {

namespace {

constexpr std::array rows{
    StrategyRow{"fedavg", "fedavg[:lr=1]", "weighted mean of the updates (McMahan 2017)",
                make_fedavg},
    StrategyRow{"fedprox", "fedprox[:mu=0.01]",
                "FedAvg with a term that holds clients near the global model (Li 2020)",
                make_fedprox},
    StrategyRow{"scaffold", "scaffold[:lr=1,option=2]",
                "control variates that correct client drift (Karimireddy 2020)", make_scaffold},
    StrategyRow{"fednova", "fednova[:lr=1,mu=0]",
                "updates divided by how far their local steps go (Wang 2020)", make_fednova},
    StrategyRow{"feddyn", "feddyn[:alpha=0.01]",
                "a dynamic regularizer on every client (Acar 2021)", make_feddyn},
    StrategyRow{"ditto", "ditto[:lambda=0.1,epochs=1]",
                "FedAvg, and each client also trains its own model near the global one (Li 2021)",
                make_ditto},
    StrategyRow{"fedavgm", "fedavgm[:lr=1,momentum=0.9,nesterov=no]",
                "momentum on the server (Hsu 2019)", make_fedavgm},
    StrategyRow{"slowmo", "slowmo[:lr=1,momentum=0.5]",
                "momentum on the server, in units of the clients' lr (Wang 2020)", make_slowmo},
    StrategyRow{"diloco", "diloco[:lr=0.7,momentum=0.9]",
                "Nesterov momentum on the server; use it with --optimizer adamw (Douillard 2023)",
                make_diloco},
    StrategyRow{"fedadagrad", "fedadagrad[:lr=0.1,beta1=0,tau=1e-3]",
                "Adagrad on the server (Reddi 2021)", make_fedadagrad},
    StrategyRow{"fedadam", "fedadam[:lr=0.1,beta1=0.9,beta2=0.99,tau=1e-3]",
                "Adam on the server (Reddi 2021)", make_fedadam},
    StrategyRow{"fedyogi", "fedyogi[:lr=0.1,beta1=0.9,beta2=0.99,tau=1e-3]",
                "Yogi on the server (Reddi 2021)", make_fedyogi},
    StrategyRow{"signvote", "signvote[:lr=0.001]",
                "majority vote over the signs of the updates; use it with --codec sign, or with "
                "terngrad,clip=0 if many weights do not move (Bernstein 2019)",
                make_signvote},
};

}  // namespace

std::span<const StrategyRow> strategy_rows() { return rows; }

Result<std::shared_ptr<const Strategy>> parse_strategy(std::string_view spec) {
  auto options = SpecOptions::parse(spec);
  if (!options) return options.error().at("strategy");
  const auto row = std::ranges::find(rows, options->name(), &StrategyRow::name);
  if (row == rows.end()) {
    std::string names;
    for (const auto& known : rows) names += fmt::format(" {}", known.name);
    return Error(Errc::invalid_input,
                 fmt::format("there is no strategy '{}'; there are:{}{}", options->name(), names,
                             did_you_mean(options->name(), rows, &StrategyRow::name)));
  }
  const auto strategy = row->make(*options);
  strategy->take_common(*options);
  if (auto right = options->finish(); !right) return right.error().at("strategy");
  strategy->spec_ = spec;
  return std::shared_ptr<const Strategy>(strategy);
}

void Strategy::take_common(SpecOptions& options) {
  is_uniform_ = options.word("weight", {"examples", "uniform"}) == "uniform";
  const std::string patterns = options.text("personal");
  for (std::string_view rest = patterns; !rest.empty();) {
    const auto bar = std::min(rest.find('|'), rest.size());
    personal_.emplace_back(rest.substr(0, bar));
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
}

bool Strategy::is_personal(const std::string& tensor) const {
  return std::ranges::any_of(personal_, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), tensor.c_str(), 0) == 0;
  });
}

Result<void> Strategy::check(const TrainSettings& settings) const {
  return counts_steps() ? needs_sgd(settings) : success();
}

Result<void> Strategy::needs_sgd(const TrainSettings& settings) const {
  if (settings.optimizer.is_sgd()) return {};
  return Error(Errc::invalid_input,
               fmt::format("strategy '{}' must know how far a local step goes; it can only "
                           "compute that for --optimizer sgd and nesterov",
                           spec_));
}

std::string_view parameter_of_shared(std::string_view tensor) {
  static const auto vectors = [] {
    std::vector<std::string> names;
    for (const StrategyRow& row : strategy_rows()) {
      const auto strategy = parse_strategy(row.name).value();
      if (!strategy->shared_vector().empty()) names.emplace_back(strategy->shared_vector());
    }
    return names;
  }();
  const auto dot = std::min(tensor.find('.'), tensor.size());
  if (std::ranges::find(vectors, tensor.substr(0, dot)) == vectors.end()) return {};
  return tensor.substr(std::min(dot + 1, tensor.size()));
}

Result<RunLayout> run_layout(const Layout& model, const Strategy& strategy) {
  RunLayout layout;
  std::vector<TensorSpec> specs;
  const auto bad = [&](std::string_view why) {
    return Error(Errc::invalid_input, fmt::format("'{}': {}", strategy.spec(), why));
  };
  std::size_t parameters = 0;
  bool has_statistics = false;
  for (const auto& tensor : model.tensors()) {
    const bool is_personal = strategy.is_personal(tensor.name);
    (is_personal ? layout.personal_elements : layout.model_elements) += tensor.elements;
    if (is_statistic(tensor.name)) {
      has_statistics = true;
    } else if (has_statistics) {
      return bad(
          fmt::format("the model's parameter {} comes after BatchNorm statistics; "
                      "parameters must come first",
                      tensor.name));
    } else if (!is_personal) {
      layout.parameter_elements = layout.model_elements;
      parameters = specs.size() + 1;
    }
    if (layout.stretches.empty() || layout.stretches.back().is_personal != is_personal)
      layout.stretches.push_back({is_personal, 0});
    layout.stretches.back().elements += tensor.elements;
    if (!is_personal) specs.push_back({tensor.name, tensor.shape});
  }
  if (strategy.has_personal() && layout.personal_elements == 0)
    return bad("personal= matches no tensor of the model");
  if (model.elements() == 0)
    return Error(Errc::invalid_input, "no tensor of the model has an element: nothing to train");
  if (layout.parameter_elements == 0)
    return bad("every parameter is personal, so nothing is left to train together");
  if (!strategy.shared_vector().empty()) {
    for (std::size_t i = 0; i < parameters; ++i) {
      specs.push_back(
          {fmt::format("{}.{}", strategy.shared_vector(), specs[i].name), specs[i].shape});
    }
  }
  FL_TRY(layout.all, Layout::make(specs));
  return layout;
}

void RunLayout::join(std::span<const float> part, std::span<const float> personal,
                     std::span<float> whole) const {
  FL_ASSERT(part.size() == model_elements && personal.size() == personal_elements);
  FL_ASSERT(whole.size() == part.size() + personal.size());
  for (const auto& [is_personal, elements] : stretches) {
    auto& from = is_personal ? personal : part;
    std::ranges::copy(from.first(elements), whole.begin());
    from = from.subspan(elements);
    whole = whole.subspan(elements);
  }
}

void RunLayout::split(std::span<const float> whole, std::span<float> part,
                      std::span<float> personal) const {
  FL_ASSERT(part.size() == model_elements && personal.size() == personal_elements);
  FL_ASSERT(whole.size() == part.size() + personal.size());
  for (const auto& [is_personal, elements] : stretches) {
    auto& to = is_personal ? personal : part;
    std::ranges::copy(whole.first(elements), to.begin());
    to = to.subspan(elements);
    whole = whole.subspan(elements);
  }
}

}  // namespace fl
