// SPDX-License-Identifier: Apache-2.0
// The agent's uploads and downloads.
#include "client/agent/agent.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

// Up -------------------------------------------------------------------------------------------

/// Opens the update that is trained and has no verdict yet, ready to be sent. No job is running.
Awaitable<Result<void>> Agent::prepare_pending() {
  if (!state_->pending()) co_return success();
  auto open = [this] { return state_->open_pending(); };
  auto file = co_await worker_.run(std::move(open));
  if (will_pass(file)) {
    log_warn("{}; trying again", file.error().message());
    retry_at_ = Clock::now() + limits::full_disk_pause;
    co_return success();
  }
  Sending sending;
  sending.begin = state_->pending()->begin;
  sending.begin_at = Clock::now();
  if (file) {
    sending.source = SegmentSource({Segment{*file, 0, sending.begin.bytes()}});
  } else {
    log_warn("can't read the saved update of round {}: {}", sending.begin.round(),
             file.error().message());
    // Announce it even so: the server may have received all of it, and only the verdict was lost.
    sending.is_damaged = true;
  }
  sending_ = std::move(sending);
  co_return success();
}

/// The server says from which byte on it needs the pending update.
Awaitable<Result<void>> Agent::resume(const wire::Resume& resume) {
  const bool fits = sending_ && sending_->begin.task() == resume.task() &&
                    resume.offset() <= sending_->begin.bytes();
  if (!fits)
    co_return Error(Errc::protocol,
                    fmt::format("the server wants task {} from byte {}, but this client is not "
                                "sending that",
                                resume.task(), resume.offset()));
  if (sending_->is_damaged && resume.offset() < sending_->begin.bytes()) {
    auto forget = [this] { return state_->forget_pending(); };
    const auto forgotten = co_await worker_.run(std::move(forget));
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

void Agent::announce_again_after(Duration pause) {
  sending_->is_announced = false;
  sending_->size.reset();
  sending_->begin_at = Clock::now() + pause;
}

void Agent::put_off(const Error& error) {
  log_warn("round {}: {}; trying again", sending_->begin.round(), error.message());
  announce_again_after(limits::full_disk_pause);
}

Awaitable<Result<void>> Agent::announce() {
  sending_->is_announced = true;
  sending_->announced_at = Clock::now();
  wire::Header header;
  *header.mutable_begin() = sending_->begin;
  co_return co_await send(std::move(header));
}

Awaitable<Result<void>> Agent::send_some() {
  auto& sending = *sending_;
  if (sending.offset == sending.begin.bytes()) {
    sending.size.reset();  // Everything is sent; the verdict comes next.
    co_return success();
  }
  FL_CO_TRY(const std::size_t bytes,
            co_await send_chunk(*link_, static_cast<std::uint64_t>(sending.begin.task()),
                                sending.source, sending.offset, *sending.size));
  sending.offset += bytes;
  failpoint("upload.chunk");
  co_return success();
}

Awaitable<Result<void>> Agent::take_verdict(const wire::Verdict& verdict) {
  if (!sending_ || sending_->begin.task() != verdict.task()) co_return success();
  const std::uint32_t round = sending_->begin.round();
  if (verdict.outcome() == wire::Verdict::LATER) {
    log_info("round {}: the server can't take the update yet: {}; trying again in {} s", round,
             shown_reason(verdict.reason()), limits::later_pause.count());
    announce_again_after(limits::later_pause);
    co_return success();
  }
  failpoint("verdict.received");
  const bool is_damaged = sending_->is_damaged;
  forget_offer(verdict.task());  // The server may have offered the task again meanwhile.
  if (verdict.outcome() == wire::Verdict::ACCEPTED) refusals_ = 0;
  if (verdict.outcome() == wire::Verdict::REFUSED &&
      std::exchange(refused_task_, verdict.task()) != verdict.task())
    ++refusals_;
  // The residual takes back a refused update once. If the next one is refused too, that may be the
  // reason, so drop it then.
  const bool keeps_mass = verdict.outcome() != wire::Verdict::REFUSED || refusals_ < 2;
  auto settle = [this, is_damaged, keeps_mass, outcome = verdict.outcome()] {
    if (outcome == wire::Verdict::ACCEPTED) return state_->settle_accepted();
    return is_damaged ? state_->forget_pending() : state_->settle_unused(layout_, keeps_mass);
  };
  const auto settled = co_await worker_.run(std::move(settle));
  // The update is still pending: announce it again, and the server repeats the verdict.
  if (will_pass(settled)) {
    put_off(settled.error());
    co_return success();
  }
  trace("upload of round", round, sending_->announced_at, sending_->begin.bytes());
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
  co_return success();
}

// Down -----------------------------------------------------------------------------------------

Awaitable<Result<void>> Agent::fetch(std::uint32_t version) {
  wire::Header header;
  auto& fetch = *header.mutable_fetch();
  fetch.set_version(version);
  if (replica_.is_there && models_.find(replica_.digest)) {
    fetch.set_have_base(true);
    fetch.set_have_version(replica_.version);
    fetch.set_have_digest(replica_.digest.raw());
  }
  if (download_ && download_->model.version() == version) {
    fetch.set_transfer(download_->model.transfer());
    fetch.set_offset(download_->received);
  } else if (!download_ && partial_->bytes() > 0) {
    fetch.set_transfer(partial_->transfer());
    fetch.set_offset(partial_->bytes());
  }
  is_fetching_ = true;
  fetched_at_ = Clock::now();
  co_return co_await send(std::move(header));
}

Awaitable<Result<void>> Agent::begin_download(const wire::ModelHeader& model) {
  if (!is_fetching_)
    co_return Error(Errc::protocol, "the server sent a model that this client did not ask for");
  const std::uint64_t model_bytes = layout_.all.bytes();
  std::uint64_t chain = 0;
  for (const auto& delta : model.deltas()) {
    if (delta.bytes() > model_bytes)
      co_return Error(Errc::protocol,
                      fmt::format("a delta of {} bytes is larger than the model of {} bytes",
                                  delta.bytes(), model_bytes));
    chain += delta.bytes();
  }
  const bool fits = model.full()
                        ? model.bytes() == model_bytes
                        : replica_.is_there && chain == model.bytes() && chain <= model_bytes;
  if (!fits || model.digest().size() != 16 || model.offset() > model.bytes()) {
    co_return Error(Errc::protocol,
                    fmt::format("a model transfer of {} bytes does not fit a model of {} bytes",
                                model.bytes(), model_bytes));
  }
  const bool goes_on = download_ && download_->model.transfer() == model.transfer() &&
                       download_->model.full() == model.full() &&
                       download_->model.bytes() == model.bytes() &&
                       download_->received == model.offset();
  if (!goes_on) {
    const bool is_on_disk = !download_ && model.full() && model.offset() > 0 &&
                            partial_->transfer() == model.transfer() &&
                            partial_->bytes() == model.offset();
    if (model.offset() != 0 && !is_on_disk)
      co_return Error(Errc::protocol,
                      fmt::format("a model transfer begins at byte {}, which this client did not "
                                  "ask for",
                                  model.offset()));
    Download download;
    download.model = model;
    download.known = models_.find(Digest::from_bytes(model.digest()).value());
    if (!download.known && model.full()) {
      download.values = models_.borrow(layout_.all.elements());
    } else if (!download.known) {
      download.deltas.resize(static_cast<std::size_t>(model.bytes()));
    }
    auto take = [this, is_on_disk, &download]() -> Result<void> {
      Result<void> taken = success();
      if (is_on_disk && !download.known)
        taken = partial_->read(
            download.target().first(static_cast<std::size_t>(download.model.offset())));
      if (!is_on_disk || !taken) partial_->drop();
      return taken;
    };
    if (const auto taken = co_await worker_.run(std::move(take)); !taken)
      co_return Error(Errc::unavailable, taken.error().message());
    download.received = model.offset();
    if (model.full() && !download.known)
      download.save_at = Clock::now() + limits::download_save_every;
    download_ = std::move(download);
  }
  download_->model = model;
  link_->expect_bulk(model.bytes() - model.offset());
  if (model.offset() > 0)
    log_info("resuming the download at byte {} of {}", model.offset(), model.bytes());
  co_return success();
}

Awaitable<Result<void>> Agent::take_chunk(const Message& message) {
  if (!is_fetching_ || !download_)
    co_return Error(Errc::protocol, "the server sent a chunk that this client did not ask for");
  auto& download = *download_;
  FL_CO_CHECK(
      check_chunk(message, download.model.transfer(), download.received, download.model.bytes()));
  const Bytes bytes = message.payload.bytes();
  if (!download.known)
    std::memcpy(download.target().data() + download.received, bytes.data(), bytes.size());
  download.received += bytes.size();
  if (download.received < download.model.bytes()) {
    if (Clock::now() >= download.save_at) co_await save_download();
    co_return success();
  }
  auto finish = [this] {
    auto finished = finish_download();
    partial_->drop();
    return finished;
  };
  auto finished = co_await worker_.run(std::move(finish));
  trace("download of version", download.model.version(), fetched_at_, download.model.bytes());
  is_fetching_ = false;
  download_.reset();
  co_return finished;
}

/// Saves what was received since the last call. If that fails, the download goes on without a copy
/// on disk.
Awaitable<void> Agent::save_download() {
  auto save = [this]() -> Result<void> {
    const std::uint32_t transfer = download_->model.transfer();
    const std::uint64_t saved = partial_->transfer() == transfer ? partial_->bytes() : 0;
    const Bytes all = download_->target();
    auto appended =
        partial_->append(transfer, all.first(static_cast<std::size_t>(download_->received))
                                       .subspan(static_cast<std::size_t>(saved)));
    if (!appended) partial_->drop();
    return appended;
  };
  auto written = co_await worker_.run(std::move(save));
  download_->save_at = Clock::now() + limits::download_save_every;
  if (written) co_return;
  log_warn("can't save the download: {}; after a restart it begins again",
           written.error().message());
  download_->save_at = never;
}

/// Checks the received model and keeps it. On the worker; no job runs during a download.
Result<void> Agent::finish_download() {
  const auto& model = download_->model;
  const Digest wanted = Digest::from_bytes(model.digest()).value();
  if (!download_->known) {
    if (!model.full()) {
      auto applied = apply_deltas();
      if (!applied) {
        replica_.is_there = false;  // The base may be wrong, so ask for the full model next.
        return Error(Errc::protocol, fmt::format("can't apply the deltas to version {}: {}",
                                                 model.version(), applied.error().message()));
      }
      download_->values = std::move(*applied);
    }
    const Digest digest = Digest::of(std::as_bytes(std::span(std::as_const(download_->values))));
    if (digest != wanted) {
      if (!model.full()) replica_.is_there = false;
      return Error(Errc::protocol,
                   fmt::format("digest mismatch of model version {}: expected {}, got {}",
                               model.version(), wanted.hex(), digest.hex()));
    }
    models_.keep(wanted, std::move(download_->values));
  }
  replica_.is_there = true;
  replica_.version = model.version();
  replica_.digest = wanted;
  return {};
}

/// Returns the values of the new version: the base plus the decoded deltas.
Result<std::vector<float>> Agent::apply_deltas() {
  const auto base = models_.find(replica_.digest);
  if (!base) return Error(Errc::not_found, "the version that they start from is not in memory");
  auto values = models_.borrow(base->size());
  std::ranges::copy(*base, values.begin());
  std::uint64_t at = 0;
  for (const auto& delta : download_->model.deltas()) {
    SpanSource source(
        Bytes(download_->deltas)
            .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(delta.bytes())));
    FL_TRY(auto reader, PayloadReader::open(source, delta.bytes(), layout_.all));
    const auto add = [&](std::uint64_t, const Block& block, std::span<const float> step) {
      for (std::size_t i = 0; i < step.size(); ++i) values[block.flat + i] += step[i];
    };
    FL_CHECK(reader.for_each_block(options_.threads, add));
    at += delta.bytes();
  }
  return values;
}

}  // namespace fl
