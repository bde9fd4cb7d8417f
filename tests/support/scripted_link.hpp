// SPDX-License-Identifier: Apache-2.0
// A connection whose other end is a script: receive() returns the given answers one after the
// other, and then the end of the connection. What is sent is kept. One thread, without waiting.
#pragma once

#include "shared/wire/link.hpp"

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

class ScriptedLink final : public Link {
 public:
  explicit ScriptedLink(net::any_io_executor executor) : executor_(std::move(executor)) {}

  std::deque<wire::Header> answers;  // Which receive() has not returned yet.
  std::vector<Message> sent;
  bool is_broken = false;  // Nothing can be sent.

  Awaitable<Result<Message>> receive() override {
    if (answers.empty()) co_return Error(Errc::unavailable, "the script is over");
    Message next(std::move(answers.front()));
    answers.pop_front();
    co_return next;
  }
  Awaitable<Result<void>> send(Message message) override {
    if (is_broken) co_return Error(Errc::unavailable, "the connection broke");
    sent.push_back(std::move(message));
    co_return success();
  }
  void close() override { is_broken = true; }
  net::any_io_executor executor() const override { return executor_; }
  std::uint64_t bytes_received() const override { return 0; }
  std::uint64_t bytes_sent() const override { return 0; }
  const std::string& remote() const override { return remote_; }

 private:
  net::any_io_executor executor_;
  std::string remote_ = "the script";
};

}  // namespace fl::test
