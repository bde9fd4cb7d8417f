// SPDX-License-Identifier: Apache-2.0
// The model's vectors of a piece of work, as a rank sees them. A rank on the agent's machine maps
// the agent's files. One on another machine has vectors of its own, with what it needs of the
// model; where that is a part, no more memory than for that part is taken.
#pragma once

#include "client/site/rank/parallel.hpp"
#include "client/site/shared_values.hpp"
#include "client/site/site_messages.hpp"
#include "shared/params/layout.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace fl::site {

/// The thread that trains. The calls are collectives where a rank is on another machine: all ranks
/// make them, and they throw RankFailure.
class WorkVectors {
 public:
  /// Opens the vectors, and brings what is read to the ranks that have no files. `parallel` must
  /// outlive the object and have a group. Errors: those of SharedValues.
  [[nodiscard]] static Result<WorkVectors> open(const RankWork& work, const Layout& layout,
                                                Parallel& parallel);

  /// [layout.elements()], of which this rank may read what its Parallel says, and the statistics.
  [[nodiscard]] std::span<const float> weights() const { return weights_.values(); }
  [[nodiscard]] std::span<const float> correction() const { return correction_.values(); }
  /// Where this rank writes its part of the result; empty if others write all of it.
  [[nodiscard]] std::span<float> result() const { return result_.values(); }
  /// Brings to the agent's file what ranks of other machines have written.
  void bring_result();

 private:
  WorkVectors(const RankWork& work, const Layout& layout, Parallel& parallel);
  [[nodiscard]] Result<SharedValues> open_to_read(const std::string& path);
  void share(std::span<float> values);
  void bring_pieces(std::span<float> values);
  [[nodiscard]] std::vector<Piece> all_read_by(int rank) const;
  [[nodiscard]] bool is_all(const std::vector<Piece>& pieces) const;
  [[nodiscard]] bool writes_all() const;
  [[nodiscard]] bool is_away(int rank) const;

  std::vector<int> away_;
  std::size_t elements_;
  Piece statistics_;
  Parallel* parallel_;
  SharedValues weights_;
  SharedValues correction_;
  SharedValues result_;
};

}  // namespace fl::site
