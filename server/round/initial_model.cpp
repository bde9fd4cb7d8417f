// SPDX-License-Identifier: Apache-2.0
#include "server/round/initial_model.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fl {

void InitialModel::ask_next() {
  parts_.control.expect_strand();
  if (!parts_.plan.came_from_seed()) return;
  if (!asked_.empty() && Clock::now() < next_ask_at_) return;
  const auto candidates = parts_.roster.trainers();
  if (asked_.size() >= candidates.size()) asked_.clear();  // All were asked: begin again.
  for (const auto& candidate : candidates) {
    if (!asked_.insert(candidate->facts().name).second) continue;
    next_ask_at_ = Clock::now() + limits::initialiser_patience;
    wire::Header header;
    header.mutable_initialise();
    candidate->post(std::move(header));
    return;
  }
}

TimePoint InitialModel::next_ask_at() const { return asked_.empty() ? never : next_ask_at_; }

void InitialModel::note_failure(const std::string& client) {
  if (asked_.contains(client)) next_ask_at_ = Clock::now() + limits::ask_again_min;
}

Awaitable<UploadGrant> InitialModel::begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin) {
  parts_.control.expect_strand();
  if (!parts_.versions.empty()) co_return answer_at_once(begin, wire::Verdict::ACCEPTED, "");
  if (!asked_.contains(peer->facts().name))
    co_return answer_at_once(begin, wire::Verdict::STALE, "another client was asked");
  const std::uint64_t bytes_max =
      parse_codec("none").value()->payload_bytes_max(parts_.plan.layout);
  const bool fits = begin.codec() == "none" && begin.bytes() > 0 && begin.bytes() <= bytes_max &&
                    Digest::from_bytes(begin.digest()).has_value();
  if (!fits)
    co_return answer_at_once(begin, wire::Verdict::REFUSED,
                             "these initial weights do not fit the run's model");
  begin.set_task(0);
  co_return co_await parts_.uploads.open(std::move(begin));
}

Awaitable<wire::Verdict> InitialModel::finish(std::shared_ptr<Peer> peer, UploadGrant grant) {
  parts_.control.expect_strand();
  RunControl& control = parts_.control;
  const auto& begin = grant.begin;
  if (!parts_.versions.empty() || is_being_made_)
    co_return verdict_for(begin, wire::Verdict::STALE, "the initial model is there");
  is_being_made_ = true;
  auto work = [this, upload = grant.upload] { return write_upload(*upload); };
  const auto made = co_await parts_.compute.run(std::move(work));
  Result<void> recorded = success();
  if (made) {
    recorded = co_await record(*made);
  } else {
    recorded = made.error();
  }
  is_being_made_ = false;
  // Wrong bytes must go too: the next client that is asked would append to them.
  auto removed = parts_.spool.remove(grant.upload->file_name());
  if (!removed) control.fail(removed.error());
  if (!recorded) {
    const Error& error = recorded.error();
    if (error.code() == Errc::io || error.code() == Errc::internal) control.fail(error);
    next_ask_at_ = Clock::now() + limits::ask_again_min;
    control.changed.notify();
    control.report(EventLevel::warning, fmt::format("{}: initial weights refused: {}",
                                                    peer->facts().name, error.message()));
    co_return verdict_for(begin, wire::Verdict::REFUSED, error.message());
  }
  if (auto published = publish(*made); !published) {
    control.fail(published.error());
    co_return verdict_for(begin, wire::Verdict::LATER, "the server stops");
  }
  log_info("initial model of {} parameters, digest {}", parts_.plan.layout.elements(),
           made->digest.hex());
  co_return verdict_for(begin, wire::Verdict::ACCEPTED, "");
}

Awaitable<Result<void>> InitialModel::take_file() {
  parts_.control.expect_strand();
  auto work = [this] { return write_file(); };
  const auto made = co_await parts_.store.with_room(parts_.compute, std::move(work));
  if (!made) co_return made.error();
  FL_CO_CHECK(co_await record(*made));
  co_return publish(*made);
}

/// On a worker.
Result<CheckpointRecord> InitialModel::write_upload(Upload& upload) const {
  FL_CHECK(upload.finish());
  const RunPlan& plan = parts_.plan;
  FileSource source(*upload.file());
  FL_TRY(auto reader, PayloadReader::open(source, upload.bytes(), plan.layout));
  FL_TRY(auto out, CheckpointWriter::create(parts_.files, parts_.versions.folder(), 0, plan.layout,
                                            {{"run", plan.run.key}, {"model", plan.run.model}}));
  std::vector<float> values;
  for (std::uint64_t index = 0; index < reader.blocks(); ++index) {
    values.resize(reader.block(index).elements);
    FL_TRY([[maybe_unused]] const Scan scan, reader.decode(index, values));
    FL_CHECK(out.append(values));
  }
  return out.finish();
}

/// On a worker.
Result<CheckpointRecord> InitialModel::write_file() const {
  const RunPlan& plan = parts_.plan;
  const std::string& path = plan.settings.initial_weights;
  auto read = read_initial_weights(parts_.files, path, plan.model, *plan.strategy);
  // A file that can't be read is the run's fault, not the disk's.
  if (!read && read.error().code() == Errc::io)
    return Error(Errc::invalid_input, read.error().message());
  FL_CHECK(read);
  if (!read->unused.empty()) {
    log_info("{}: these tensors are not used: {}{}", path,
             fmt::format("{}", fmt::join(read->unused, ", ")),
             plan.run_layout.personal_elements > 0
                 ? "; each client makes the personal tensors itself, from the seed"
                 : "");
  }
  // What travels with the model begins with zeros.
  std::vector<float> values = std::move(read->values);
  values.resize(plan.layout.elements());
  FL_TRY(auto out, CheckpointWriter::create(
                       parts_.files, parts_.versions.folder(), 0, plan.layout,
                       {{"run", plan.run.key}, {"model", plan.run.model}, {"from", path}}));
  FL_CHECK(out.append(values));
  return out.finish();
}

Awaitable<Result<void>> InitialModel::record(CheckpointRecord made) {
  auto write = [run = parts_.plan.run.id, made](Store& store) {
    return store.set_initial_model(run, made);
  };
  FL_CO_CHECK(co_await parts_.store.with_store(std::move(write)));
  failpoint("initial.committed");
  co_return success();
}

Result<void> InitialModel::publish(const CheckpointRecord& made) {
  FL_CHECK(parts_.versions.publish(made));
  parts_.evaluations.ask_all(false);
  parts_.control.changed.notify();
  return {};
}

}  // namespace fl
