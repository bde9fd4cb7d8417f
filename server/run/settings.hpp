// What one run trains and how: the flags of fl-server that belong to the run and not to the
// machine. Stored as JSON with the run, so that the next start goes on with the same settings.
#pragma once

#include "server/history/store.hpp"
#include "shared/algorithm/local_work.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/encode/codec.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

struct RunSettings {
  std::string model = "lenet";
  std::string strategy = "fedavg";
  std::uint64_t seed = 0;
  Round rounds = 10;
  std::uint32_t min_clients = 2;        // Before a round starts, and accepted before it may close.
  std::uint32_t clients_per_round = 0;  // 0: by fraction.
  double fraction = 1.0;                // Of the connected clients.
  std::string sampling = "uniform";
  std::string mode = "sync";
  double over_select = 1.0;        // Asks this many times the clients it needs; 0: adapts.
  double deadline_s = 600;         // Of one round; of one task when asynchronous; 0: none.
  std::uint32_t local_epochs = 0;  // 0: not given. One, where nothing else ends the work.
  std::uint32_t local_steps = 0;
  std::string local_steps_schedule = "constant";
  double local_seconds = 0;  // 0: no bound.
  std::uint32_t batch_size = 64;
  std::uint32_t accumulate = 1;
  std::string optimizer = "sgd";
  double lr = 0.01;
  std::string lr_schedule = "constant";
  double momentum = 0.9;
  double weight_decay = 0;
  double proximal_mu = 0;
  std::string codec = "ecuq:4";  // Unbiased; an eighth of the bytes.
  std::string downlink_codec = "none";
  double target_accuracy = 0;           // 0: none.
  std::uint32_t patience = 0;           // Versions without a better accuracy; 0: no limit.
  std::uint32_t keep_checkpoints = 10;  // 0: all.
  std::string initial_weights;          // Absolute path of a safetensors file; "": from the seed.
  /// Names and shapes, where the model is custom:NAME: those of its initial weights, by name, and
  /// statistics (layout.hpp) last: so what a file's order is does not matter.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors;
};

inline constexpr std::string_view custom_prefix = "custom:";

/// Sets `tensors`, where the model wants them. Errors: invalid_input, without initial weights, and
/// what the file's header has.
[[nodiscard]] Result<void> take_tensors(Files& files, RunSettings& settings);
/// Of a built-in model, or of one whose tensors are taken.
[[nodiscard]] Result<Layout> model_layout(const RunSettings& settings);

[[nodiscard]] std::string to_json(const RunSettings& settings);
[[nodiscard]] Result<RunSettings> settings_from_json(const std::string& json);

/// What settings.downlink_codec names. The server always carries what it loses into the next step,
/// so it is parsed with "+ef" even where that isn't said. Round and errors as parse_codec().
[[nodiscard]] Result<std::shared_ptr<const Codec>> parse_downlink_codec(
    const std::string& spec, std::uint32_t round = warmed_up);

/// The local work that clients are asked for in a round, but for the task's seed. The settings have
/// passed check_settings(). `losses`: the training losses of the rounds before it at least, the
/// first round's first.
[[nodiscard]] TrainSettings local_work(const RunSettings& settings, const Strategy& strategy,
                                       Round round, std::span<const double> losses);

/// Everything that can be wrong with the settings themselves, named by flag.
[[nodiscard]] Result<void> check_settings(const RunSettings& settings);

}  // namespace fl
