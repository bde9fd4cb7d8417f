// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_flags.hpp"

#include "client/learn/context_parts.hpp"
#include "client/site/grid.hpp"
#include "client/site/topologies/topology_table.hpp"
#include "shared/base/limits.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

namespace fl::site {

namespace {

std::string topology_help() {
  std::string help = "The way of sums: ";
  for (const Topology& row : topologies()) {
    help += row.name;
    if (row.takes_any_hook) {
      help += " (with any --hook that has no groups of its own, which then works between machines)";
    }
    help += ", ";
  }
  return help + fmt::format("or auto: by a measurement, and {} with another --hook than allreduce",
                            topology_for_hooks().name);
}

void declare_grid_flags(CLI::App& app, SiteOptions& options) {
  app.add_option("--parallel", options.parallel,
                 "The grid of the ranks, such as dp=4,tp=2,cp=2,pp=2: so many parts of each batch "
                 "(default: as many as there are ranks for), and so many ranks that divide a "
                 "transformer's layers (tp) or its texts (cp) between them, or have some of the "
                 "layers each (pp). With ep=4 groups of so many of the ranks of dp and cp have a "
                 "fourth of the experts each. docs/guide/large-models.md")
      ->type_name("AXIS=RANKS")
      ->check([](const std::string& text) {
        const auto grid = parse_grid(text);
        return grid ? std::string() : grid.error().message();
      });
  app.add_flag("--sequence-parallel", options.sequence_parallel,
               "With --parallel tp=N: between the divided layers each rank has a part of the "
               "tokens, which saves memory and sends as much");
  app.add_option(
         "--context-parallel", options.context_parallel,
         "With --parallel cp=N: keys and values go round (ring), each rank gathers those of "
         "all (gather), or for the attention each rank has some heads of all tokens "
         "(ulysses)")
      ->type_name("WAY")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const auto way = parse_context_way(text);
        return way ? std::string() : way.error().message();
      });
  app.add_option(
         "--expert-parallel", options.expert_parallel,
         "With --parallel ep=N: each rank sends tokens to each other one (direct), or first to "
         "the rank of its machine that sends to the same number on others (two-hops: fewer and "
         "larger messages between machines)")
      ->type_name("WAY")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const auto way = parse_expert_way(text);
        return way ? std::string() : way.error().message();
      });
  app.add_option("--pipeline", options.pipeline,
                 "With --parallel pp=N, the order in which ranks compute the parts of a batch, of "
                 "which --accumulate of the server says how many there are: gpipe, 1f1b (fewer "
                 "activations at a time), interleaved:N (N groups of layers on each rank: less "
                 "waiting, more to send), or zb-h1 (as 1f1b, with less waiting)")
      ->type_name("SCHEDULE")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const auto division = parse_pipeline(text, 1);
        return division ? std::string() : division.error().message();
      });
}

}  // namespace

void declare_site_flags(CLI::App& app, SiteOptions& options) {
  auto* const ranks =
      app.add_option("--ranks", options.ranks,
                     "Train with so many ranks on this machine, which share each step: one a GPU, "
                     "or one a part of the cores (docs/guide/sites.md)")
          ->check(whole_number_in(1, limits::ranks_max));
  app.add_flag("--site", options.launched,
               "This process is one of several ranks that torchrun, srun or mpirun has started, "
               "perhaps on several machines; the first one is the client")
      ->excludes(ranks);
  app.add_option("--ranks-min", options.ranks_min,
                 "Go on with so many ranks when others are lost (default: all are waited for)")
      ->check(whole_number_in(1, limits::ranks_max));
  app.add_option("--rank-timeout", options.timeout_s,
                 "Seconds that ranks wait for each other before one is taken for lost")
      ->check(real_number_in(1, 86400))
      ->capture_default_str();
  app.add_flag("--check-calls", options.check_calls,
               "Before each collective ranks compare which one they make, so that one that goes "
               "another way is named, instead of others waiting for it; it costs a short message "
               "each");
  app.add_option("--backend", options.backend, "How ranks talk: gloo (CPUs), nccl (GPUs) or auto")
      ->check(one_of({"gloo", "nccl", "auto"}))
      ->capture_default_str();
  app.add_option("--hook", options.hook,
                 "How ranks reduce gradients, such as allreduce, bf16, powersgd:4 or "
                 "codec:ecuq:2+ef (docs/guide/choose-a-hook.md)")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--topology", options.topology, topology_help())
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--bucket-mb", options.bucket_mb,
                 "Reduce gradients in pieces of so many MiB, while the rest is computed; auto "
                 "measures what is best (default: auto where that changes no bit of the result, "
                 "else 4)")
      ->type_name("MB")
      ->check(one_of({"auto"}) | real_number_in(0.01, 4096));
  app.add_option("--unused-parameters", options.unused_parameters,
                 "Where a parameter gets no gradient in a step: refuse it as an error, find such "
                 "parameters in each step, or take them as static, the same ones in all steps")
      ->check(one_of({"refuse", "find", "static"}))
      ->capture_default_str();
  app.add_option("--zero", options.zero,
                 "What each rank holds a part of, where others hold the rest: 0 nothing, 1 the "
                 "optimizer's moments, 2 gradients too, 3 parameters too "
                 "(docs/guide/large-models.md)")
      ->check(whole_number_in(0, 3))
      ->capture_default_str();
  declare_grid_flags(app, options);
  app.add_option("--site-interface", options.interface,
                 "The network interface through which this machine's ranks talk, such as eth0 "
                 "(default: that of the host's name; with --ranks, loopback)");
  app.add_option("--site-address", options.address,
                 "Where the first rank's client listens for the others (default: MASTER_ADDR, one "
                 "port above MASTER_PORT; under srun the step's first node)")
      ->type_name("HOST:PORT")
      ->check([](const std::string& text) {
        const auto parsed = parse_host_port(text);
        return parsed ? std::string() : parsed.error().message();
      });
  app.add_option("--site-secret-file", options.secret_file,
                 "A file with a secret that all ranks of the site know; needed with --site")
      ->check(not_empty());
}

void check_site_flags(const CLI::App& app, const SiteOptions& options) {
  if (!options.is_set()) {
    for (const char* flag :
         {"--ranks-min", "--rank-timeout", "--backend", "--hook", "--topology", "--bucket-mb",
          "--unused-parameters", "--zero", "--parallel", "--sequence-parallel",
          "--context-parallel", "--expert-parallel", "--pipeline", "--check-calls",
          "--site-interface", "--site-address", "--site-secret-file"}) {
      if (app.count(flag) > 0)
        throw CLI::ValidationError(flag, "is for a site: it needs --ranks N or --site");
    }
    return;
  }
  if (options.launched && options.secret_file.empty()) {
    throw CLI::ValidationError(
        "--site",
        "also needs --site-secret-file FILE, the same file on all machines; make it by: "
        "head -c 32 /dev/urandom | base64 > FILE");
  }
  if (options.ranks > 0 && options.ranks_min > options.ranks)
    throw CLI::ValidationError("--ranks-min", fmt::format("is above --ranks {}", options.ranks));
  const Grid grid = grid_of(options).value();  // The flag has been checked.
  if (options.sequence_parallel && grid.tp == 1)
    throw CLI::ValidationError("--sequence-parallel", "needs --parallel with tp=2 or more");
  if (app.count("--context-parallel") > 0 && grid.cp == 1)
    throw CLI::ValidationError("--context-parallel", "needs --parallel with cp=2 or more");
  if (app.count("--expert-parallel") > 0 && grid.ep == 1)
    throw CLI::ValidationError("--expert-parallel", "needs --parallel with ep=2 or more");
  if (app.count("--pipeline") > 0 && grid.pp == 1)
    throw CLI::ValidationError("--pipeline", "needs --parallel with pp=2 or more");
  if (options.ranks_min % grid.together() != 0)
    throw CLI::ValidationError("--ranks-min",
                               fmt::format("is no multiple of {}, the ranks that take a pass "
                                           "together: fewer can't",
                                           grid.together()));
  if (options.ranks == 0) return;
  if (const auto filled = fill_grid(grid, options.ranks); !filled)
    throw CLI::ValidationError(filled.error().message());
}

}  // namespace fl::site
