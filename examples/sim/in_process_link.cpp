// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/in_process_link.hpp"

#include "shared/base/limits.hpp"

namespace fl::sim {

namespace {

/// A message with payload waits while the peer has this many unread messages.
constexpr std::size_t unread_max = 2;

/// The size of the message's frame on the wire (frame_header() and payload).
std::size_t frame_bytes(const Message& message) {
  return sizeof(std::uint32_t) + message.header.ByteSizeLong() + message.payload.bytes().size();
}

bool is_work(const wire::Header& header) { return header.has_offer() || header.has_evaluate(); }

/// Whether this message from the server ends the client's work.
bool ends_work(const wire::Header& header) {
  if (header.has_verdict()) return header.verdict().outcome() != wire::Verdict::LATER;
  return header.has_failed();
}

}  // namespace

std::pair<std::shared_ptr<InProcessLink>, std::shared_ptr<InProcessLink>> InProcessLink::make(
    const net::any_io_executor& strand, const std::string& client, WorkSlots* slots,
    BreaksAt breaks_at) {
  std::shared_ptr<InProcessLink> client_end(new InProcessLink(strand, "the server", true, slots));
  std::shared_ptr<InProcessLink> server_end(new InProcessLink(strand, client, false, nullptr));
  client_end->breaks_at_ = std::move(breaks_at);
  client_end->peer_ = server_end;
  server_end->peer_ = client_end;
  return {std::move(client_end), std::move(server_end)};
}

Awaitable<Result<Message>> InProcessLink::receive() {
  const auto self = shared_from_this();
  while (inbox_.empty() && !down_ && !may_begin_work()) co_await changed_.wait();
  if (inbox_.empty() && down_) co_return *down_;  // Work that was not begun is dropped.
  auto& box = inbox_.empty() ? waiting_work_ : inbox_;
  Message message = std::move(box.front());
  box.pop_front();
  if (is_client_ && ends_work(message.header) && !std::exchange(has_given_back_, false))
    work_is_done();
  if (const auto peer = peer_.lock()) peer->changed_.notify();
  co_return message;
}

Awaitable<Result<void>> InProcessLink::send(Message message) {
  const auto self = shared_from_this();
  FL_CO_CHECK(check_header_size(message.header));
  if (breaks_at_ && breaks_at_(message.header)) close();
  const auto peer = peer_.lock();
  while (!down_ && peer && !message.payload.empty() && peer->inbox_.size() >= unread_max)
    co_await changed_.wait();
  if (down_ || !peer) co_return down_.value_or(Error(Errc::unavailable, "the peer is gone"));
  const std::size_t bytes = frame_bytes(message);
  const bool is_answer = message.header.has_evaluation() || message.header.has_failed();
  const bool is_chunk = message.header.has_chunk();
  const bool has_trained = message.header.has_secure_keys();
  bytes_sent_ += bytes;
  peer->take(std::move(message), bytes);
  if (is_client_ && is_answer) work_is_done();
  if (is_client_ && has_trained) give_back_early();
  if (is_client_ && is_chunk) await_verdict();
  co_return success();
}

/// The server may judge an update only when its round closes, which may need the clients that wait
/// for a slot. So a client without a verdict gives its slot back.
void InProcessLink::await_verdict() {
  if (work_ != Work::under_way && work_ != Work::uploads) return;
  work_ = Work::uploads;
  verdict_due_.expires_after(verdict_patience);  // Cancels the wait after the chunk before.
  verdict_due_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec) {
    const auto self = weak.lock();
    if (ec || !self || self->work_ != Work::uploads) return;
    self->give_back_early();
  });
}

/// In a masked run all must have trained before any of them goes on.
void InProcessLink::give_back_early() {
  if (work_ != Work::under_way && work_ != Work::uploads) return;
  has_given_back_ = true;
  work_is_done();
}

void InProcessLink::take(Message message, std::size_t bytes) {
  bytes_received_ += bytes;
  const bool waits = is_client_ && is_work(message.header);
  // A newer offer replaces one whose work has not begun, as in Agent.
  if (waits && message.header.has_offer())
    std::erase_if(waiting_work_, [](const Message& other) { return other.header.has_offer(); });
  (waits ? waiting_work_ : inbox_).push_back(std::move(message));
  changed_.notify();
}

/// Whether the client may receive the next work. Asks for a work slot if it needs one.
bool InProcessLink::may_begin_work() {
  if (waiting_work_.empty()) return false;
  if (work_ == Work::none) ask_for_slot();
  if (work_ != Work::may_begin) return false;
  work_ = Work::under_way;
  return true;
}

void InProcessLink::ask_for_slot() {
  work_ = Work::waits;
  const auto begin = [slots = slots_, weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && !self->down_) {
      self->work_ = Work::may_begin;
      self->changed_.notify();
    } else {
      slots->give_back();
    }
  };
  const auto on_strand = [strand = strand_, begin] { net::post(strand, begin); };
  if (slots_ == nullptr || slots_->take(on_strand)) work_ = Work::may_begin;
}

void InProcessLink::work_is_done() {
  const bool has_slot =
      work_ == Work::may_begin || work_ == Work::under_way || work_ == Work::uploads;
  if (has_slot && slots_ != nullptr) slots_->give_back();
  if (has_slot) work_ = Work::none;
  verdict_due_.cancel();
  changed_.notify();
}

void InProcessLink::close() {
  if (down_) return;
  down_ = Error(Errc::unavailable, "the peer closed the connection");
  work_is_done();
  if (const auto peer = peer_.lock()) peer->close();
}

}  // namespace fl::sim
