// SPDX-License-Identifier: Apache-2.0
#include "client/state/stored_values.hpp"

#include "shared/base/async/parallel.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace fl::client {

std::unique_ptr<MemoryShare> MemoryShare::take(BytesLeft left, std::uint64_t bytes) {
  std::uint64_t before = left->load();
  do {
    if (before < bytes) return nullptr;
  } while (!left->compare_exchange_weak(before, before - bytes));
  return std::unique_ptr<MemoryShare>(new MemoryShare(std::move(left), bytes));
}

Result<StoredValues> StoredValues::read_or_map(std::unique_ptr<File> file, std::uint64_t elements,
                                               bool is_new) {
  StoredValues out;
  FL_TRY(out.mapping_, file->map(elements * sizeof(float)));
  if (!out.mapping_) {
    out.memory_.resize(elements);
    if (!is_new) FL_CHECK(file->read_exactly(0, std::as_writable_bytes(std::span(out.memory_))));
  }
  out.file_ = std::move(file);
  return out;
}

Result<StoredValues> StoredValues::make(Files& files, const std::filesystem::path& path,
                                        std::uint64_t elements, OpenMode mode) {
  FL_TRY(auto file, files.open(path, mode));
  FL_CHECK(file->reserve(elements * sizeof(float)));
  return read_or_map(std::move(file), elements, true);
}

Result<StoredValues> StoredValues::open(Files& files, const std::filesystem::path& path,
                                        std::uint64_t elements) {
  FL_TRY(auto file, files.open(path, OpenMode::read));
  const auto read = [&]() -> Result<StoredValues> {
    // A page behind the end of a file can't be read, so a mapping needs this first.
    FL_TRY(const std::uint64_t bytes, file->size());
    if (bytes < elements * sizeof(float))
      return Error(Errc::corrupt, "the file is too short: it has " + std::to_string(bytes) +
                                      " bytes, expected " +
                                      std::to_string(elements * sizeof(float)));
    return read_or_map(std::move(file), elements, false);
  };
  auto values = read();
  if (!values) return values.error().at(path.string());
  return values;
}

std::vector<float> StoredValues::release_memory() && {
  file_.reset();
  mapping_.reset();
  share_.reset();
  return std::exchange(memory_, {});
}

Result<void> StoredValues::write(std::uint64_t first, std::span<const float> values) {
  return write_bytes(first * sizeof(float), std::as_bytes(values));
}

Result<void> StoredValues::write_bytes(std::uint64_t first, Bytes bytes) {
  FL_ASSERT(first + bytes.size() <= size() * sizeof(float));
  if (!mapping_) {
    const auto all = std::as_writable_bytes(std::span(memory_));
    copy_span(bytes, all.subspan(static_cast<std::size_t>(first), bytes.size()));
  }
  if (!file_) return {};
  return file_->write_at(first, bytes);
}

Result<void> StoredValues::sync() {
  if (!file_) return {};
  return file_->sync();
}

Result<void> for_each_piece(std::size_t elements, const WorkOnPiece& work) {
  for (std::size_t first = 0; first < elements; first += piece_elements)
    FL_CHECK(work(first, std::min(piece_elements, elements - first)));
  return {};
}

Result<void> change_values(StoredValues& target, std::size_t first, std::size_t count,
                           const ChangePiece& change, int threads) {
  const std::span<float> memory = target.memory();
  const auto change_piece = [&](std::size_t at, std::vector<float>& room) -> Result<void> {
    const std::size_t elements = std::min(piece_elements, count - at);
    if (!memory.empty()) {
      change(at, memory.subspan(first + at, elements));
      return {};
    }
    const auto before = target.values().subspan(first + at, elements);
    room.assign(before.begin(), before.end());
    change(at, room);
    return target.write(first + at, room);
  };
  const std::size_t pieces = (count + piece_elements - 1) / piece_elements;
  Lanes lanes(threads, std::max<std::size_t>(1, pieces));
  std::vector<std::vector<float>> rooms(lanes.count());
  std::vector<Result<void>> changed(pieces);
  lanes.for_each_run(pieces, 1, [&](std::size_t lane, std::size_t piece, std::size_t) {
    changed[piece] = change_piece(piece * piece_elements, rooms[lane]);
  });
  for (const auto& result : changed) FL_CHECK(result);
  return {};
}

WriteValues write_into(StoredValues& target, std::uint64_t begin) {
  return [&target, begin](std::uint64_t first, std::span<const float> values) {
    return target.write(begin + first, values);
  };
}

Result<void> copy_values(std::span<const float> source, StoredValues& target) {
  return for_each_piece(source.size(), [&](std::size_t first, std::size_t count) {
    return target.write(first, source.subspan(first, count));
  });
}

Result<void> fill_zeros(StoredValues& target, std::size_t first) {
  const std::vector<float> zeros(std::min(piece_elements, target.size() - first));
  return for_each_piece(target.size() - first, [&](std::size_t at, std::size_t count) {
    return target.write(first + at, std::span(zeros).first(count));
  });
}

ValuePool::ValuePool(Files& files, std::filesystem::path folder, std::uint64_t memory_bytes_max)
    : files_(&files), folder_(std::move(folder)) {
  if (files.can_map())
    memory_left_ = std::make_shared<std::atomic<std::uint64_t>>(memory_bytes_max);
}

/// A kept vector, or none. One of this length is best, and one in memory is better than a file.
StoredValues ValuePool::take_kept(std::size_t elements) {
  const MutexLock lock(mutex_);
  const auto worth = [elements](const StoredValues& kept) {
    return std::pair(kept.size() == elements, kept.is_in_memory());
  };
  const auto best = std::ranges::max_element(kept_, {}, worth);
  if (best == kept_.end()) return {};
  StoredValues kept = std::move(*best);
  kept_.erase(best);
  return kept;
}

Result<StoredValues> ValuePool::borrow(std::size_t elements) {
  StoredValues kept = take_kept(elements);
  if (kept.size() == elements) return kept;
  std::vector<float> memory = std::move(kept).release_memory();
  std::unique_ptr<MemoryShare> share;
  if (memory_left_) {
    share = MemoryShare::take(memory_left_, elements * sizeof(float));
    if (!share) {
      memory = {};  // Frees its room before more is taken.
      const std::filesystem::path path = folder_ / ("scratch-" + std::to_string(++files_made_));
      FL_TRY(auto fresh, StoredValues::make(*files_, path, elements));
      FL_CHECK(files_->remove(path));
      return fresh;
    }
    if (memory.size() > elements) memory = {};  // A part of it would be counted for nobody.
  }
  memory.resize(elements);
  return StoredValues(std::move(memory), std::move(share));
}

void ValuePool::give_back(StoredValues values) {
  const MutexLock lock(mutex_);
  if (kept_.size() < kept_max) kept_.push_back(std::move(values));
}

}  // namespace fl::client
