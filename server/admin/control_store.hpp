// SPDX-License-Identifier: Apache-2.0
// The admin pages' own connection to the database, on a thread of its own: they look operators up
// in it, and what operators do is written through it, as the sub-commands do from their processes.
// Any strand.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/async/offload.hpp"

#include <filesystem>
#include <memory>
#include <type_traits>
#include <utility>

namespace fl::server {

class ControlStore {
 public:
  /// `history`: the database, which exists.
  static Result<std::unique_ptr<ControlStore>> open(const std::filesystem::path& history) {
    FL_TRY(auto store, Store::open({.path = history}));
    return std::unique_ptr<ControlStore>(new ControlStore(std::move(store)));
  }

  /// Runs work(store) on the thread, one piece of work after the other, and returns its result.
  /// Name the function object in a statement of its own first, as for Offload.
  template <class Work>
  Awaitable<std::invoke_result_t<Work&, Store&>> run(Work work) {
    auto call = [this, work = std::move(work)]() mutable { return work(*store_); };
    co_return co_await thread_.run(std::move(call));
  }

 private:
  explicit ControlStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  std::unique_ptr<Store> store_;  // On the thread.
  Offload thread_{1};
};

}  // namespace fl::server
