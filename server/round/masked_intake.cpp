// SPDX-License-Identifier: Apache-2.0
#include "server/round/masked_intake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::server {

Result<void> MaskedIntake::check(const wire::UploadBegin& begin, const Task& task) const {
  if (begin.codec() != task.record.codec) {
    return Error(Errc::invalid_input, fmt::format("it is coded as '{}'; the task asked for '{}'",
                                                  begin.codec().substr(0, 64), task.record.codec));
  }
  return parts_.round.check_words(begin, task.record.client);
}

Awaitable<Result<UpdateIntake::Taken>> MaskedIntake::take(Task& task, TaskRecord&,
                                                          const UploadGrant& grant) {
  parts_.control.expect_strand();
  auto finish = [this, &grant]() -> Result<void> {
    FL_CHECK(parts_.spool.finish(*grant.upload));
    return parts_.spool.sync_names();
  };
  FL_CO_CHECK(co_await parts_.compute.run(std::move(finish)));
  FL_CO_CHECK(co_await parts_.round.hold(task.record.client, grant.begin));
  co_return Taken::held;
}

Result<ReadValues> MaskedIntake::mean() const {
  return ReadValues([&sums = parts_.round.sums()](std::uint64_t first, std::span<float> out) {
    std::vector<float> block;
    std::size_t run = 0;
    // The runs are in the order of their values.
    for (std::size_t end = sums.runs(); run + 1 < end;) {
      const std::size_t middle = run + (end - run) / 2;
      if (sums.block(middle).flat <= first) {
        run = middle;
      } else {
        end = middle;
      }
    }
    for (; !out.empty(); ++run) {
      FL_ASSERT(run < sums.runs());
      const codec::Block& of = sums.block(run);
      FL_ASSERT(of.flat <= first && first < of.flat + of.elements);
      const auto skipped = static_cast<std::size_t>(first - of.flat);
      const std::size_t count = std::min<std::size_t>(out.size(), of.elements - skipped);
      if (count == of.elements) {
        sums.mean_of_run(run, out.first(count));
      } else {
        block.resize(of.elements);
        sums.mean_of_run(run, block);
        std::ranges::copy(std::span(block).subspan(skipped, count), out.begin());
      }
      first += count;
      out = out.subspan(count);
    }
    return success();
  });
}

}  // namespace fl::server
