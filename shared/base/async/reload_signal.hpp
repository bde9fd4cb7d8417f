// SPDX-License-Identifier: Apache-2.0
// SIGHUP, at which a service reads its flags again.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/signal_set.hpp>

#include <functional>

namespace fl {

class ReloadSignal {
 public:
  /// Calls `reload` on the strand for each SIGHUP. On a terminal SIGHUP says that the terminal is
  /// gone, and still ends the program; under nohup it is still ignored. This object must live until
  /// io_context::run() has returned.
  ReloadSignal(net::any_io_executor strand, std::function<void()> reload);
  /// Stops listening. On the strand.
  void cancel();

 private:
  void wait();

  net::signal_set signals_;
  std::function<void()> reload_;
};

}  // namespace fl
