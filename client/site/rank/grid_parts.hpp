// SPDX-License-Identifier: Apache-2.0
// GridParts: what each rank of a grid has of a model. Ranks that follow each other have layers
// together (tp), groups of them share batches and texts (dp and cp) and may have some of the
// experts each (ep), and as many ranks again have the other stages of a pipeline (pp). Pure
// arithmetic; one thread.
#pragma once

#include "client/learn/context_parts.hpp"
#include "client/learn/expert_parts.hpp"
#include "client/learn/piece.hpp"
#include "client/learn/pipeline_parts.hpp"
#include "client/learn/tensor_parts.hpp"
#include "shared/params/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl::site {

/// How ranks take a pass together.
struct PassDivision {
  TensorDivision layers = {};
  ContextDivision texts = {};
  PipelineDivision stages = {};
  ExpertDivision experts = {};
};

class GridParts {
 public:
  explicit GridParts(const PassDivision& division)
      : layers_{
            .tensors = division.layers, .stages = division.stages, .experts = division.experts} {}

  /// From now on there are so many ranks, and this is the model.
  void enter(std::int64_t ranks) { ranks_ = ranks; }
  void hold(const Layout& layout) { layout_ = layout; }

  [[nodiscard]] const LayersDivision& layers() const { return layers_; }
  /// The part of the layers that a rank has; where layers() are divided only.
  [[nodiscard]] LayersPart part_of(std::int64_t rank) const;
  /// The units of a model of so many of which a rank has the parameters.
  [[nodiscard]] std::vector<std::size_t> units_of(std::int64_t rank, std::size_t units) const;
  /// A rank's number among those that have the same layers but for experts.
  [[nodiscard]] std::int64_t sharer_of(std::int64_t rank) const;
  /// Where stretches lie in the model, of the vector that a rank has of the layers: all of them, or
  /// with &LayersPart::owned those that it writes.
  [[nodiscard]] std::vector<Piece> in_model(
      std::int64_t rank, std::vector<Piece> held,
      std::vector<Piece> LayersPart::*which = &LayersPart::pieces) const;

 private:
  [[nodiscard]] LayersPlace place_of(std::int64_t rank) const;
  /// As many ranks have each stage of a pipeline.
  [[nodiscard]] std::int64_t stage_size() const { return ranks_ / layers_.stages.ranks; }

  const LayersDivision layers_;
  std::int64_t ranks_ = 0;
  Layout layout_;
};

}  // namespace fl::site
