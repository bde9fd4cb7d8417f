// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_commands.hpp"

#include "client/site/doctor.hpp"
#include "client/site/grid_doctor.hpp"
#include "client/site/local_ranks.hpp"
#include "client/site/plan/report.hpp"
#include "client/site/site.hpp"
#include "client/site/site_flags.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/base/log.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

namespace fl::site {

namespace {

/// The flags of `fl-client site recommend`.
struct RecommendOptions {
  PlanReport report;
  std::string precision = "bf16";
  std::string recompute = "auto";
  bool as_json = false;
};

/// A flag whose value is a number with a unit. `shown`: the default.
void add_quantity(CLI::App& app, const std::string& name, double& value, const std::string& help,
                  const std::string& shown = "") {
  auto* const option = app.add_option(
      name,
      [name, &value](const CLI::results_t& given) {
        const auto number = parse_quantity(given.front());
        if (!number) throw CLI::ValidationError(name, number.error().message());
        value = *number;
        return true;
      },
      help);
  option->type_name("NUMBER");
  if (!shown.empty()) option->default_str(shown);
}

void declare_model_flags(CLI::App& app, RecommendOptions& options) {
  ModelShape& shape = options.report.shape;
  add_quantity(app, "--params", shape.parameters, "Parameters of the model, as 7e9 or 7B");
  app.get_option("--params")->required();
  const auto count = [&app](const char* name, std::int64_t& value, const char* help,
                            bool has_default) {
    auto* const option = app.add_option(name, value, help)->check(whole_number(1, 1'000'000'000));
    if (has_default) option->capture_default_str();
  };
  count("--layers", shape.layers, "Layers (default: in GPT-3's proportions)", false);
  count("--hidden", shape.hidden, "Hidden size (default: in GPT-3's proportions)", false);
  count("--heads", shape.heads, "Attention heads (default: of 128 values each)", false);
  count("--experts", shape.experts, "Experts of a layer, in place of its dense layers", false);
  count("--top", shape.top, "With --experts: those of a token", true);
  add_quantity(app, "--active-params", shape.active,
               "With --experts: parameters that a token uses (default: by --top and the sizes)");
  count("--vocabulary", shape.vocabulary, "Tokens that the model knows", true);
  count("--sequence", shape.sequence, "Tokens of a sequence", true);
  count("--batch", options.report.training.batch, "Sequences in a step of all GPUs together", true);
  app.add_option("--precision", options.precision,
                 "Number format of weights and gradients: bf16, fp16 (mixed precision with fp32 "
                 "weights in the optimizer) or fp32")
      ->check(one_of({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  app.add_option("--recompute", options.recompute,
                 "Activations that the backward pass computes again: none, selective (scores of "
                 "attention), full, or auto for selective or full")
      ->check(one_of({"auto", "none", "selective", "full"}))
      ->capture_default_str();
}

void declare_machine_flags(CLI::App& app, RecommendOptions& options) {
  SiteMachines& site = options.report.machines;
  app.add_option("--gpus", site.gpus, "GPUs of the site")
      ->check(whole_number(1, 1'000'000))
      ->required();
  app.add_option("--gpus-per-node", site.gpus_per_node, "GPUs of one node")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  add_quantity(app, "--memory", site.memory_bytes, "Memory of a GPU in bytes, as 80G or 80GiB");
  app.get_option("--memory")->required();
  add_quantity(app, "--intra", site.intra_bytes_s,
               "Bytes/s that a GPU sends to another one of its node, in one direction; G is 10^9");
  add_quantity(app, "--inter", site.inter_bytes_s,
               "Bytes/s that a GPU sends to another node: its share of the node's link (200 Gbit/s "
               "are 25G)");
  add_quantity(app, "--flops", site.flops_s, "Peak FLOP/s of a GPU in that number format", "312T");
  app.add_option("--utilisation", site.utilisation, "Part of the peak that one GPU alone reaches")
      ->check(real_number_in(0.01, 1))
      ->capture_default_str();
  app.add_option("--headroom", site.headroom,
                 "Part of the memory that stays free for the framework and fragmentation")
      ->check(real_number_in(0, 0.9))
      ->capture_default_str();
  add_quantity(app, "--host", site.host_bytes_s, "Bytes/s between a GPU and its host, for offload",
               "20G");
  add_quantity(app, "--host-memory", site.host_memory_bytes,
               "Memory of a node in bytes, for offload (default: as much as it takes)");
  add_quantity(app, "--host-memory-speed", site.host_memory_bytes_s,
               "Bytes/s of a node's memory, for offload", "100G");
  add_quantity(app, "--code-speed", options.report.code_bytes_s,
               "Bytes/s of fp32 gradient that a GPU codes and decodes; in a checkout './dev bench "
               "codecs' measures a CPU's",
               "10G");
}

/// Throws for a value that is wrong only together with others.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw CLI::ValidationError("site recommend", result.error().message());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

int recommend(RecommendOptions& options, std::ostream& out) {
  PlanReport& report = options.report;
  report.training.precision = options.precision == "fp32"   ? PlanPrecision::fp32
                              : options.precision == "fp16" ? PlanPrecision::fp16
                                                            : PlanPrecision::bf16;
  report.training.any_recompute = options.recompute == "auto";
  report.training.recompute = options.recompute == "none"   ? Recompute::none
                              : options.recompute == "full" ? Recompute::full
                                                            : Recompute::selective;
  value_or_throw(check_inputs(report.machines, report.training));
  report.shape = value_or_throw(complete_shape(report.shape));
  report.plans = search_plans(report.shape, report.machines, report.training);
  out << (options.as_json ? plan_json(report) : plan_text(report));
  return 0;
}

/// The flags of `fl-client site doctor`.
struct DoctorOptions {
  SiteOptions site;
  std::string model;  // For the grid; "": not known.
  bool as_json = false;
};

/// Starts the ranks and has them measure.
Result<int> doctor(const DoctorOptions& options, std::ostream& out) {
  if (!options.model.empty() && options.site.parallel.empty())
    return Error(Errc::invalid_input, "--model says what --parallel is to divide: give that, too");
  FL_TRY(const auto place, take_place(options.site));
  const StopWhileStarting stop;
  FL_TRY(const auto folder, ScratchFolder::make("tributary-doctor"));
  LearnOptions learn;
  learn.device = options.site.backend == "gloo" ? "cpu" : "auto";
  FL_TRY(const auto site, Site::start(options.site, place, learn, folder.path(), stop.token()));
  FL_TRY(const auto facts, site->ask_facts(stop.token()));
  auto lines = diagnose_ranks(facts);
  SiteMeasurement measured;
  const bool may_meet = doctor_exit_code(lines) == 0;
  if (may_meet) {
    FL_TRY(measured, site->measure(stop.token()));
    lines = diagnose_site(facts, measured);
  } else {
    lines.push_back({DoctorLine::Verdict::warn, "links", "not measured", "mend first what fails"});
  }
  const auto ranks = static_cast<int>(facts.size());
  FL_TRY(const Grid grid, fill_grid(grid_of(options.site).value(), ranks));
  FL_TRY(const ContextWay way, parse_context_way(options.site.context_parallel));
  FL_TRY(const PipelineDivision stages, parse_pipeline(options.site.pipeline, grid.pp));
  std::ranges::move(diagnose_grid({.grid = grid,
                                   .divides_tokens = options.site.sequence_parallel,
                                   .way = way,
                                   .stages = stages,
                                   .model = options.model},
                                  facts, measured.bytes_per_s),
                    std::back_inserter(lines));
  out << doctor_output(lines, options.as_json, {{"measured", to_json_of(measured)}},
                       may_meet ? links_text(facts, measured) : "");
  return doctor_exit_code(lines);
}

int run_doctor(const DoctorOptions& options, std::ostream& out) {
  start_log(false, false);
  const auto code = doctor(options, out);
  if (code) return *code;
  out << fmt::format("fail  {}\n", code.error().message());
  return 1;
}

std::function<int()> declare_doctor(CLI::App& site, std::ostream& out) {
  auto* const command = site.add_subcommand(
      "doctor",
      "Starts a site's ranks without any data, and looks at versions, processors, clocks, settings "
      "and the links between all ranks: a line each, with what to do; the exit code is 1 if "
      "something fails\n"
      "  fl-client site doctor --ranks 8");
  command->fallthrough(false);
  const auto options = std::make_shared<DoctorOptions>();
  declare_site_flags(*command, options->site);
  command->add_option("--model", options->model,
                      "With --parallel: the model that the grid is to divide, as fl-server has it");
  command->add_flag("--json", options->as_json, "Print JSON, with all figures");
  return [command, options, &out] {
    if (!*command) return -1;
    check_site_flags(*command, options->site);
    if (!options->site.is_set()) throw CLI::RequiredError("--ranks N or --site");
    return run_doctor(*options, out);
  };
}

}  // namespace

std::function<int()> declare_site_commands(CLI::App& app, std::ostream& out) {
  auto* const site = app.add_subcommand(
      "site",
      "Looks at a datacenter's site: its machines and networks, and how to divide a training "
      "among its GPUs");
  site->require_subcommand(1);
  auto* const recommend_command = site->add_subcommand(
      "recommend",
      "Says how to divide the training of a transformer among GPUs: memory, time and traffic of "
      "data, "
      "tensor and pipeline parallelism, ZeRO and offload, and which communication hook pays\n"
      "  fl-client site recommend --params 7e9 --gpus 16 --memory 80G --intra 300G --inter 25G");
  // The client's flags are no flags of this command.
  recommend_command->fallthrough(false);
  const auto options = std::make_shared<RecommendOptions>();
  options->report.code_bytes_s = 10e9;
  declare_model_flags(*recommend_command, *options);
  declare_machine_flags(*recommend_command, *options);
  recommend_command->add_option("--rows", options->report.rows_max, "Plans to show")
      ->check(whole_number_in(1, 100))
      ->capture_default_str();
  recommend_command->add_flag("--json", options->as_json, "Print JSON, with all numbers");
  const auto run_doctor_command = declare_doctor(*site, out);
  return [options, recommend_command, run_doctor_command, &out] {
    return *recommend_command ? recommend(*options, out) : run_doctor_command();
  };
}

}  // namespace fl::site
