// SPDX-License-Identifier: Apache-2.0
#include "server/round/masked_sum.hpp"

#include "shared/base/async/mutex.hpp"
#include "shared/base/async/parallel.hpp"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>

namespace fl::server {

namespace {

/// Words that one lane works on at a time: 1 MiB, which stays in its cache.
constexpr std::size_t piece_words = 1 << 17;

}  // namespace

Result<std::vector<std::uint64_t>> opened_sum(const std::vector<std::shared_ptr<File>>& files,
                                              std::uint64_t words,
                                              const std::vector<Unlocking::Removal>& removals) {
  std::vector<std::uint64_t> sum(words);
  Mutex mutex;
  std::optional<Error> failure;
  const auto open_piece = [&](std::size_t begin, std::span<std::uint64_t> out) -> Result<void> {
    std::vector<std::uint64_t> room(out.size());
    for (const auto& file : files) {
      FL_CHECK(file->read_exactly(begin * sizeof(std::uint64_t),
                                  std::as_writable_bytes(std::span(room))));
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += room[i];
    }
    for (const auto& [key, way] : removals) secure::MaskStream(key).apply(way, begin, out);
    return {};
  };
  Lanes lanes(0, (words + piece_words - 1) / piece_words);
  lanes.for_each_run(words, piece_words, [&](std::size_t, std::size_t begin, std::size_t end) {
    const auto opened = open_piece(begin, std::span(sum).subspan(begin, end - begin));
    if (opened) return;
    const MutexLock lock(mutex);
    failure = opened.error();
  });
  if (failure) return *failure;
  return sum;
}

Result<std::string> spool_name_of(const wire::UploadBegin& words) {
  FL_TRY(const Digest digest, Digest::from_bytes(words.digest()));
  return Spool::name_of(TaskId{words.task()}, digest);
}

Result<std::unique_ptr<const LaneSums>> add_up(const Attempt& attempt,
                                               const secure::LaneWords& layout,
                                               const std::vector<Unlocking::Removal>& removals,
                                               Spool& spool, const RunPlan& plan, Round first) {
  std::vector<std::shared_ptr<File>> files;
  std::vector<LaneGiver> givers;
  for (const std::string& client : attempt.survivors()) {
    FL_TRY(const std::string name, spool_name_of(*attempt.words_of(client)));
    auto file = spool.open_accepted(name);
    if (!file) return file.error().at(fmt::format("the masked update {}", name));
    files.push_back(std::move(*file));
    givers.push_back({plan.client_seed_of(first, client), 1});
  }
  FL_TRY(auto words, opened_sum(files, layout.words(), removals));
  return std::make_unique<const LaneSums>(layout, std::move(words), std::move(givers),
                                          plan.shared_seed_of(first));
}

}  // namespace fl::server
