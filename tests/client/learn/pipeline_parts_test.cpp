// SPDX-License-Identifier: Apache-2.0
// The schedules of pipelines against tables, formulas, and two machines that run them: one with
// queues, to find out whether ranks wait for each other for ever, and one with a clock.
#include "client/learn/pipeline_parts.hpp"
#include "shared/params/model_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace fl {
namespace {

using Kind = PipelineOperation::Kind;
using Operations = std::vector<PipelineOperation>;

std::string text_of(const Operations& operations, bool has_chunks) {
  std::string text;
  for (const auto& [kind, microbatch, chunk] : operations) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}{}", "FBIW"[static_cast<int>(kind)], microbatch);
    if (has_chunks) text += fmt::format(".{}", chunk);
  }
  return text;
}

PipelineDivision pipeline_of(const std::string& text, std::int64_t ranks) {
  return parse_pipeline(text, ranks).value();
}

struct Table {
  const char* schedule;
  std::int64_t ranks;
  std::int64_t microbatches;
  std::vector<std::string> operations;  // By rank: forward, backward, inputs, weights.
};
const Table tables[] = {
    {"gpipe", 2, 3, {"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"}},
    {"1f1b",
     4,
     6,
     {"F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
      "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"}},
    {"zb-h1",
     4,
     6,
     {"F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5",
      "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5",
      "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5",
      "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5"}},
    {"interleaved:2",
     2,
     4,
     {"F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
      "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"}},
};

/// All kinds over ranks and microbatches.
void for_each_pipeline(const std::function<void(const PipelineDivision&, std::int64_t)>& call) {
  for (const char* const text : {"gpipe", "1f1b", "zb-h1", "interleaved:2", "interleaved:3"}) {
    for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
      for (std::int64_t times = 1; times <= 4; ++times) {
        const std::string name =
            fmt::format("{}, {} ranks, {} microbatches", text, ranks, times * ranks);
        CAPTURE(name);
        call(pipeline_of(text, ranks), times * ranks);
      }
    }
  }
}

std::vector<Operations> schedules_of(const PipelineDivision& division, std::int64_t microbatches) {
  std::vector<Operations> all;
  for (std::int64_t rank = 0; rank < division.ranks; ++rank)
    all.push_back(schedule_of(division, rank, microbatches));
  return all;
}

/// What goes from stage to stage: the values of a microbatch, or their gradient on the way back.
struct Transferred {
  bool is_back;
  std::int64_t microbatch;
  std::int64_t stage;  // That it goes into, or comes back out of.
  auto operator<=>(const Transferred&) const = default;
};
bool is_back(Kind kind) { return kind == Kind::backward || kind == Kind::inputs; }

std::vector<Transferred> needs_of(const PipelineDivision& division, std::int64_t rank,
                                  const PipelineOperation& done) {
  const std::int64_t stage = division.stage_of(rank, done.chunk);
  if (done.kind == Kind::forward && stage > 0) return {{false, done.microbatch, stage}};
  if (is_back(done.kind) && stage + 1 < division.stages())
    return {{true, done.microbatch, stage + 1}};
  return {};
}

std::vector<Transferred> gives_of(const PipelineDivision& division, std::int64_t rank,
                                  const PipelineOperation& done) {
  const std::int64_t stage = division.stage_of(rank, done.chunk);
  if (done.kind == Kind::forward && stage + 1 < division.stages())
    return {{false, done.microbatch, stage + 1}};
  if (is_back(done.kind) && stage > 0) return {{true, done.microbatch, stage}};
  return {};
}

/// Runs the schedules where a group's transfers are taken in the order in which a rank has called
/// for them, each blocking those behind it, beside a queue of computations: NCCL's rule. Returns
/// whether all ranks come to their end. group_of(transfer): the group by which it goes.
template <class GroupOf>
bool comes_to_an_end(const PipelineDivision& division, std::int64_t microbatches,
                     const GroupOf& group_of) {
  struct Call {
    bool sends;
    Transferred what;
    std::size_t after;  // It can begin when so many operations are done.
  };
  const auto ranks = static_cast<std::size_t>(division.ranks);
  const std::vector<Operations> all = schedules_of(division, microbatches);
  std::vector<std::map<int, std::deque<Call>>> calls(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    for (std::size_t i = 0; i < all[rank].size(); ++i) {
      for (const Transferred& what : needs_of(division, number, all[rank][i]))
        calls[rank][group_of(what)].push_back({false, what, i});
      for (const Transferred& what : gives_of(division, number, all[rank][i]))
        calls[rank][group_of(what)].push_back({true, what, i + 1});
    }
  }
  std::set<Transferred> arrived;
  std::vector<std::size_t> done(ranks);
  const auto is_ready = [&](std::size_t rank) {
    if (done[rank] == all[rank].size()) return false;
    const auto needs = needs_of(division, static_cast<std::int64_t>(rank), all[rank][done[rank]]);
    return std::ranges::all_of(needs, [&](const auto& what) { return arrived.contains(what); });
  };
  const auto transfer_one = [&](std::size_t rank) {
    for (auto& [group, queue] : calls[rank]) {
      if (queue.empty() || !queue.front().sends || queue.front().after > done[rank]) continue;
      for (auto& others : calls) {
        auto& other = others[group];
        if (&other == &queue || other.empty() || other.front().sends ||
            other.front().what != queue.front().what)
          continue;
        arrived.insert(queue.front().what);
        other.pop_front();
        queue.pop_front();
        return true;
      }
    }
    return false;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      while (is_ready(rank)) {
        ++done[rank];
        moves = true;
      }
      while (transfer_one(rank)) moves = true;
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (done[rank] < all[rank].size()) return false;
  return true;
}

/// The time that ranks wait, by the time that they compute, where transfers take none and a
/// microbatch takes a rank one unit forward and two back.
double bubble_of(const PipelineDivision& division, std::int64_t microbatches) {
  const auto ranks = static_cast<std::size_t>(division.ranks);
  const std::vector<Operations> all = schedules_of(division, microbatches);
  std::map<Transferred, double> arrival;
  std::vector<std::size_t> done(ranks);
  std::vector<double> now(ranks);
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto number = static_cast<std::int64_t>(rank);
      while (done[rank] < all[rank].size()) {
        const PipelineOperation& next = all[rank][done[rank]];
        const auto needs = needs_of(division, number, next);
        if (!needs.empty() && !arrival.contains(needs[0])) break;
        if (!needs.empty()) now[rank] = std::max(now[rank], arrival[needs[0]]);
        now[rank] +=
            (next.kind == Kind::backward ? 2.0 : 1.0) / static_cast<double>(division.chunks);
        for (const Transferred& what : gives_of(division, number, next)) arrival[what] = now[rank];
        ++done[rank];
        moves = true;
      }
    }
  }
  return std::ranges::max(now) / (3 * static_cast<double>(microbatches)) - 1;
}

bool has(const std::vector<std::size_t>& units, std::size_t unit) {
  return std::ranges::find(units, unit) != units.end();
}

std::string refusal_of_pipeline(const std::string& model, const std::string& text,
                                std::int64_t ranks) {
  const auto division = parse_pipeline(text, ranks);
  if (!division) return division.error().message();
  const auto checked = check_pipeline(parse_model(model).value(), model, *division);
  return checked ? "" : checked.error().message();
}

}  // namespace

TEST_CASE("the schedules of pipelines are those of the tables") {
  for (const Table& table : tables) {
    const PipelineDivision division = pipeline_of(table.schedule, table.ranks);
    CHECK(pipeline_text(division) == table.schedule);
    for (std::size_t rank = 0; rank < table.operations.size(); ++rank) {
      CAPTURE(table.schedule);
      CAPTURE(rank);
      CHECK(text_of(schedule_of(division, static_cast<std::int64_t>(rank), table.microbatches),
                    division.chunks > 1) == table.operations[rank]);
    }
  }
}

TEST_CASE("each microbatch goes forward and back once in each chunk, in its order") {
  for_each_pipeline([](const PipelineDivision& division, std::int64_t microbatches) {
    const bool puts_off = division.schedule == PipelineSchedule::zero_bubble;
    for (std::int64_t rank = 0; rank < division.ranks; ++rank) {
      std::map<std::pair<Kind, std::int64_t>, std::vector<std::int64_t>> seen;
      std::set<std::tuple<Kind, std::int64_t, std::int64_t>> before;
      for (const auto& [kind, microbatch, chunk] : schedule_of(division, rank, microbatches)) {
        seen[{kind, chunk}].push_back(microbatch);
        if (is_back(kind)) CHECK(before.contains({Kind::forward, microbatch, chunk}));
        if (kind == Kind::weights) CHECK(before.contains({Kind::inputs, microbatch, chunk}));
        before.insert({kind, microbatch, chunk});
      }
      CHECK(seen.size() == static_cast<std::size_t>((puts_off ? 3 : 2) * division.chunks));
      for (const auto& [what, order] : seen) {
        CHECK(order.size() == static_cast<std::size_t>(microbatches));
        CHECK(std::ranges::is_sorted(order));
      }
      const Operations forward = forward_schedule_of(division, rank, microbatches);
      CHECK(forward.size() == static_cast<std::size_t>(microbatches * division.chunks));
    }
  });
}

TEST_CASE("so many microbatches are in flight on a rank as the formulas say") {
  for_each_pipeline([](const PipelineDivision& division, std::int64_t microbatches) {
    const std::int64_t ranks = division.ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      std::int64_t in_flight = 0;
      std::int64_t most = 0;
      std::int64_t put_off = 0;
      std::int64_t most_put_off = 0;
      for (const PipelineOperation& done : schedule_of(division, rank, microbatches)) {
        if (done.kind == Kind::forward) most = std::max(most, ++in_flight);
        if (is_back(done.kind)) --in_flight;
        if (done.kind == Kind::inputs) most_put_off = std::max(most_put_off, ++put_off);
        if (done.kind == Kind::weights) --put_off;
      }
      const std::int64_t all = microbatches * division.chunks;
      const std::int64_t wanted = [&] {
        switch (division.schedule) {
          case PipelineSchedule::gpipe: return all;
          case PipelineSchedule::interleaved:
            return std::min(2 * (ranks - rank - 1) + (division.chunks - 1) * ranks + 1, all);
          case PipelineSchedule::one_forward_one_back:
          case PipelineSchedule::zero_bubble: break;
        }
        return std::min(ranks - rank, all);
      }();
      CHECK(most == wanted);
      CHECK(most_put_off <= rank + 1);
      CHECK(put_off == 0);
    }
  });
}

TEST_CASE("ranks never wait for each other for ever, with the groups that they have") {
  for_each_pipeline([](const PipelineDivision& division, std::int64_t microbatches) {
    const auto way_of = [&](const Transferred& what) {
      const PipelineWay way =
          what.is_back ? way_back_from(division, what.stage) : way_into(division, what.stage);
      CHECK(has_way(division, way));
      return static_cast<int>(way);
    };
    CHECK(comes_to_an_end(division, microbatches, way_of));
    // With fewer groups all kinds stand still but the first.
    const auto one_group = [](const Transferred& /*what*/) { return 0; };
    const bool has_turns = division.schedule != PipelineSchedule::gpipe;
    if (has_turns) CHECK(!comes_to_an_end(division, microbatches, one_group));
    const auto by_direction = [](const Transferred& what) { return what.is_back ? 1 : 0; };
    CHECK(comes_to_an_end(division, microbatches, by_direction) == (division.chunks == 1));
  });
}

TEST_CASE("ranks wait for so long as the formulas say") {
  for_each_pipeline([](const PipelineDivision& division, std::int64_t microbatches) {
    const auto ranks = static_cast<double>(division.ranks);
    const auto parts = static_cast<double>(microbatches);
    double wanted = (ranks - 1) / parts;
    if (division.schedule == PipelineSchedule::interleaved)
      wanted /= static_cast<double>(division.chunks);
    if (division.schedule == PipelineSchedule::zero_bubble) wanted /= 3;
    CHECK(bubble_of(division, microbatches) == doctest::Approx(wanted).epsilon(1e-12));
  });
}

TEST_CASE("interleaved stages take microbatches in groups of as many as there are ranks") {
  CHECK(microbatches_for(pipeline_of("1f1b", 4), 3) == 3);
  CHECK(microbatches_for(pipeline_of("interleaved:2", 4), 3) == 4);
  CHECK(microbatches_for(pipeline_of("interleaved:2", 4), 4) == 4);
  CHECK(microbatches_for(pipeline_of("interleaved:2", 4), 5) == 8);
}

TEST_CASE("each tensor is on one rank, and the tokens' embedding on the first and the last") {
  const std::string model = "transformer:layers=8,width=8,heads=2,context=8";
  const Layout layout = builtin_layout(model).value();
  const std::int64_t blocks = blocks_of(layout);
  CHECK(blocks == 8);
  for (const char* const text : {"1f1b", "interleaved:2"}) {
    for (const std::int64_t ranks : {2, 4}) {
      const PipelineDivision division = pipeline_of(text, ranks);
      for (const Layout::Tensor& tensor : layout.tensors()) {
        CAPTURE(tensor.name);
        int holders = 0;
        int copies = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          holders += is_on_rank(tensor.name, division, rank, blocks) ? 1 : 0;
          copies += is_tied_copy(tensor.name, division, rank) &&
                            is_on_rank(tensor.name, division, rank, blocks)
                        ? 1
                        : 0;
        }
        CHECK(holders - copies == 1);
        CHECK(copies == (tensor.name == "tokens.weight" ? 1 : 0));
      }
      std::vector<std::size_t> all;
      for (std::int64_t stage = 0; stage < division.stages(); ++stage)
        std::ranges::copy(units_of_stage(division, stage, blocks), std::back_inserter(all));
      std::vector<std::size_t> wanted(11);  // Two embeddings, the blocks, and norm with logits.
      std::iota(wanted.begin(), wanted.end(), 0U);
      CHECK(all == wanted);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto units = units_on_rank(division, rank, blocks);
        CHECK(std::ranges::is_sorted(units));
        CHECK(has(units, 0) == (rank == 0 || rank + 1 == ranks));
        for (std::int64_t block = 0; block < blocks; ++block) {
          const bool is_here = has(units, static_cast<std::size_t>(2 + block));
          const std::string tensor = fmt::format("block{}.fc1.weight", block + 1);
          CHECK(is_on_rank(tensor, division, rank, blocks) == is_here);
        }
      }
    }
  }
  CHECK(is_on_rank("positions.weight", pipeline_of("1f1b", 2), 0, 8));
  CHECK(is_on_rank("norm.weight", pipeline_of("1f1b", 2), 1, 8));
}

TEST_CASE("a pipeline that can't be is refused with the number that does not fit") {
  const std::string model = "transformer:layers=6,width=8,heads=2,context=8";
  CHECK(refusal_of_pipeline(model, "1f1b", 3).empty());
  CHECK(refusal_of_pipeline(model, "interleaved:3", 2).empty());
  CHECK(refusal_of_pipeline("lenet", "1f1b", 1).empty());
  CHECK(refusal_of_pipeline(model, "1f1b", 4).ends_with("its 6 layers are no multiple of 4"));
  CHECK(refusal_of_pipeline(model, "interleaved:2", 2)
            .ends_with("its 6 layers are no multiple of 4, as each rank has 2 stages"));
  CHECK(refusal_of_pipeline("lenet", "1f1b", 2).find("transformer") != std::string::npos);
  for (const char* const text : {"", "1F1B", "interleaved", "interleaved:1", "interleaved:65",
                                 "interleaved:x", "gpipe:2", "zb-h2"}) {
    CAPTURE(text);
    CHECK(refusal_of_pipeline(model, text, 2).find("is none of gpipe, 1f1b") != std::string::npos);
  }
}

}  // namespace fl
