// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/parallel.hpp"

#include "client/site/rank/data_parallel.hpp"
#include "client/site/rank/reduction.hpp"

#include <utility>

namespace fl::site {

Result<std::unique_ptr<Parallel>> make_parallel(const ParallelSettings& settings,
                                                std::function<void()> on_progress) {
  FL_CHECK(check_reduction(settings.hook, settings.topology));
  return std::unique_ptr<Parallel>(std::make_unique<DataParallel>(std::move(on_progress)));
}

}  // namespace fl::site
