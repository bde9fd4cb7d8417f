#include "examples/sim/in_process_link.hpp"

#include "shared/base/limits.hpp"

namespace fl {

namespace {

/// Bulk waits while this many messages are unread.
constexpr std::size_t unread_max = 2;

/// As frame_header() and the payload would lie on the wire.
std::size_t frame_bytes(const Message& message) {
  return sizeof(std::uint32_t) + message.header.ByteSizeLong() + message.payload.bytes().size();
}

bool is_work(const wire::Header& header) { return header.has_offer() || header.has_evaluate(); }

/// What the client is told at the end of its work.
bool ends_work(const wire::Header& header) {
  if (header.has_verdict()) return header.verdict().outcome() != wire::Verdict::LATER;
  return header.has_failed();
}

}  // namespace

std::pair<std::shared_ptr<InProcessLink>, std::shared_ptr<InProcessLink>> InProcessLink::make(
    const net::any_io_executor& strand, const std::string& client, WorkSlots* turns) {
  std::shared_ptr<InProcessLink> client_end(new InProcessLink(strand, "the server", true, turns));
  std::shared_ptr<InProcessLink> server_end(new InProcessLink(strand, client, false, nullptr));
  client_end->peer_ = server_end;
  server_end->peer_ = client_end;
  return {std::move(client_end), std::move(server_end)};
}

Awaitable<Result<Message>> InProcessLink::receive() {
  const auto self = shared_from_this();
  while (inbox_.empty() && !down_ && !may_begin_work()) co_await changed_.wait();
  if (inbox_.empty() && down_) co_return *down_;  // Nothing comes of work that has not begun.
  auto& box = inbox_.empty() ? waiting_work_ : inbox_;
  Message message = std::move(box.front());
  box.pop_front();
  if (is_client_ && ends_work(message.header)) work_is_done();
  if (const auto peer = peer_.lock()) peer->changed_.notify();
  co_return message;
}

Awaitable<Result<void>> InProcessLink::send(Message message) {
  const auto self = shared_from_this();
  const auto peer = peer_.lock();
  while (!down_ && peer && !message.payload.empty() && peer->inbox_.size() >= unread_max)
    co_await changed_.wait();
  if (down_ || !peer) co_return down_.value_or(Error(Errc::unavailable, "the peer is gone"));
  const std::size_t bytes = frame_bytes(message);
  const bool is_answer = message.header.has_evaluation() || message.header.has_failed();
  bytes_sent_ += bytes;
  peer->take(std::move(message), bytes);
  if (is_client_ && is_answer) work_is_done();
  co_return success();
}

void InProcessLink::take(Message message, std::size_t bytes) {
  bytes_received_ += bytes;
  const bool waits = is_client_ && is_work(message.header);
  // As in an agent, a newer offer takes the place of one that has not begun.
  if (waits && message.header.has_offer())
    std::erase_if(waiting_work_, [](const Message& other) { return other.header.has_offer(); });
  (waits ? waiting_work_ : inbox_).push_back(std::move(message));
  changed_.notify();
}

/// Whether there is work that may be handed over; asks for a turn when it needs one.
bool InProcessLink::may_begin_work() {
  if (waiting_work_.empty()) return false;
  if (work_ == Work::none) ask_for_turn();
  if (work_ != Work::may_begin) return false;
  work_ = Work::under_way;
  return true;
}

void InProcessLink::ask_for_turn() {
  work_ = Work::waits;
  const auto begin = [turns = turns_, weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && !self->down_) {
      self->work_ = Work::may_begin;
      self->changed_.notify();
    } else {
      turns->give_back();
    }
  };
  const auto on_strand = [strand = strand_, begin] { net::post(strand, begin); };
  if (turns_ == nullptr || turns_->take(on_strand)) work_ = Work::may_begin;
}

void InProcessLink::work_is_done() {
  const bool has_turn = work_ == Work::may_begin || work_ == Work::under_way;
  if (has_turn && turns_ != nullptr) turns_->give_back();
  if (has_turn) work_ = Work::none;
  changed_.notify();
}

void InProcessLink::close() {
  if (down_) return;
  down_ = Error(Errc::unavailable, "closed by the peer");
  work_is_done();
  if (const auto peer = peer_.lock()) peer->close();
}

}  // namespace fl
