// A connection between a virtual client and its session in one process. Messages are handed over as
// they are, and counted as what their frames would be on a WebSocket.
//
// Both ends live on one strand.
#pragma once

#include "examples/sim/work_slots.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/wire/link.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fl {

class InProcessLink final : public Link, public std::enable_shared_from_this<InProcessLink> {
 public:
  /// The client's end and the server's. The client is given work (an Offer, an Evaluate) only when
  /// it is done with what it had; and, unless `turns` is null, when it has a turn.
  static std::pair<std::shared_ptr<InProcessLink>, std::shared_ptr<InProcessLink>> make(
      const net::any_io_executor& strand, const std::string& client, WorkSlots* turns);

  Awaitable<Result<Message>> receive() override;
  Awaitable<Result<void>> send(Message message) override;
  void close() override;
  net::any_io_executor executor() const override { return strand_; }
  std::uint64_t bytes_received() const override { return bytes_received_; }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  const std::string& remote() const override { return remote_; }

 private:
  enum class Work { none, waits, may_begin, under_way };

  InProcessLink(net::any_io_executor strand, std::string remote, bool is_client, WorkSlots* turns)
      : strand_(std::move(strand)),
        remote_(std::move(remote)),
        is_client_(is_client),
        turns_(turns),
        changed_(strand_) {}
  void take(Message message, std::size_t bytes);
  [[nodiscard]] bool may_begin_work();
  void ask_for_turn();
  void work_is_done();

  net::any_io_executor strand_;
  std::string remote_;
  bool is_client_;
  WorkSlots* turns_;
  std::weak_ptr<InProcessLink> peer_;
  std::deque<Message> inbox_;
  std::deque<Message> waiting_work_;  // What else comes overtakes it.
  Work work_ = Work::none;
  std::optional<Error> down_;
  Signal changed_;
  std::atomic<std::uint64_t> bytes_received_ = 0;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
};

}  // namespace fl
