// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_link.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::test {

namespace {

Duration time_for(std::size_t bytes, double bytes_per_s) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_s));
}

}  // namespace

std::pair<std::shared_ptr<MemoryLink>, std::shared_ptr<MemoryLink>> MemoryLink::make(
    End first, End second, Observer observer) {
  auto cable = std::make_shared<Cable>();
  cable->observer = std::move(observer);
  std::shared_ptr<MemoryLink> a(new MemoryLink(std::move(first), cable, 0));
  std::shared_ptr<MemoryLink> b(new MemoryLink(std::move(second), cable, 1));
  return {std::move(a), std::move(b)};
}

MemoryLink::MemoryLink(End end, std::shared_ptr<Cable> cable, std::size_t index)
    : executor_(std::move(end.executor)),
      remote_(std::move(end.remote)),
      line_(std::move(end.out)),
      cable_(std::move(cable)),
      index_(index),
      changed_(executor_) {
  cable_->ends[index_] = this;
}

MemoryLink::~MemoryLink() {
  fail(Error(Errc::unavailable, "the link is gone"));
  cable_->ends[index_] = nullptr;
}

Awaitable<Result<Message>> MemoryLink::receive() {
  const auto self = shared_from_this();
  for (;;) {
    look_for_life();
    if (down_) co_return *down_;
    const TimePoint next = inbox_.empty() ? never : inbox_.front().arrives;
    if (next <= Clock::now()) break;
    co_await changed_.wait(std::min(next, cable_->dies_at));
  }
  const auto bytes = std::move(inbox_.front().bytes);
  inbox_.pop_front();
  if (!bytes) {
    fail(Error(Errc::unavailable, "the peer closed the connection"));
    co_return *down_;
  }
  if (MemoryLink* const from = peer()) {
    from->on_the_way_ -= std::min(from->on_the_way_, bytes->size());
    from->changed_.notify();
  }
  bytes_received_ += bytes->size();
  if (bytes->size() > message_bytes_max_) {
    fail(Error(Errc::too_large, fmt::format("a message of {} bytes; the limit is {}", bytes->size(),
                                            message_bytes_max_)));
    co_return *down_;
  }
  auto message = parse_frame(bytes, bytes_of(std::string_view(*bytes)));
  if (!message) fail(message.error());
  co_return message;
}

Awaitable<Result<void>> MemoryLink::send(Message message) {
  const auto self = shared_from_this();
  FL_CO_CHECK(check_header_size(message.header));
  const bool is_control = message.payload.empty();
  const std::size_t bytes = 4 + message.header.ByteSizeLong() + message.payload.bytes().size();
  auto& queue = is_control ? control_ : bulk_;
  if (queue.size() >= limits::outbox_messages_max) {
    fail(Error(Errc::unavailable,
               fmt::format("the peer does not read: {} messages wait", queue.size())));
  }
  const void* const ticket = &message;
  queue.push_back(ticket);
  for (;;) {
    look_for_life();
    if (down_) break;
    const bool is_next = queue.front() == ticket && (is_control || control_.empty());
    const TimePoint room = is_next ? room_at(bytes) : never;
    if (room <= Clock::now()) break;
    co_await changed_.wait(std::min(room, cable_->dies_at));
  }
  std::erase(queue, ticket);
  changed_.notify();
  if (down_) co_return *down_;
  transmit(std::move(message.header), message.payload.bytes());
  co_return success();
}

std::uint64_t MemoryLink::bytes_arrived() const {
  double arrived = 0;
  for (const Frame& frame : inbox_) {
    const double size = frame.bytes ? static_cast<double>(frame.bytes->size()) : 0;
    const double to_come = seconds(frame.arrives - Clock::now()) * frame.bytes_per_s;
    arrived += std::clamp(size - to_come, 0.0, size);
  }
  return bytes_received_ + static_cast<std::uint64_t>(arrived);
}

/// When the system takes `bytes` more. `never`: not before the peer has read more.
TimePoint MemoryLink::room_at(std::size_t bytes) const {
  if (on_the_way_ > 0 && on_the_way_ + bytes > window_bytes) return never;
  return busy_until_ - time_for(unsent_bytes_max, line_.bytes_per_s);
}

void MemoryLink::transmit(wire::Header header, Bytes payload) {
  if (line_.edit) line_.edit(header);
  auto frame = std::make_shared<std::string>(frame_header(header));
  const std::size_t head_bytes = frame->size();
  frame->append(text_of(payload));
  bytes_sent_ += frame->size();
  if (cable_->observer) cable_->observer(*this, header, frame->size());
  if (bytes_sent_ > line_.bytes_max) return cut();
  if (payload.empty()) return deliver(std::move(frame));

  const auto held_back = std::exchange(held_back_, nullptr);
  switch (lie_for_this_chunk()) {
    case Lie::none: deliver(frame); break;
    case Lie::duplicate:
      deliver(frame);
      deliver(std::make_shared<std::string>(*frame));
      break;
    case Lie::drop: break;
    case Lie::swap: held_back_ = frame; break;
    case Lie::flip:
      (*frame)[head_bytes + payload.size() / 2] ^= 0x10;
      deliver(frame);
      break;
    case Lie::lengthen:
      frame->append(1, '\0');
      deliver(frame);
      break;
  }
  if (held_back) deliver(held_back);
}

Lie MemoryLink::lie_for_this_chunk() {
  return chunks_++ == line_.lie_at_chunk ? line_.lie : Lie::none;
}

void MemoryLink::lie_next(Lie lie, bool of_peer) {
  if (of_peer) {
    if (MemoryLink* const other = peer()) other->lie_next(lie);
    return;
  }
  line_.lie = lie;
  line_.lie_at_chunk = chunks_;
}

void MemoryLink::deliver(std::shared_ptr<std::string> bytes) {
  const std::size_t size = bytes ? bytes->size() : 0;
  on_the_way_ += size;
  busy_until_ = std::max(busy_until_, Clock::now()) + time_for(size, line_.bytes_per_s);
  MemoryLink* const to = peer();
  if (to == nullptr || to->down_ || cable_->is_silent) return;
  to->inbox_.push_back(Frame{busy_until_ + line_.latency, line_.bytes_per_s, std::move(bytes)});
  to->changed_.notify();
}

void MemoryLink::close() {
  if (closing_) return;
  closing_ = true;
  net::co_spawn(executor_, close_gracefully(shared_from_this()), rethrow);
}

/// First sends what send() has queued, for at most limits::close_max.
Awaitable<void> MemoryLink::close_gracefully([[maybe_unused]] std::shared_ptr<MemoryLink> self) {
  const TimePoint until = Clock::now() + limits::close_max;
  while (!down_ && !(control_.empty() && bulk_.empty()) && Clock::now() < until) {
    co_await changed_.wait(until);
  }
  fail(Error(Errc::unavailable, "the link is closed"));
}

void MemoryLink::cut() {
  const Error broken(Errc::unavailable, "the connection broke");
  MemoryLink* const other = peer();
  inbox_.clear();
  if (other != nullptr) other->inbox_.clear();
  cable_->is_silent = true;  // The close does not arrive either.
  fail(broken);
  if (other != nullptr) other->fail(broken);
}

void MemoryLink::fall_silent() {
  if (cable_->is_silent) return;
  cable_->is_silent = true;
  cable_->dies_at = Clock::now() + limits::liveness_max;
  for (MemoryLink* const end : cable_->ends) {
    if (end == nullptr) continue;
    end->inbox_.clear();
    end->changed_.notify();
  }
}

void MemoryLink::look_for_life() {
  if (Clock::now() < cable_->dies_at) return;
  fail(Error(Errc::unavailable,
             fmt::format("no answer from the peer for {} s", limits::liveness_max.count())));
}

void MemoryLink::fail(const Error& error) {
  if (down_) return;
  down_ = error;
  deliver(nullptr);
  changed_.notify();
}

}  // namespace fl::test
