// SPDX-License-Identifier: Apache-2.0
// The model's vectors of a piece of work, on ranks that have the agent's files and on those that
// have not.
#include "client/site/rank/work_vectors.hpp"

#include "shared/params/model_table.hpp"
#include "tests/client/site/trained_ranks.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::site;

TEST_CASE("ranks read what they hold, and the agent's file gets all of the result") {
  const std::string model = "resnet8:1x28x28-10";
  const Layout layout = builtin_layout(model).value();
  // With the second hook ranks of stage 1 read all, and write parts.
  for (const auto& [zero, hook] : {std::pair(0, "allreduce"), std::pair(1, "allreduce"),
                                   std::pair(1, "topk:0.5"), std::pair(3, "allreduce")}) {
    const bool is_whole = zero == 0;
    const bool reads_parts = zero > 0 && hook == std::string("allreduce");
    for (const std::vector<int>& away : {std::vector<int>{}, {2}, {1, 2}}) {
      CAPTURE(hook);
      CAPTURE(away.size());
      const TemporaryFolder folder;
      RankWork work;
      work.has_correction = true;
      work.has_result = true;
      work.away = away;
      const RankFiles files{.weights = (folder.path() / "weights").string(),
                            .correction = (folder.path() / "correction").string(),
                            .result = (folder.path() / "result").string()};
      const auto weights = SharedValues::make(files.weights, layout.elements()).value();
      const auto correction = SharedValues::make(files.correction, layout.elements()).value();
      const auto result = SharedValues::make(files.result, layout.elements()).value();
      std::iota(weights.values().begin(), weights.values().end(), 1.0F);
      std::iota(correction.values().begin(), correction.values().end(), 5.0F);
      Training training;
      training.model = model;
      training.zero = zero;
      training.hook = hook;
      std::vector<std::string> wrong(3);
      on_ranks(3, [&](Ranks& ranks) {
        const auto together = enter_parallel(ranks, training);
        const auto trainer = make_ranks_trainer(training, together.get());
        RankWork mine = work;
        const bool is_away = std::ranges::find(away, ranks.rank()) != away.end();
        if (!is_away) mine.files = files;
        WorkVectors vectors = WorkVectors::open(mine, layout, *together).value();
        std::string& what = wrong[static_cast<std::size_t>(ranks.rank())];
        std::vector<Piece> read = together->read_by(ranks.rank());
        std::int64_t parameters = 0;
        for (int rank = 0; rank < (reads_parts ? 3 : 1); ++rank)
          for (const Piece& piece : together->read_by(rank)) parameters += piece.count;
        read.push_back({parameters, static_cast<std::int64_t>(layout.elements()) - parameters, 0});
        for (const Piece& piece : read) {
          for (std::int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            if (vectors.weights()[at] != static_cast<float>(i + 1)) what = "weights";
            if (vectors.correction()[at] != static_cast<float>(i + 5)) what = "correction";
          }
        }
        if (is_away && reads_parts) {
          // What is not its own is not there.
          const auto zeros = std::ranges::count(vectors.weights(), 0.0F);
          if (zeros < static_cast<std::ptrdiff_t>(layout.elements()) / 2) what = "more than read";
        }
        if (is_whole && ranks.rank() > 0) {
          if (!vectors.result().empty()) what = "result";
        } else {
          for (const Piece& piece : together->written_by(ranks.rank()))
            for (std::int64_t i = piece.begin; i < piece.begin + piece.count; ++i)
              vectors.result()[static_cast<std::size_t>(i)] = static_cast<float>(2 * i + 1);
        }
        vectors.bring_result();
        together->ranks().barrier();
      });
      for (const std::string& what : wrong) CHECK(what == "");
      std::size_t missing = 0;
      for (const Layout::Tensor& tensor : layout.tensors()) {
        if (is_statistic(tensor.name)) continue;
        for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i)
          if (result.values()[i] != static_cast<float>(2 * i + 1)) ++missing;
      }
      CHECK(missing == 0);
    }
  }
}

}  // namespace fl::test
