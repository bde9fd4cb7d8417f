// SPDX-License-Identifier: Apache-2.0
// Tells when the history may have changed, whoever wrote into it: this process, or another program
// such as `fl-server revoke`. It watches the file that all of them append to, SQLite's write-ahead
// log, with inotify. Where the system has no watch left, waits end at a steady pace instead. On the
// strand.
#pragma once

#include "shared/base/async/mailbox.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace fl::server {

class HistoryChanges {
 public:
  /// `history`: the database's file. The executor's context must outlive this object.
  HistoryChanges(net::any_io_executor strand, const std::filesystem::path& history);

  /// Begins to watch. Without it waits end at the pace of limits::history_pace.
  void start();
  /// Returns at a change since the call before with this `seen`, which begins with 0; after
  /// limits::history_look at the latest; and at wake(). Changes that follow each other are told at
  /// most once in limits::history_pace.
  Awaitable<void> wait(std::uint64_t& seen);
  /// Ends all waits now. From then on there may be no further change to wait for, so callers check
  /// whether they are to stop.
  void wake();

 private:
  Awaitable<void> watch();

  std::string name_;  // The watched file's name in its folder.
  std::filesystem::path folder_;
  net::posix::stream_descriptor events_;
  bool is_watching_ = false;
  std::uint64_t changes_ = 0;
  Signal changed_;
};

}  // namespace fl::server
