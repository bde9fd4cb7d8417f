// SPDX-License-Identifier: Apache-2.0
#include "server/app/privacy_command.hpp"

#include "server/app/privacy_plan.hpp"
#include "shared/flags/flags.hpp"
#include "shared/privacy/accountant.hpp"

#include <fmt/format.h>

#include <string>

namespace fl::server {

namespace {

struct PrivacyOptions : SharedOptions {
  std::string action;  // "plan".
  PrivacyPlan plan{.rounds = 100, .delta = 1e-6, .budgets = {1, 2, 4, 8}};
};

void declare_privacy(CLI::App& command, PrivacyOptions& options) {
  PrivacyPlan& plan = options.plan;
  command.add_option("ACTION", options.action, "plan")->check(one_of({"plan"}))->required();
  command.add_option("--clients", plan.clients, "How many clients there are")
      ->check(whole_number_in(1, 100'000'000))
      ->required();
  command
      .add_option("--clients-per-round", plan.per_round,
                  "How many of them take part in a round on average, each drawn by a coin of its "
                  "own; by default all")
      ->check(whole_number_in(1, 100'000'000));
  command.add_option("--parameters", plan.parameters, "The model's parameters")
      ->check(whole_number_in(1, 1'000'000'000'000))
      ->required();
  command.add_option("--rounds", plan.rounds, "The rounds of the run")
      ->check(whole_number_in(1, 100'000))
      ->capture_default_str();
  command
      .add_option("--delta", plan.delta,
                  "The chance that epsilon does not hold: far below one in the number of clients")
      ->check(real_number_in(privacy::delta_min, 0.1))
      ->capture_default_str();
  command.add_option("--budget", plan.budgets, "Epsilons to plan for")
      ->check(real_number_in(0.001, 100))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1, 16)
      ->capture_default_str();
}

Result<void> print_plan(const PrivacyOptions& options) {
  PrivacyPlan plan = options.plan;
  if (plan.per_round == 0) plan.per_round = plan.clients;
  if (plan.per_round > plan.clients) {
    return Error(Errc::invalid_input,
                 fmt::format("--clients-per-round {} is more than --clients {}", plan.per_round,
                             plan.clients));
  }
  if (plan.delta * static_cast<double>(plan.clients) >= 1) {
    return Error(Errc::invalid_input,
                 fmt::format("--delta {:g} may give away one of {} clients whole: it must be below "
                             "{:g}, better far below",
                             plan.delta, plan.clients, 1 / static_cast<double>(plan.clients)));
  }
  fmt::print("{}", plan_text(plan, outlooks_of(plan)));
  return {};
}

}  // namespace

Command privacy_command() {
  return make_command<PrivacyOptions>(
      "privacy",
      "Plans differential privacy: how long the noise would be that hides each client, beside the "
      "updates. The server of this release does not add it",
      {.declare = declare_privacy, .run = print_plan});
}

}  // namespace fl::server
