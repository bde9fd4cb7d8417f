// SPDX-License-Identifier: Apache-2.0
#include "server/round/announcement.hpp"

#include "shared/base/io/digest.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace fl::server {

namespace {

std::string not_a_duration(std::string_view what, double value) {
  return fmt::format("{} is {} s; it must be 0 or more, and finite", what, value);
}

}  // namespace

Result<void> check_origin(const wire::UploadBegin& begin, const TaskRecord& task) {
  const Version base = task.base_version;
  if (begin.round() != round_from(base)) {
    return Error(Errc::conflict, fmt::format("it says that its task was offered in round {}; that "
                                             "was round {}",
                                             begin.round(), round_from(base)));
  }
  if (begin.version() != base) {
    return Error(Errc::conflict, fmt::format("it was trained from model version {}, not {}",
                                             begin.version(), base));
  }
  if (!Digest::from_bytes(begin.digest()))
    return Error(Errc::invalid_input, "its digest does not have 16 bytes");
  return {};
}

Result<void> check_coding(const wire::UploadBegin& begin, const TaskRecord& task,
                          const Layout& layout) {
  if (begin.codec() != task.codec) {
    return Error(Errc::invalid_input, fmt::format("it is coded as '{}'; the task asked for '{}'",
                                                  begin.codec().substr(0, 64), task.codec));
  }
  if (begin.reference() != 0 && TaskId{begin.reference()} != task.reference) {
    return Error(Errc::conflict, fmt::format("it is the difference to the update of task {}; the "
                                             "task asked for the difference to task {}",
                                             begin.reference(), task.reference));
  }
  // A codec may change while it warms up: the task names the one of its round.
  const auto codec = codec::parse_codec(task.codec).value();
  const std::uint64_t bytes_max = codec->payload_bytes_max(layout);
  if (begin.bytes() == 0 || begin.bytes() > bytes_max) {
    return Error(Errc::too_large, fmt::format("it has {} bytes; 1 to {} fit the model and codec",
                                              begin.bytes(), bytes_max));
  }
  return {};
}

Result<void> check_work(const wire::UploadBegin& begin, const TaskRecord& task, const RunPlan& plan,
                        std::span<const double> losses) {
  if (begin.examples() == 0) return Error(Errc::invalid_input, "its weight is 0 examples");
  if (begin.examples() > task.examples) {
    return Error(Errc::invalid_input, fmt::format("its weight is {} examples; the client has {}",
                                                  begin.examples(), task.examples));
  }
  // As many steps as with mini-batches of one example each.
  const std::uint64_t most =
      steps_max(plan.work_of(round_from(task.base_version), losses), begin.examples());
  if (begin.steps() == 0 || begin.steps() > most) {
    return Error(Errc::invalid_input,
                 fmt::format("it took {} steps; 1 to {} were asked for", begin.steps(), most));
  }
  return {};
}

Result<void> check_figures(const wire::UploadBegin& begin) {
  const auto is_duration = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!std::isfinite(begin.loss()))
    return Error(Errc::invalid_input, "its training loss is not finite");
  FL_CHECK(check_predictions(begin.predictions()));
  if (!is_duration(begin.train_seconds())) {
    return Error(Errc::invalid_input, not_a_duration("its training time", begin.train_seconds()));
  }
  if (!is_duration(begin.encode_seconds())) {
    return Error(Errc::invalid_input, not_a_duration("its coding time", begin.encode_seconds()));
  }
  for (const double time : {begin.save_seconds(), begin.residual_seconds(), begin.digest_seconds(),
                            begin.sync_seconds()}) {
    if (!is_duration(time))
      return Error(Errc::invalid_input, not_a_duration("a time of saving the update", time));
  }
  if (!is_duration(begin.nmse()))
    return Error(Errc::invalid_input,
                 fmt::format("its coding error (nmse) is {}; it must be 0 or more, and finite",
                             begin.nmse()));
  for (const int metrics : {begin.holdout_metrics_size(), begin.own_metrics_size()}) {
    if (static_cast<std::size_t>(metrics) > limits::metrics_max)
      return Error(Errc::invalid_input,
                   fmt::format("it has {} metrics; the limit is {}", metrics, limits::metrics_max));
  }
  if (begin.setup().size() > limits::setup_bytes_max)
    return Error(Errc::invalid_input,
                 fmt::format("its text on how it trained has {} bytes; the limit is {}",
                             begin.setup().size(), limits::setup_bytes_max));
  const wire::SyncTimes& sync = begin.sync();
  for (const double time : {sync.compute_seconds(), sync.exposed_seconds(), sync.hidden_seconds(),
                            sync.coding_seconds()}) {
    if (!is_duration(time))
      return Error(Errc::invalid_input, not_a_duration("a time of its ranks", time));
  }
  return {};
}

void note_figures(TaskRecord& record, const Task& task, const UploadGrant& grant,
                  const Arrival& arrival) {
  const auto& begin = grant.begin;
  record.loss = begin.loss();
  if (begin.has_predictions()) record.predictions = begin.predictions();
  // A client can't have worked longer than the time that has passed. After a restart of the server
  // the offer is younger than the work.
  const double passed = std::max(seconds(arrival.at - task.offered_at),
                                 Clock::unix_seconds() - arrival.round_started_at);
  record.train_seconds = std::min(begin.train_seconds(), passed);
  record.update_bytes = begin.bytes();
  record.raw_bytes = arrival.raw_bytes;
  record.encode_seconds = std::min(begin.encode_seconds(), passed);
  // Releases before this one say nothing of the rest.
  record.save_seconds = std::max(record.encode_seconds, std::min(begin.save_seconds(), passed));
  double rest = record.save_seconds - record.encode_seconds;
  const auto part = [&rest](double told) {
    const double fits = std::min(told, rest);
    rest -= fits;
    return fits;
  };
  record.residual_seconds = part(begin.residual_seconds());
  record.digest_seconds = part(begin.digest_seconds());
  record.sync_seconds = part(begin.sync_seconds());
  record.nmse = begin.nmse();
  record.ready_seconds = std::max(seconds(task.begun_at - task.offered_at),
                                  record.train_seconds + record.save_seconds);
  if (const std::uint64_t sent = begin.bytes() - grant.offset; sent > 0) {
    record.upload_seconds = seconds(arrival.at - grant.began_at) *
                            static_cast<double>(begin.bytes()) / static_cast<double>(sent);
  }
  record.update_digest = grant.upload->digest();
  record.setup = printable(begin.setup(), limits::setup_bytes_max);
  record.ranks = begin.sync().ranks();
  record.compute_seconds = std::min(begin.sync().compute_seconds(), passed);
  record.exposed_seconds = std::min(begin.sync().exposed_seconds(), passed);
  record.hidden_seconds = std::min(begin.sync().hidden_seconds(), passed);
  record.coding_seconds = std::min(begin.sync().coding_seconds(), passed);
  record.fp32_steps = std::min(begin.sync().fp32_steps(), begin.steps());
  // The client's time ends here: from now on its update may wait for others.
  record.seconds = std::max(seconds(arrival.at - task.offered_at), record.ready_seconds);
}

}  // namespace fl::server
