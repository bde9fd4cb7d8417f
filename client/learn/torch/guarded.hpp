// SPDX-License-Identifier: Apache-2.0
// Turns exceptions of libtorch into errors. Only files that use libtorch include this header.
#pragma once

#include "client/learn/torch/step_sync.hpp"
#include "shared/base/error.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <stdexcept>

namespace fl {

/// A batch that the model can't train on, whatever its weights. An exception, because it travels
/// through forward passes.
class UnfitBatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Calls the function, which returns a Result. An exception (out of memory, a lost device) becomes
/// an error: unavailable if another rank was lost, invalid_input for an UnfitBatch, else internal.
template <class Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const SyncFailure& error) {
    return Error(Errc::unavailable, error.what());
  } catch (const UnfitBatch& error) {
    return Error(Errc::invalid_input, error.what());
  } catch (const c10::Error& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what()));
  }
}

}  // namespace fl
