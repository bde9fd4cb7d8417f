// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/work_vectors.hpp"

#include <algorithm>
#include <utility>

namespace fl::site {

namespace {

constexpr std::int64_t slice_elements = 1 << 18;  // 1 MiB.

/// The statistics come after all parameters; there may be none.
Piece statistics_of(const Layout& layout) {
  const Layout::Stretch& all = layout.statistics();
  const std::uint64_t count = all.end - all.begin;
  return {static_cast<std::int64_t>(layout.elements() - count), static_cast<std::int64_t>(count),
          0};
}

/// Calls work(slice) for slices of these stretches of a vector, as tensors.
template <class Work>
void for_each_slice(std::span<float> values, const std::vector<Piece>& pieces, const Work& work) {
  for (const Piece& piece : pieces) {
    for (std::int64_t at = 0; at < piece.count; at += slice_elements) {
      const std::int64_t count = std::min(slice_elements, piece.count - at);
      work(torch::from_blob(values.data() + piece.begin + at, {count}, torch::kFloat32));
    }
  }
}

void send_slices(std::span<float> values, const std::vector<Piece>& pieces, int to, Ranks& ranks) {
  for_each_slice(values, pieces,
                 [&](const torch::Tensor& slice) { send(ranks, slice.to(ranks.device()), to); });
}

void receive_slices(std::span<float> values, const std::vector<Piece>& pieces, int from,
                    Ranks& ranks) {
  for_each_slice(values, pieces, [&](torch::Tensor slice) {
    on_device_of(ranks, slice, [&](torch::Tensor& there) { receive(ranks, there, from); });
  });
}

}  // namespace

WorkVectors::WorkVectors(const RankWork& work, const Layout& layout, Parallel& parallel)
    : away_(work.away),
      elements_(layout.elements()),
      statistics_(statistics_of(layout)),
      parallel_(&parallel) {}

Result<WorkVectors> WorkVectors::open(const RankWork& work, const Layout& layout,
                                      Parallel& parallel) {
  WorkVectors vectors(work, layout, parallel);
  FL_TRY(vectors.weights_, vectors.open_to_read(work.files.weights));
  if (work.has_correction) {
    FL_TRY(vectors.correction_, vectors.open_to_read(work.files.correction));
  }
  const auto rank = parallel.ranks().rank();
  const bool writes = work.has_result && !parallel.written_by(rank).empty();
  if (writes) {
    FL_TRY(vectors.result_, vectors.is_away(rank)
                                ? SharedValues::make_unshared(vectors.elements_)
                                : SharedValues::open(work.files.result, vectors.elements_));
  }
  return vectors;
}

bool WorkVectors::is_away(int rank) const { return std::ranges::find(away_, rank) != away_.end(); }

/// Whether these are all parameters, which come before the statistics.
bool WorkVectors::is_all(const std::vector<Piece>& pieces) const {
  return pieces.size() == 1 && pieces[0].count == statistics_.begin;
}

/// Whether the first rank writes all of the result.
bool WorkVectors::writes_all() const { return is_all(parallel_->written_by(0)); }

std::vector<Piece> WorkVectors::all_read_by(int rank) const {
  std::vector<Piece> pieces = parallel_->read_by(rank);
  pieces.push_back(statistics_);
  return pieces;
}

Result<SharedValues> WorkVectors::open_to_read(const std::string& path) {
  const auto rank = parallel_->ranks().rank();
  const bool is_broadcast = !away_.empty() && is_all(parallel_->read_by(0));
  const bool has_file = !is_away(rank) && (rank == 0 || !is_broadcast);
  FL_TRY(SharedValues values,
         has_file ? SharedValues::open(path, elements_) : SharedValues::make_unshared(elements_));
  if (is_broadcast)
    share(values.values());
  else
    bring_pieces(values.values());
  return values;
}

/// Gives the first rank's values to all ranks.
void WorkVectors::share(std::span<float> values) {
  torch::Tensor here =
      torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kFloat32);
  parallel_->broadcast(here);
}

/// Gives each rank that is away what it reads.
void WorkVectors::bring_pieces(std::span<float> values) {
  const auto rank = parallel_->ranks().rank();
  if (is_away(rank)) receive_slices(values, all_read_by(rank), 0, parallel_->ranks());
  if (rank > 0) return;
  for (const int away : away_) send_slices(values, all_read_by(away), away, parallel_->ranks());
}

void WorkVectors::bring_result() {
  const auto rank = parallel_->ranks().rank();
  if (writes_all()) return;
  if (is_away(rank))
    send_slices(result_.values(), parallel_->written_by(rank), 0, parallel_->ranks());
  if (rank > 0) return;
  for (const int away : away_)
    receive_slices(result_.values(), parallel_->written_by(away), away, parallel_->ranks());
}

}  // namespace fl::site
