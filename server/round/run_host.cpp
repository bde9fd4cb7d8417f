// SPDX-License-Identifier: Apache-2.0
#include "server/round/run_host.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

Error RunHost::other_tensors(const wire::Bye& bye) const {
  parts_.control.expect_strand();
  const RunPlan& plan = parts_.control.plan;
  std::vector<TensorSpec> told;
  for (const auto& tensor : bye.tensors())
    told.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}});
  return {
      Errc::invalid_input,
      fmt::format("the run's model '{}' has other tensors than the client's: {}", plan.run.model,
                  describe_differences(plan.layout, told, !bye.has_more_tensors()))};
}

Awaitable<Result<Download>> RunHost::download(std::shared_ptr<Peer> peer, wire::Fetch fetch) {
  parts_.control.expect_strand();
  auto found = parts_.versions.download(fetch);
  while (will_pass(found) && !parts_.control.is_going_down()) {
    co_await sleep_for(limits::full_disk_pause);
    found = parts_.versions.download(fetch);
  }
  if (!found) {
    // The client would wait for a version that never comes; the next start looks at all of them.
    if (!will_pass(found.error()) && found.error().code() != Errc::not_found)
      parts_.control.fail(found.error());
    co_return found;
  }
  found->chunk_bytes_max = parts_.transfers.budget().chunk_bytes_max(found->model.bytes());
  parts_.transfers.begin(peer, TransferWay::down, fetch.version(),
                         {found->model.bytes(), found->model.offset(), found->chunk_bytes_max});
  co_return found;
}

Awaitable<UploadGrant> RunHost::begin_upload(std::shared_ptr<Peer> peer, wire::UploadBegin begin) {
  parts_.control.expect_strand();
  UploadGrant grant = co_await parts_.uploads.begin(peer, std::move(begin));
  if (!grant.upload) co_return grant;
  parts_.transfers.begin(peer, TransferWay::up, grant.begin.round(),
                         {grant.upload->bytes(), grant.offset, grant.chunk_bytes_max});
  co_return grant;
}

Awaitable<wire::Verdict> RunHost::finish_upload(std::shared_ptr<Peer> peer, UploadGrant grant) {
  parts_.control.expect_strand();
  parts_.transfers.note_arrived(*peer);
  co_return co_await parts_.uploads.finish(std::move(peer), std::move(grant));
}

Awaitable<Result<void>> RunHost::take_secure(std::shared_ptr<Peer> peer, wire::Header message) {
  parts_.control.expect_strand();
  if (parts_.masked == nullptr)
    co_return Error(Errc::protocol,
                    fmt::format("{} in a run that is not masked", kind_name(message)));
  co_return co_await parts_.masked->take(std::move(peer), std::move(message));
}

Awaitable<void> RunHost::record_failure(std::shared_ptr<Peer> peer, wire::Failed failed) {
  parts_.control.expect_strand();
  const std::string name = peer->facts().name;
  const std::string reason = printable(failed.reason(), limits::reason_bytes_max);
  parts_.control.report_of(name, EventLevel::warning, fmt::format("{} says: {}", name, reason));
  if (failed.task() == 0) {
    parts_.evaluations.note_answered(*peer, failed.version());
    co_return;
  }
  const TaskId task{failed.task()};
  if (parts_.masked != nullptr && parts_.masked->note_leaving(name, task, reason)) co_return;
  co_await parts_.decisions.fail_task(name, task, reason);
}

Awaitable<void> RunHost::end_slow_upload(std::shared_ptr<Peer> peer, TaskId id, bool trickles,
                                         std::string text) {
  parts_.control.expect_strand();
  const std::string name = peer->facts().name;
  parts_.control.report_of(name, EventLevel::warning, fmt::format("{}: {}", name, text));
  Task* const task = parts_.tasks.find(name, id);
  if (task == nullptr) co_return;
  if (++task->slow_uploads < limits::slow_uploads_max && !trickles) co_return;
  co_await parts_.decisions.lose_task(name, id, std::move(text));
}

void RunHost::revoke(const std::string& name) {
  parts_.attendance.expel(name, "it was revoked");
  parts_.evaluations.forget(name);
}

}  // namespace fl::server
