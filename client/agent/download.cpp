// SPDX-License-Identifier: Apache-2.0
#include "client/agent/download.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/wire/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

constexpr std::uint64_t copied_bytes = 4 << 20;  // At once.

}  // namespace

DownloadStart start_of(const wire::ModelHeader& answer, const ReceivedPart* in_memory,
                       const ReceivedPart& on_disk) {
  if (in_memory != nullptr) {
    const bool is_it = in_memory->transfer == answer.transfer() &&
                       in_memory->full == answer.full() && in_memory->bytes == answer.bytes() &&
                       in_memory->received == answer.offset();
    if (is_it) return DownloadStart::go_on;
  } else if (answer.full() && answer.offset() > 0 && on_disk.transfer == answer.transfer() &&
             on_disk.received == answer.offset()) {
    return DownloadStart::from_disk;
  }
  return answer.offset() == 0 ? DownloadStart::anew : DownloadStart::refused;
}

Result<void> Download::open(Files& files, const std::filesystem::path& folder) {
  FL_ASSERT(!partial_);
  FL_TRY(auto partial, ResumableDownload::open(files, folder));
  partial_ = std::move(partial);
  return {};
}

ModelCache::Model Download::find(std::uint32_t version, const std::string& digest) const {
  const bool is_it = replica_ && replica_->version == version && replica_->digest.raw() == digest;
  return is_it ? models_.find(replica_->digest) : nullptr;
}

void Download::keep_version_0(const Digest& digest, StoredValues values) {
  FL_ASSERT(!is_on_);
  replica_ = Replica{0, digest};
  models_.keep(digest, std::move(values));
}

wire::Header Download::request(std::uint32_t version) {
  FL_ASSERT(!is_on_ && partial_);
  wire::Header header;
  auto& fetch = *header.mutable_fetch();
  fetch.set_version(version);
  if (replica_ && models_.find(replica_->digest)) {
    fetch.set_have_base(true);
    fetch.set_have_version(replica_->version);
    fetch.set_have_digest(replica_->digest.raw());
  }
  if (transfer_ && transfer_->model.version() == version) {
    fetch.set_transfer(transfer_->model.transfer());
    fetch.set_offset(transfer_->received);
  } else if (!transfer_ && partial_->bytes() > 0) {
    fetch.set_transfer(partial_->transfer());
    fetch.set_offset(partial_->bytes());
  }
  is_on_ = true;
  requested_at_ = Clock::now();
  return header;
}

/// Checks the sizes that the server names before memory is taken.
Result<void> Download::check(const wire::ModelHeader& model, const Layout& layout) const {
  if (!is_on_)
    return Error(Errc::protocol, "the server sent a model that this client did not ask for");
  const std::uint64_t model_bytes = layout.bytes();
  std::uint64_t chain = 0;
  for (const auto& delta : model.deltas()) {
    if (delta.bytes() > model_bytes)
      return Error(Errc::protocol,
                   fmt::format("a delta of {} bytes is larger than the model of {} bytes",
                               delta.bytes(), model_bytes));
    chain += delta.bytes();
  }
  const bool fits = model.full() ? model.bytes() == model_bytes
                                 : replica_ && chain == model.bytes() && chain <= model_bytes;
  if (fits && Digest::from_bytes(model.digest()) && model.offset() <= model.bytes()) return {};
  return Error(Errc::protocol,
               fmt::format("a model transfer of {} bytes does not fit a model of {} bytes",
                           model.bytes(), model_bytes));
}

Awaitable<Result<std::uint64_t>> Download::begin(const wire::ModelHeader& model,
                                                 const Layout& layout) {
  FL_CO_CHECK(check(model, layout));
  ReceivedPart in_memory;
  if (transfer_) {
    const auto& before = transfer_->model;
    in_memory = {before.transfer(), before.full(), before.bytes(), transfer_->received};
  }
  const ReceivedPart on_disk{partial_->transfer(), true, 0, partial_->bytes()};
  switch (start_of(model, transfer_ ? &in_memory : nullptr, on_disk)) {
    case DownloadStart::go_on: break;
    case DownloadStart::from_disk: FL_CO_CHECK(co_await make_room(model, true)); break;
    case DownloadStart::anew: FL_CO_CHECK(co_await make_room(model, false)); break;
    case DownloadStart::refused:
      co_return Error(Errc::protocol,
                      fmt::format("a model transfer begins at byte {}, which this client did not "
                                  "ask for",
                                  model.offset()));
  }
  FL_ASSERT(transfer_ && transfer_->received == model.offset());
  transfer_->model = model;
  if (model.offset() > 0)
    log_info("resuming the download at byte {} of {}", model.offset(), model.bytes());
  co_return model.bytes() - model.offset();
}

/// Takes room for a transfer, with the part that is on the disk, or else removes that part.
Awaitable<Result<void>> Download::make_room(const wire::ModelHeader& model, bool is_on_disk) {
  Transfer transfer;
  transfer.model = model;
  transfer.known = models_.find(Digest::from_bytes(model.digest()).value());
  transfer_.reset();  // Frees its room.
  auto take = [this, is_on_disk, &transfer]() -> Result<void> {
    if (!transfer.known) {
      const std::uint64_t elements = (transfer.model.bytes() + sizeof(float) - 1) / sizeof(float);
      FL_TRY(transfer.values, models_.pool().borrow(static_cast<std::size_t>(elements)));
    }
    const auto copied = is_on_disk ? copy_part(transfer) : success();
    if (!is_on_disk || !copied) partial_->drop();
    if (!copied) return Error(Errc::unavailable, copied.error().message());
    return {};
  };
  FL_CO_CHECK(co_await worker_.step(std::move(take)));
  transfer.received = model.offset();
  if (model.full() && !transfer.known)
    transfer.save_at = Clock::now() + limits::download_save_every;
  transfer_ = std::move(transfer);
  co_return success();
}

/// Copies what an earlier process has received. On the worker.
Result<void> Download::copy_part(Transfer& transfer) {
  if (transfer.known) return {};
  const std::uint64_t end = transfer.model.offset();
  std::vector<std::byte> room(static_cast<std::size_t>(std::min<std::uint64_t>(copied_bytes, end)));
  for (std::uint64_t at = 0; at < end; at += room.size()) {
    const auto part = MutableBytes(room).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), end - at)));
    FL_CHECK(partial_->read(at, part));
    transfer.hasher.update(part);
    FL_CHECK(transfer.values.write_bytes(at, part));
  }
  return {};
}

/// Keeps the next received bytes. They count as received only when they are written, because the
/// digest is made of the bytes that arrive and would not notice a gap in the file.
Awaitable<Result<void>> Download::keep(Bytes bytes) {
  auto& transfer = *transfer_;
  if (!transfer.known) {
    auto write = [&transfer, bytes] {
      return transfer.values.write_bytes(transfer.received, bytes);
    };
    // Writing to a file may wait for the disk.
    if (!transfer.values.memory().empty())
      FL_CO_CHECK(write());
    else
      FL_CO_CHECK(co_await worker_.step(std::move(write)));
    if (transfer.model.full()) transfer.hasher.update(bytes);
  }
  transfer.received += bytes.size();
  co_return success();
}

Awaitable<Result<void>> Download::take(const Message& message, const Layout& layout) {
  if (!is_on_ || !transfer_)
    co_return Error(Errc::protocol, "the server sent a chunk that this client did not ask for");
  auto& transfer = *transfer_;
  FL_CO_CHECK(
      check_chunk(message, transfer.model.transfer(), transfer.received, transfer.model.bytes()));
  FL_CO_CHECK(co_await keep(message.payload.bytes()));
  if (transfer.received < transfer.model.bytes()) {
    if (Clock::now() >= transfer.save_at) co_await save();
    co_return success();
  }
  auto end = [this, &layout] {
    auto finished = finish(layout);
    partial_->drop();
    return finished;
  };
  auto finished = co_await worker_.step(std::move(end));
  trace_work(trace_, "download of version", transfer.model.version(),
             seconds(Clock::now() - requested_at_), transfer.model.bytes());
  is_on_ = false;
  transfer_.reset();
  co_return finished;
}

void Download::failed() {
  is_on_ = false;
  transfer_.reset();
}

void Download::forget_run() {
  FL_ASSERT(!is_on_);
  transfer_.reset();
  replica_.reset();
}

/// Saves what was received since the last call. If that fails, the download goes on without a copy
/// on the disk.
Awaitable<void> Download::save() {
  FL_ASSERT(transfer_ && transfer_->model.full() && !transfer_->known);
  auto write = [this]() -> Result<void> {
    const std::uint32_t number = transfer_->model.transfer();
    const std::uint64_t saved = partial_->transfer() == number ? partial_->bytes() : 0;
    FL_ASSERT(saved <= transfer_->received);
    const Bytes all = std::as_bytes(transfer_->values.values());
    auto appended =
        partial_->append(number, all.first(static_cast<std::size_t>(transfer_->received))
                                     .subspan(static_cast<std::size_t>(saved)));
    if (!appended) partial_->drop();
    return appended;
  };
  auto written = co_await worker_.step(std::move(write));
  transfer_->save_at = Clock::now() + limits::download_save_every;
  if (written) co_return;
  log_warn("can't save the download: {}; after a restart it begins again",
           written.error().message());
  transfer_->save_at = never;
}

Awaitable<void> Download::save_before_end() {
  if (transfer_ && transfer_->save_at != never) co_await save();
}

/// Checks the received version and keeps it. On the worker.
Result<void> Download::finish(const Layout& layout) {
  const auto& model = transfer_->model;
  const Digest wanted = Digest::from_bytes(model.digest()).value();
  if (!transfer_->known) {
    if (!model.full()) {
      auto applied = apply_deltas(layout);
      if (!applied) {
        replica_.reset();  // The base may be wrong, so ask for the full model next.
        if (applied.error().code() == Errc::no_space) return applied.error();
        return Error(Errc::protocol, fmt::format("can't apply the deltas to version {}: {}",
                                                 model.version(), applied.error().message()));
      }
      models_.pool().give_back(std::exchange(transfer_->values, std::move(*applied)));
    }
    const Digest digest = model.full() ? transfer_->hasher.digest()
                                       : Digest::of(std::as_bytes(transfer_->values.values()));
    FL_CHECK(transfer_->values.check());
    if (digest != wanted) {
      if (!model.full()) replica_.reset();
      return Error(Errc::protocol,
                   fmt::format("digest mismatch of model version {}: expected {}, got {}",
                               model.version(), wanted.hex(), digest.hex()));
    }
    models_.keep(wanted, std::move(transfer_->values));
  }
  replica_ = Replica{model.version(), wanted};
  return {};
}

/// Returns the values of the new version: the base plus the decoded deltas.
Result<StoredValues> Download::apply_deltas(const Layout& layout) {
  const auto base = models_.find(replica_->digest);
  if (!base) return Error(Errc::not_found, "the version that they start from is not here any more");
  FL_TRY(auto values, models_.pool().borrow(base->size()));
  const WriteValues write = write_into(values);
  if (transfer_->model.deltas().empty()) FL_CHECK(copy_values(base->values(), values));
  const Bytes deltas = std::as_bytes(transfer_->values.values());
  auto before = base->values();
  std::uint64_t at = 0;
  for (const auto& delta : transfer_->model.deltas()) {
    codec::SpanSource source(
        deltas.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(delta.bytes())));
    FL_TRY(auto reader, codec::PayloadReader::open(source, delta.bytes(), layout));
    FL_CHECK(add_decoded(before, reader, write, threads_));
    before = values.values();
    at += delta.bytes();
  }
  FL_CHECK(transfer_->values.check());
  FL_CHECK(base->check());
  return values;
}

}  // namespace fl::client
