// SPDX-License-Identifier: Apache-2.0
#include "server/versions/versions.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<void> Versions::open_all(const std::vector<CheckpointRecord>& records) {
  for (const auto& record : records) {
    auto version = open_version(files_, folder_, record, layout_);
    const bool is_lost = !version && (version.error().code() == Errc::not_found ||
                                      version.error().code() == Errc::corrupt);
    if (is_lost) {
      return Error(version.error().code(),
                   fmt::format("{}; the run can't go on without this checkpoint: put it back, or "
                               "begin another run with --new-run",
                               version.error().message()));
    }
    FL_CHECK(version);
    versions_[record.version] = std::move(*version);
  }
  return {};
}

Result<void> Versions::publish(const CheckpointRecord& record) {
  FL_TRY(auto version, open_written(files_, folder_, record, layout_));
  versions_[record.version] = std::move(version);
  return {};
}

/// The chain of coded steps from the client's version to the requested one, if all of them exist
/// and are shorter than the model; else empty.
Result<std::vector<Segment>> Versions::coded_steps(const wire::Fetch& fetch) const {
  std::vector<Segment> chain;
  if (!fetch.have_base() || fetch.have_version() >= fetch.version()) return chain;
  const auto base = versions_.find(fetch.have_version());
  const bool is_known =
      base != versions_.end() && base->second->record.digest.raw() == fetch.have_digest();
  if (!is_known || fetch.version() - fetch.have_version() > limits::coded_steps_max) return chain;
  std::uint64_t bytes = 0;
  for (Version step = fetch.have_version() + 1; step <= fetch.version(); ++step) {
    const auto at = versions_.find(step);
    if (at == versions_.end() || at->second->record.delta_file.empty()) return chain;
    bytes += at->second->record.delta_bytes;
  }
  if (bytes >= layout_.bytes()) return chain;
  for (Version step = fetch.have_version() + 1; step <= fetch.version(); ++step) {
    const auto& version = *versions_.at(step);
    FL_TRY(auto file, version.delta.open());
    auto mapping = version.delta.map(*file, version.record.delta_bytes);
    chain.push_back({std::move(file), 0, version.record.delta_bytes, std::move(mapping)});
  }
  return chain;
}

Result<Download> Versions::download(const wire::Fetch& fetch) const {
  const auto found = versions_.find(fetch.version());
  if (found == versions_.end())
    return Error(Errc::not_found, fmt::format("model version {} is not kept", fetch.version()));
  const auto& version = *found->second;
  Download answer;
  auto& model = answer.model;
  model.set_version(fetch.version());
  model.set_digest(version.record.digest.raw());
  FL_TRY(auto steps, coded_steps(fetch));
  if (!steps.empty()) {
    Version step = fetch.have_version();
    for (const Segment& segment : steps) {
      auto& delta = *model.add_deltas();
      delta.set_version(++step);
      delta.set_bytes(segment.bytes);
    }
    answer.source = SegmentSource(std::move(steps));
  } else {
    model.set_full(true);
    FL_TRY(auto file, version.file.open());
    auto mapping = version.file.map(*file, version.data_offset + layout_.bytes());
    answer.source = SegmentSource(
        {{std::move(file), version.data_offset, layout_.bytes(), std::move(mapping)}});
  }
  model.set_bytes(answer.source.bytes());
  // The transfer's number follows from its bytes, so it is the same for every client and after a
  // restart. Should two share a number, the model's digest tells them apart in the end.
  const std::string identity =
      fmt::format("{}/{}/{}", version.record.digest.hex(), model.full() ? "full" : "delta",
                  model.full() ? 0 : fetch.have_version());
  model.set_transfer(
      static_cast<std::uint32_t>(Digest::of(bytes_of(std::string_view(identity))).short_id()));
  const bool resumes = fetch.transfer() == model.transfer() && fetch.offset() < model.bytes();
  model.set_offset(resumes ? fetch.offset() : 0);
  return answer;
}

Result<void> Versions::drop(Version version) {
  const auto dropped = versions_.extract(version);
  return remove_files(dropped.mapped()->record);
}

Result<void> Versions::remove_files(const CheckpointRecord& record) const {
  FL_CHECK(files_.remove(folder_ / record.file));
  if (record.delta_file.empty()) return {};
  return files_.remove(folder_ / record.delta_file);
}

}  // namespace fl::server
