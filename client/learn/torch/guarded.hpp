// SPDX-License-Identifier: Apache-2.0
// Turns exceptions of libtorch into errors. Only files that use libtorch include this header.
#pragma once

#include "client/learn/torch/step_sync.hpp"
#include "shared/base/error.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>

namespace fl {

/// Calls the function, which returns a Result. An exception (out of memory, a lost device) becomes
/// an error: unavailable if another rank was lost, else internal.
template <class Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const SyncFailure& error) {
    return Error(Errc::unavailable, error.what());
  } catch (const c10::Error& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what()));
  }
}

}  // namespace fl
