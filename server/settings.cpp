#include "server/settings.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace fl {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RunSettings, model, seed, rounds, min_clients,
                                                clients_per_round, fraction, over_select,
                                                deadline_s, local_epochs, local_steps, batch_size,
                                                lr, momentum, weight_decay, proximal_mu, codec,
                                                downlink_codec, target_accuracy, keep_checkpoints,
                                                initial_weights)

std::string to_json(const RunSettings& settings) { return nlohmann::json(settings).dump(); }

Result<RunSettings> settings_from_json(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object())
    return Error(Errc::corrupt, "the stored settings of the run are no JSON object");
  try {
    return parsed.get<RunSettings>();
  } catch (const nlohmann::json::exception& error) {
    return Error(Errc::corrupt, fmt::format("the stored settings of the run: {}", error.what()));
  }
}

Result<std::shared_ptr<const Codec>> parse_downlink_codec(const std::string& spec,
                                                          std::uint32_t round) {
  if (spec == "none" || spec == "none+ef") return parse_codec("none");  // Loses nothing.
  FL_TRY(auto codec, parse_codec(spec, round));
  if (codec->error_feedback()) return codec;
  return parse_codec(spec + "+ef", round);
}

Result<void> check_settings(const RunSettings& s) {
  const auto bad = [](std::string_view flag, std::string_view why) {
    return Error(Errc::invalid_input, fmt::format("--{} {}", flag, why));
  };
  if (s.rounds == 0) return bad("rounds", "must be 1 or more");
  if (s.min_clients == 0) return bad("min-clients", "must be 1 or more");
  if (!(s.fraction > 0 && s.fraction <= 1)) return bad("fraction", "must be above 0 and at most 1");
  if (!(s.over_select >= 1 && s.over_select <= 100))
    return bad("over-select", "must be from 1 to 100");
  if (!(s.deadline_s >= 0 && s.deadline_s <= 1e7))
    return bad("deadline", "must be from 0 to 1e7 seconds");
  if (s.local_epochs == 0 && s.local_steps == 0) return bad("local-epochs", "must be 1 or more");
  if (s.batch_size == 0) return bad("batch-size", "must be 1 or more");
  if (!(std::isfinite(s.lr) && s.lr > 0)) return bad("lr", "must be above 0");
  if (!(s.momentum >= 0 && s.momentum < 1))
    return bad("momentum", "must be at least 0 and below 1");
  if (!(std::isfinite(s.weight_decay) && s.weight_decay >= 0))
    return bad("weight-decay", "must be 0 or more");
  if (!(std::isfinite(s.proximal_mu) && s.proximal_mu >= 0))
    return bad("proximal-mu", "must be 0 or more");
  if (!(s.target_accuracy >= 0 && s.target_accuracy <= 1)) {
    return bad("target-accuracy", "must be from 0 to 1 (0.86 for 86%)");
  }
  if (s.clients_per_round != 0 && s.clients_per_round < s.min_clients) {
    return bad("clients-per-round",
               fmt::format("is {}, below --min-clients {}", s.clients_per_round, s.min_clients));
  }
  if (auto codec = parse_codec(s.codec); !codec) return codec.error().at("--codec");
  if (auto codec = parse_downlink_codec(s.downlink_codec); !codec)
    return codec.error().at("--downlink-codec");
  return {};
}

}  // namespace fl
