// SPDX-License-Identifier: Apache-2.0
#include "server/cohort/codec_choice.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/median.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace fl::server {

namespace {

constexpr std::string_view default_ladder =
    "none+ef|fp16+ef|kbit:8+ef|ecuq:4+ef|ecuq:2+ef|ecuq:1+ef|ecuq:0.5+ef|ecuq:0.25+ef|ecuq:0.1+ef";
constexpr double deadline_share = 0.8;
constexpr double pace_slack = 1.25;
constexpr double too_slow_slack = 1.1;

/// The rung of a client with an unknown speed.
std::size_t middle_of(std::span<const Rung> rungs) { return rungs.size() / 2; }

bool is_measured(const ClientHistory& client) { return client.update_bytes > 0; }

double predicted_seconds(const ClientHistory& client, const Rung& rung) {
  const double uploads = static_cast<double>(rung.bytes) / static_cast<double>(client.update_bytes);
  return client.ready_seconds + client.upload_seconds * uploads;
}

/// A matrix of Gaussian values, as large as values of updates are, to measure codecs with.
struct Sample {
  static constexpr std::int64_t side = 128;
  Layout layout = Layout::make({{"sample", {side, side}}}).value();
  std::vector<float> values = std::vector<float>(layout.elements());

  Sample() {
    kernels().gaussian(0, 0, 0, values.data(), values.size());
    for (float& value : values) value *= 0.01F;
  }
};

std::uint64_t expected_bytes(const codec::Codec& codec, const Layout& layout) {
  static const Sample sample;
  std::vector<std::byte> payload;
  codec::VectorSink sink(payload);
  const std::uint64_t bytes = codec.encode(sample.layout, sample.values, 0, sink).value();
  constexpr std::uint64_t head = codec::payload_header_bytes;
  const double share =
      static_cast<double>(layout.elements()) / static_cast<double>(sample.values.size());
  return std::min(head + static_cast<std::uint64_t>(static_cast<double>(bytes - head) * share),
                  codec.payload_bytes_max(layout));
}

}  // namespace

Result<std::vector<std::string>> parse_ladder(std::string_view codec) {
  std::vector<std::string> ladder;
  if (codec != "auto" && !codec.starts_with("auto:")) {
    ladder.emplace_back(codec);
  } else {
    const std::string_view list = codec == "auto" ? default_ladder : codec.substr(5);
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find('|', begin), list.size());
      ladder.emplace_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  float momentum = 0;
  for (const std::string& spec : ladder) {
    FL_TRY(const auto parsed, codec::parse_codec(spec));
    if (spec != ladder.front() && parsed->momentum() != momentum) {
      return Error(
          Errc::invalid_input,
          fmt::format("'{}' and '{}' have different momenta; a client keeps only one velocity, "
                      "so give both the same",
                      ladder.front(), spec));
    }
    momentum = parsed->momentum();
  }
  return ladder;
}

std::vector<Rung> rungs_of(std::span<const std::string> ladder, Round round, const Layout& layout) {
  std::vector<Rung> rungs;
  for (const std::string& spec : ladder) {
    const auto codec = codec::parse_codec(spec, round).value();
    rungs.push_back({codec->canonical(), ladder.size() > 1 ? expected_bytes(*codec, layout) : 0});
  }
  return rungs;
}

TimeLimit time_limit(std::span<const Rung> rungs, double deadline_s,
                     const std::map<std::string, ClientHistory>& histories) {
  if (deadline_s > 0) {
    return {deadline_share * deadline_s,
            fmt::format("{:.0f}% of the deadline, {:g} s", 100 * deadline_share, deadline_s)};
  }
  const Rung& middle = rungs[middle_of(rungs)];
  std::vector<double> seconds;
  for (const auto& [name, client] : histories) {
    if (is_measured(client)) seconds.push_back(predicted_seconds(client, middle));
  }
  // Without measurements there is no limit, and no client counts as late.
  if (seconds.empty()) return {std::numeric_limits<double>::infinity(), ""};
  const double median = lower_median(std::move(seconds));
  return {pace_slack * median,
          fmt::format("{:.0f}% of the {:.2f} s that half of the clients need with {}",
                      100 * pace_slack, median, middle.codec)};
}

CodecChoice choose_codec(std::span<const Rung> rungs, const TimeLimit& limit,
                         const ClientHistory& client) {
  if (rungs.size() == 1) return {rungs[0].codec, ""};
  const auto coarsest = std::ssize(rungs) - 1;
  std::ptrdiff_t below_late = 0;
  std::string was_late;
  const auto late = std::ranges::find(rungs, client.late_codec, &Rung::codec);
  // A client is not to blame for being late if the round closed early, with the updates it needed.
  if (late != rungs.end() && client.last_seconds >= limit.seconds) {
    below_late = std::min(late - rungs.begin() + 1, coarsest);
    was_late = fmt::format("its last update, with {}, was late: one codec coarser", late->codec);
  }
  if (!is_measured(client)) {
    if (below_late > 0) return {rungs[static_cast<std::size_t>(below_late)].codec, was_late};
    return {rungs[middle_of(rungs)].codec,
            "no upload of this client is measured yet: the middle of the ladder"};
  }
  const double least = predicted_seconds(client, rungs.back());
  const bool is_too_slow = least > limit.seconds;
  const double allowed = is_too_slow ? too_slow_slack * least : limit.seconds;
  const auto is_in_time = [&](const Rung& rung) {
    return predicted_seconds(client, rung) <= allowed;
  };
  const auto finest = std::min(std::ranges::find_if(rungs, is_in_time) - rungs.begin(), coarsest);
  if (below_late > finest) return {rungs[static_cast<std::size_t>(below_late)].codec, was_late};
  const Rung& rung = rungs[static_cast<std::size_t>(finest)];
  const std::string why =
      is_too_slow
          ? fmt::format(
                "{:.0f}% of what the coarsest codec needs, as that is more than {:.2f} s, {}",
                100 * too_slow_slack, limit.seconds, limit.why)
          : limit.why;
  return {
      rung.codec,
      fmt::format("starts to send after {:.2f} s, then needs {:.2f} s for {:.1f} kB at its {:.1f} "
                  "kB/s; the limit is {:.2f} s: {}",
                  client.ready_seconds, predicted_seconds(client, rung) - client.ready_seconds,
                  static_cast<double>(rung.bytes) / 1e3,
                  static_cast<double>(client.update_bytes) / client.upload_seconds / 1e3, allowed,
                  why)};
}

}  // namespace fl::server
