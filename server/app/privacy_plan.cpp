// SPDX-License-Identifier: Apache-2.0
#include "server/app/privacy_plan.hpp"

#include "server/history/cells.hpp"
#include "shared/privacy/accountant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace fl::server {

namespace {

double rate_of(const PrivacyPlan& plan) {
  return static_cast<double>(plan.per_round) / static_cast<double>(plan.clients);
}

std::string_view verdict_on(const PrivacyOutlook& outlook) {
  if (outlook.noise_of_run >= noise_hopeless) return "hopeless";
  return outlook.noise_of_run >= noise_costly ? "costly" : "possible";
}

std::string assumptions(const PrivacyPlan& plan) {
  const std::string drawn =
      plan.per_round == plan.clients
          ? "all of them in each of"
          : fmt::format("each drawn by a secret coin with chance {:.4g} in each of", rate_of(plan));
  return fmt::format(
      "{} clients, {} {} rounds; {} parameters; delta {:g}.\nHidden is whether a client took part "
      "at all (neighbours differ in one client), from everybody who sees\nthe models, but not from "
      "the server, which adds the noise. Figures of the clients are not covered.\n",
      plan.clients, drawn, plan.rounds, plan.parameters, plan.delta);
}

}  // namespace

std::vector<PrivacyOutlook> outlooks_of(const PrivacyPlan& plan) {
  std::vector<PrivacyOutlook> outlooks;
  for (const double epsilon : plan.budgets) {
    const auto noise = privacy::noise_for(epsilon, plan.delta, rate_of(plan), plan.rounds);
    if (!noise) continue;
    PrivacyOutlook& outlook = outlooks.emplace_back();
    outlook.epsilon = epsilon;
    outlook.noise_multiplier = *noise;
    // Noise of so many clips in each parameter, divided by the clients.
    outlook.noise_of_round = *noise * std::sqrt(static_cast<double>(plan.parameters)) /
                             static_cast<double>(plan.per_round);
    // Noise of rounds adds up like their root, updates that are alike like their number.
    outlook.noise_of_run = outlook.noise_of_round / std::sqrt(static_cast<double>(plan.rounds));
  }
  return outlooks;
}

double clients_needed(const PrivacyPlan& plan, const PrivacyOutlook& outlook) {
  return std::ceil(static_cast<double>(plan.per_round) * outlook.noise_of_run / noise_costly);
}

std::string plan_text(const PrivacyPlan& plan, const std::vector<PrivacyOutlook>& outlooks) {
  std::string text = assumptions(plan);
  std::vector<CellLine> lines{
      {"epsilon", "noise multiplier", "noise of a round", "of the run", "the model is"}};
  for (const PrivacyOutlook& of : outlooks) {
    lines.push_back({fmt::format("{:.4g}", of.epsilon), fmt::format("{:.4g}", of.noise_multiplier),
                     fmt::format("{:.3g}", of.noise_of_round),
                     fmt::format("{:.3g}", of.noise_of_run), std::string(verdict_on(of))});
  }
  text += "\n" + align_cells(std::move(lines), 0);
  text +=
      "\nThe noise's length beside the longest that the mean update can have, in one round and "
      "over "
      "all rounds:\nreal updates are shorter and less alike, so the model learns less than that.\n";
  const auto is_hopeless = [](const PrivacyOutlook& of) {
    return of.noise_of_run >= noise_hopeless;
  };
  if (outlooks.empty() || std::ranges::all_of(outlooks, is_hopeless)) {
    text += fmt::format(
        "\nHopeless with {} clients: noise that hides a whole client drowns the model. Hide single "
        "records instead,\nin each site's own trainer (DP-SGD, for example with Opacus): that "
        "depends on the site's records only.\n",
        plan.clients);
  }
  const auto tightest = std::ranges::find_if(
      outlooks, [](const PrivacyOutlook& of) { return of.noise_of_run >= noise_costly; });
  if (tightest != outlooks.end()) {
    const double needed = clients_needed(plan, *tightest);
    text += fmt::format("\nEpsilon {:g} is possible with about {} clients a round, of {}.\n",
                        tightest->epsilon, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(std::ceil(needed / rate_of(plan))));
  }
  return text;
}

}  // namespace fl::server
