// SPDX-License-Identifier: Apache-2.0
// What one run trains and how: the settings of fl-server that belong to the run and not to the
// machine. They are stored as JSON with the run, so the next start uses the same ones. Each has one
// row in settings_table.cpp, which makes its flag, its JSON, its check and its field in the offer.
#pragma once

#include "server/history/records.hpp"
#include "shared/algorithm/local_work.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/parser.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::server {

struct RunSettings {
  std::string model = "lenet";
  std::string strategy = "fedavg";
  std::uint64_t seed = 0;  // A server draws one where none is given (run_queue.cpp).
  Round rounds = 10;
  /// Clients needed before a round starts, and updates accepted before it may close.
  std::uint32_t min_clients = 2;
  std::uint32_t clients_per_round = 0;  // 0: `fraction` decides.
  double fraction = 1.0;                // A fraction of the connected clients.
  std::string sampling = "uniform";
  std::string weights;  // For check_weights() (masked_settings.hpp); "": see weighs_equally().
  std::string mode = "sync";
  double over_select = 1.0;  // Asks this many times as many clients as needed; 0: adapts.
  double deadline_s = 600;  // The time for a round, in an asynchronous run for a task; 0: no limit.
  std::uint32_t local_epochs = 0;  // 0: not given; one epoch, unless steps or seconds are given.
  std::uint32_t local_steps = 0;   // 0: epochs.
  std::string local_steps_schedule = "constant";
  double local_seconds = 0;  // 0: no limit.
  std::uint32_t batch_size = 64;
  std::uint32_t accumulate = 1;
  std::string optimizer = "sgd";
  double lr = 0.01;
  std::string lr_schedule = "constant";
  double momentum = 0.9;
  double weight_decay = 0;
  double clip_norm = 0;  // 0: none.
  double proximal_mu = 0;
  std::string codec = "ecuq:4";  // Unbiased; an eighth of the bytes of fp32.
  std::string downlink_codec = "none";
  std::string aggregate = "mean";          // A rule of server/sums/aggregate_rule.hpp.
  std::string secure_aggregation = "off";  // For parse_secure_aggregation().
  std::string metric;          // The main metric; "": the target's, or the first reported.
  std::string target;          // For parse_target() (target.hpp); "": none.
  double target_accuracy = 0;  // Short for a target "accuracy>=X"; 0: none.
  std::uint32_t patience = 0;  // Versions in a row that may be no better; 0: no limit.
  /// The fewest examples that a value for the target is measured on.
  std::uint32_t target_examples = 10;
  double norm_limit = 1000;             // Times the median norm (norm_limit.hpp); 0: none.
  double weight_cap = 10;               // Times the median of the clients' examples; 0: none.
  std::uint32_t keep_checkpoints = 10;  // 0: keeps all.
  bool keep_best = true;                // Keeps the best version besides these (retention.hpp).
  std::string keep_updates = "none";    // For parse_kept_rounds().
  std::string initial_weights;  // Absolute path of a safetensors file; "": weights from the seed.
  /// The model's tensors if the model is custom:NAME; empty otherwise. They are those of the
  /// initial weights, sorted by name, with statistics (layout.hpp) last: so the order in the file
  /// does not matter.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors;
};

/// Sets `tensors` if the model is custom:NAME; does nothing otherwise. Errors: invalid_input
/// without initial weights, and the errors of reading the file's header.
[[nodiscard]] Result<void> take_tensors(Files& files, RunSettings& settings);
/// The layout of a built-in model, or of a custom one after take_tensors().
[[nodiscard]] Result<Layout> model_layout(const RunSettings& settings);

[[nodiscard]] std::string to_json(const RunSettings& settings);
[[nodiscard]] Result<RunSettings> settings_from_json(const std::string& json);

/// The codec that settings.downlink_codec names. The server always carries what the codec loses
/// into the next step, so "+ef" is added where it is missing. Round and errors: see parse_codec().
[[nodiscard]] Result<std::shared_ptr<const codec::Codec>> parse_downlink_codec(
    const std::string& spec, std::uint32_t round = codec::warmed_up);

/// The number of newest rounds whose updates are kept: 0 for "none", all_rounds for "all". Errors:
/// invalid_input.
[[nodiscard]] Result<Round> parse_kept_rounds(std::string_view text);
inline constexpr Round all_rounds = std::numeric_limits<Round>::max();

/// The local work that a round asks clients for, without the task's seed. The settings have passed
/// check_settings(). `losses`: the training losses of the rounds before this one, the first round's
/// first; more may follow.
[[nodiscard]] TrainSettings local_work(const RunSettings& settings, const Strategy& strategy,
                                       Round round, std::span<const double> losses);

/// Checks everything that can be wrong with the settings themselves: each by itself, then whether
/// they fit each other. Errors name the flag.
[[nodiscard]] Result<void> check_settings(const RunSettings& settings);

}  // namespace fl::server
