// SPDX-License-Identifier: Apache-2.0
#include "client/agent/upload.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::client {

namespace {

SegmentSource source_of(std::shared_ptr<File> file, std::uint64_t bytes) {
  auto mapping = file->map(bytes);
  return SegmentSource({{std::move(file), 0, bytes, mapping ? std::move(*mapping) : nullptr}});
}

}  // namespace

Awaitable<Result<void>> Upload::prepare() {
  FL_ASSERT(!sending_);
  if (!state_.pending()) co_return success();
  auto open = [this] { return state_.open_pending(); };
  auto file = co_await worker_.step(std::move(open));
  if (will_pass(file)) {
    log_warn("{}; trying again", file.error().message());
    worker_.pause_for_disk();
    co_return success();
  }
  Sending sending;
  sending.begin = state_.pending()->begin;
  sending.begin_at = Clock::now();
  if (file) {
    sending.source = source_of(*file, sending.begin.bytes());
  } else {
    log_warn("can't read the saved update of round {}: {}", sending.begin.round(),
             file.error().message());
    // Announce it even so: the server may have received all of it, and only the verdict was lost.
    sending.is_damaged = true;
  }
  sending_ = std::move(sending);
  co_return success();
}

void Upload::hold(bool is_damaged) {
  Sending held;
  held.begin = state_.pending()->begin;
  held.begin_at = Clock::now();
  held.is_damaged = is_damaged;
  held.is_held = true;
  sending_ = std::move(held);
}

void Upload::send_words(wire::UploadBegin begin, std::shared_ptr<File> words) {
  Sending sending;
  sending.begin = std::move(begin);
  sending.source = source_of(std::move(words), sending.begin.bytes());
  sending.begin_at = Clock::now();
  sending_ = std::move(sending);
}

Awaitable<Result<void>> Upload::announce(Conversation& conversation) {
  FL_ASSERT(sending_ && !sending_->is_held);
  wire::Header header;
  *header.mutable_begin() = sending_->begin;
  co_return co_await announce_by(conversation, std::move(header));
}

Awaitable<Result<void>> Upload::announce(Conversation& conversation, wire::Header instead) {
  FL_ASSERT(sending_ && sending_->is_held);
  co_return co_await announce_by(conversation, std::move(instead));
}

Awaitable<Result<void>> Upload::announce_by(Conversation& conversation, wire::Header header) {
  FL_ASSERT(!sending_->is_announced && !sending_->size);
  sending_->is_announced = true;
  sending_->announced_at = Clock::now();
  co_return co_await conversation.send(std::move(header));
}

Awaitable<Result<void>> Upload::resume(const wire::Resume& resume) {
  const bool fits = sending_ && sending_->is_announced && sending_->begin.task() == resume.task() &&
                    !sending_->is_held && resume.offset() <= sending_->begin.bytes();
  if (!fits)
    co_return Error(Errc::protocol,
                    fmt::format("the server wants task {} from byte {}, but this client is not "
                                "sending that",
                                resume.task(), resume.offset()));
  if (sending_->is_damaged && resume.offset() < sending_->begin.bytes()) {
    auto forget = [this] { return state_.forget_pending(); };
    const auto forgotten = co_await worker_.step(std::move(forget));
    if (will_pass(forgotten)) {
      put_off(forgotten.error());
      co_return success();
    }
    FL_CO_CHECK(forgotten);
    co_return Error(Errc::unavailable,
                    fmt::format("training round {} again, because its saved update can't be read",
                                sending_->begin.round()));
  }
  sending_->offset = resume.offset();
  sending_->size.emplace(resume.chunk_bytes());
  if (resume.offset() > 0)
    log_info("resuming the upload at byte {} of {}", resume.offset(), sending_->begin.bytes());
  co_return success();
}

void Upload::announce_again_after(Duration pause) {
  FL_ASSERT(sending_);
  sending_->is_announced = false;
  sending_->size.reset();
  sending_->begin_at = Clock::now() + pause;
}

void Upload::put_off(const Error& error) {
  log_warn("round {}: {}; trying again", sending_->begin.round(), error.message());
  announce_again_after(limits::full_disk_pause);
}

Awaitable<Result<void>> Upload::send_some(Conversation& conversation) {
  FL_ASSERT(can_send() && sending_->is_announced);
  auto& sending = *sending_;
  FL_ASSERT(sending.offset <= sending.begin.bytes());
  if (sending.offset == sending.begin.bytes()) {
    sending.size.reset();  // Everything is sent; the verdict comes next.
    co_return success();
  }
  FL_CO_TRY(
      const std::size_t bytes,
      co_await send_chunk(conversation.link(), static_cast<std::uint64_t>(sending.begin.task()),
                          sending.source, sending.offset, *sending.size));
  sending.offset += bytes;
  failpoint("upload.chunk");
  co_return success();
}

/// The residual takes back a refused update once. If the next one is refused too, that may be the
/// reason, so the residual is dropped then. Call it once for each verdict.
bool Upload::keeps_mass(const wire::Verdict& verdict) {
  if (verdict.outcome() == wire::Verdict::ACCEPTED) refusals_ = 0;
  if (verdict.outcome() != wire::Verdict::REFUSED) return true;
  if (std::exchange(refused_task_, verdict.task()) != verdict.task()) ++refusals_;
  return refusals_ < 2;
}

Awaitable<Result<bool>> Upload::take_verdict(const wire::Verdict& verdict,
                                             const RunLayout& layout) {
  if (!sending_ || sending_->begin.task() != verdict.task()) co_return false;
  const std::uint32_t round = sending_->begin.round();
  if (verdict.outcome() == wire::Verdict::LATER) {
    log_info("round {}: the server can't take the update yet: {}; trying again in {} s", round,
             shown_reason(verdict.reason()), limits::later_pause.count());
    announce_again_after(limits::later_pause);
    co_return false;
  }
  if (verdict.outcome() == wire::Verdict::HELD) {
    log_info("round {}: the server holds the masked update until those of others are there", round);
    sending_->size.reset();
    co_return false;
  }
  failpoint("verdict.received");
  const bool is_damaged = sending_->is_damaged;
  const bool keeps = keeps_mass(verdict);
  auto settle = [this, is_damaged, keeps, outcome = verdict.outcome(), &layout] {
    if (outcome == wire::Verdict::ACCEPTED) return state_.settle_accepted();
    return is_damaged ? state_.forget_pending() : state_.settle_unused(layout, keeps);
  };
  const auto settled = co_await worker_.step(std::move(settle));
  // The update is still pending: announce it again, and the server repeats the verdict.
  if (will_pass(settled)) {
    put_off(settled.error());
    co_return true;
  }
  FL_ASSERT(sending_ && (!settled || !state_.pending()));
  trace_work(trace_, "upload of round", round, seconds(Clock::now() - sending_->announced_at),
             sending_->begin.bytes());
  sending_.reset();
  FL_CO_CHECK(settled);
  switch (verdict.outcome()) {
    case wire::Verdict::ACCEPTED: log_info("round {}: update accepted", round); break;
    case wire::Verdict::REFUSED:
      log_warn("round {}: update refused: {}", round, shown_reason(verdict.reason()));
      break;
    default:
      log_info("round {}: update came too late: {}", round, shown_reason(verdict.reason()));
      break;
  }
  co_return true;
}

}  // namespace fl::client
