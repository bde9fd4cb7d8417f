// SPDX-License-Identifier: Apache-2.0
// InProcessLink: the connection between a virtual client and its session. Messages are passed on
// without encoding, but bytes are counted as if their frames were sent over a WebSocket. Both ends
// are used on one strand.
#pragma once

#include "examples/sim/work_slots.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fl::sim {

class InProcessLink final : public Link, public std::enable_shared_from_this<InProcessLink> {
 public:
  using BreaksAt = std::function<bool(const wire::Header& sent)>;

  /// Makes the client's end and the server's end. The client receives work (an Offer or Evaluate)
  /// only when it has finished its previous work and, unless `slots` is null, when it has a work
  /// slot. `client` is the client's name for the server's logs. The connection breaks where the
  /// client wants to send a message of which `breaks_at` says so; it may be null.
  static std::pair<std::shared_ptr<InProcessLink>, std::shared_ptr<InProcessLink>> make(
      const net::any_io_executor& strand, const std::string& client, WorkSlots* slots,
      BreaksAt breaks_at);

  Awaitable<Result<Message>> receive() override;
  Awaitable<Result<void>> send(Message message) override;
  void close() override;
  net::any_io_executor executor() const override { return strand_; }
  std::uint64_t bytes_received() const override { return bytes_received_; }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  const std::string& remote() const override { return remote_; }

 private:
  enum class Work { none, waits, may_begin, under_way, uploads };
  /// How long a client keeps its slot after the last chunk that it sent.
  static constexpr std::chrono::milliseconds verdict_patience{500};

  InProcessLink(net::any_io_executor strand, std::string remote, bool is_client, WorkSlots* slots)
      : strand_(std::move(strand)),
        remote_(std::move(remote)),
        is_client_(is_client),
        slots_(slots),
        verdict_due_(strand_),
        changed_(strand_) {}
  void take(Message message, std::size_t bytes);
  [[nodiscard]] bool may_begin_work();
  void ask_for_slot();
  void work_is_done();
  void await_verdict();
  void give_back_early();

  net::any_io_executor strand_;
  std::string remote_;
  bool is_client_;
  WorkSlots* slots_;
  BreaksAt breaks_at_;  // Only the client's end may have one.
  std::weak_ptr<InProcessLink> peer_;
  std::deque<Message> inbox_;
  std::deque<Message> waiting_work_;  // Offers and Evaluates; other messages overtake them.
  Work work_ = Work::none;
  net::steady_timer verdict_due_;
  bool has_given_back_ = false;  // The slot of work whose verdict is still to come.
  std::optional<Error> down_;
  Signal changed_;
  std::atomic<std::uint64_t> bytes_received_ = 0;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
};

}  // namespace fl::sim
