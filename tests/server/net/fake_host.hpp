// SPDX-License-Identifier: Apache-2.0
// A host of sessions without a run behind it: it answers what a test has prepared, and keeps what
// it was asked.
#pragma once

#include "server/host/session_hosts.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::server;

class FakeHost final : public SessionHost {
 public:
  explicit FakeHost(net::any_io_executor executor) : executor_(std::move(executor)) {}

  // The answers.
  Result<wire::Welcome> greeting = wire::Welcome();
  Result<void> admission = success();
  Result<Download> model = Error(Errc::not_found, "there is no such version");
  UploadGrant grant;
  wire::Verdict verdict;

  std::vector<std::string> calls;             // In their order.
  std::vector<std::shared_ptr<Peer>> joined;  // Sessions that have joined and not left.

  net::any_io_executor executor() const override { return executor_; }
  RunId run_id() const override { return 1; }

  Result<wire::Welcome> welcome(const std::string& name, const wire::Hello&) override {
    if (!greeting) return greeting;
    wire::Welcome welcome = *greeting;
    welcome.set_name(name);
    return welcome;
  }
  void note_decline(const std::string& name, const std::string& reason) override {
    note("{} can't take part: {}", name, reason);
  }
  Error other_tensors(const wire::Bye&) const override {
    return {Errc::invalid_input, "the model has other tensors"};
  }
  void note_refusal(const std::string& name, const std::string&, const Error& error) override {
    note("{} refused: {}", name, error.message());
  }
  Awaitable<Result<void>> join(std::shared_ptr<Peer> peer) override {
    note("{} joins", peer->facts().name);
    if (admission) joined.push_back(std::move(peer));
    co_return admission;
  }
  void leave(const std::shared_ptr<Peer>& peer, bool for_good, std::string reason) override {
    note("{} leaves{}: {}", peer->facts().name, for_good ? " for good" : "", reason);
    std::erase(joined, peer);
  }
  Awaitable<Result<Download>> download(std::shared_ptr<Peer>, wire::Fetch fetch) override {
    note("download {}", fetch.version());
    co_return model;
  }
  Awaitable<UploadGrant> begin_upload(std::shared_ptr<Peer>, wire::UploadBegin begin) override {
    note("upload begins: task {}", begin.task());
    UploadGrant answer = grant;
    answer.begin = std::move(begin);
    co_return answer;
  }
  Awaitable<wire::Verdict> finish_upload(std::shared_ptr<Peer>, UploadGrant finished) override {
    note("upload is here: {} bytes", finished.upload->next_offset());
    co_return verdict;
  }
  void end_transfer(const Peer&, TransferWay way, std::size_t chunk_bytes_max) override {
    note("{} ends: chunks of {}", way == TransferWay::up ? "upload" : "download", chunk_bytes_max);
  }
  Awaitable<Result<void>> take_secure(std::shared_ptr<Peer>, wire::Header message) override {
    note("{}", kind_name(message));
    co_return success();
  }
  Awaitable<void> record_evaluation(std::shared_ptr<Peer>, wire::Evaluation evaluation) override {
    note("evaluation of {}", evaluation.version());
    co_return;
  }
  Awaitable<void> record_failure(std::shared_ptr<Peer>, wire::Failed failed) override {
    note("task {} failed: {}", failed.task(), failed.reason());
    co_return;
  }
  Awaitable<void> end_slow_upload(std::shared_ptr<Peer>, TaskId task, bool, std::string) override {
    note("upload of task {} is too slow", task);
    co_return;
  }
  void report_of(const std::string&, EventLevel, std::string text) override { note("{}", text); }
  void report_full_disk(std::string text) override { note("{}", text); }
  void revoke(const std::string& name) override { note("{} is revoked", name); }
  void pardon(const std::string& name, double) override { note("{} is pardoned", name); }
  void expel(const std::string& name, const std::string&) override { note("{} is expelled", name); }
  void end_early(std::string why) override { note("the run ends: {}", why); }

 private:
  template <class... Values>
  void note(fmt::format_string<Values...> format, Values&&... values) {
    calls.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  net::any_io_executor executor_;
};

class FakeHosts final : public SessionHosts {
 public:
  explicit FakeHosts(net::any_io_executor executor)
      : host(std::make_shared<FakeHost>(std::move(executor))) {}

  std::shared_ptr<FakeHost> host;

  std::shared_ptr<SessionHost> joined() const override { return host; }
  std::vector<std::shared_ptr<SessionHost>> all() const override { return {host}; }
};

}  // namespace fl::test
