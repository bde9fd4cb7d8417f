// SPDX-License-Identifier: Apache-2.0
// A connection in memory over simulated time, in place of WsLink over a real line. Frames go
// through the real framing and arrive in order, after the time that the line's latency and
// bandwidth need. A sender waits while the modelled buffers of the operating system are full.
// Control messages overtake bulk that still waits. Lines can break, fall silent and lie, as planned
// in Line or when a function is called.
//
// One thread: that of the simulation's io_context. The two ends may have their own strands.
#pragma once

#include "shared/base/async/mailbox.hpp"
#include "shared/wire/link.hpp"

#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace fl::test {

/// The fault of the line in one chunk, as a broken or lying peer would cause it.
enum class Lie { none, duplicate, drop, swap, flip, lengthen };

/// One direction of a connection.
struct Line {
  static constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

  Duration latency = std::chrono::milliseconds(5);
  double bytes_per_s = 10e6;
  std::uint64_t bytes_max = no_limit;       // The frame that exceeds it breaks the connection.
  Lie lie = Lie::none;                      // swap: the chunk arrives after the next one.
  std::uint64_t lie_at_chunk = 0;           // Counts from 0.
  std::function<void(wire::Header&)> edit;  // Rewrites headers before they are framed.
};

class MemoryLink final : public Link, public std::enable_shared_from_this<MemoryLink> {
 public:
  /// send() waits above unsent_bytes_max unsent bytes in the sender's system, and above
  /// window_bytes bytes on the way or unread.
  static constexpr std::size_t unsent_bytes_max = 256 << 10;
  static constexpr std::size_t window_bytes = 1 << 20;

  /// Called for every frame when it is handed to the line.
  using Observer =
      std::function<void(const MemoryLink& from, const wire::Header&, std::size_t bytes)>;

  struct End {
    net::any_io_executor executor;
    std::string remote;  // The name of the other end.
    Line out;
  };
  /// Makes an open connection and returns its ends in the given order.
  static std::pair<std::shared_ptr<MemoryLink>, std::shared_ptr<MemoryLink>> make(
      End first, End second, Observer observer);
  ~MemoryLink() override;

  Awaitable<Result<Message>> receive() override;
  Awaitable<Result<void>> send(Message message) override;
  void close() override;
  /// A message that is larger breaks the connection, as on a real line. No limit until it is
  /// called.
  void expect_messages_of(std::size_t bytes_max) override { message_bytes_max_ = bytes_max; }
  net::any_io_executor executor() const override { return executor_; }
  std::uint64_t bytes_received() const override { return bytes_received_; }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  std::uint64_t bytes_arrived() const override;
  const std::string& remote() const override { return remote_; }

  /// Breaks the connection for both ends. What is on the way is lost.
  void cut();
  /// Makes the connection half-open: nothing arrives any more, and both ends give up after
  /// limits::liveness_max.
  void fall_silent();
  /// Applies the lie to the next chunk that this end (or its peer) sends.
  void lie_next(Lie lie, bool of_peer = false);
  /// Changes the bandwidth from this end to its peer, from now on.
  void slow_down(double bytes_per_s) { line_.bytes_per_s = bytes_per_s; }
  [[nodiscard]] bool is_down() const { return down_.has_value(); }

 private:
  struct Cable {
    std::array<MemoryLink*, 2> ends{};  // Null once destroyed.
    bool is_silent = false;
    TimePoint dies_at = never;
    Observer observer;
  };
  struct Frame {
    TimePoint arrives;
    double bytes_per_s;
    std::shared_ptr<std::string> bytes;  // Null: the sender closed the connection.
  };

  MemoryLink(End end, std::shared_ptr<Cable> cable, std::size_t index);
  [[nodiscard]] MemoryLink* peer() const { return cable_->ends[1 - index_]; }
  void look_for_life();
  void transmit(wire::Header header, Bytes payload);
  void deliver(std::shared_ptr<std::string> bytes);
  [[nodiscard]] Lie lie_for_this_chunk();
  [[nodiscard]] TimePoint room_at(std::size_t bytes) const;
  void fail(const Error& error);
  Awaitable<void> close_gracefully(std::shared_ptr<MemoryLink> self);

  net::any_io_executor executor_;
  std::string remote_;
  Line line_;  // The line from here to the peer.
  std::shared_ptr<Cable> cable_;
  std::size_t index_;
  TimePoint busy_until_{};  // When the line will have sent everything it was given.
  std::size_t message_bytes_max_ =
      std::numeric_limits<std::size_t>::max();  // A longer message breaks it.
  std::size_t on_the_way_ = 0;                  // Bytes handed over that the peer has not read.
  std::uint64_t chunks_ = 0;
  std::shared_ptr<std::string> held_back_;  // A chunk that arrives after the next one.
  std::deque<Frame> inbox_;
  std::deque<const void*> control_;  // Calls of send() that wait for their turn.
  std::deque<const void*> bulk_;
  Signal changed_;
  std::optional<Error> down_;
  bool closing_ = false;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace fl::test
