// SPDX-License-Identifier: Apache-2.0
#include "client/service.hpp"

#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace fl {

ClientService::ClientService(net::any_io_executor strand, const ServiceManager& manager,
                             const ClientOptions& options, std::string status)
    : manager_(manager),
      options_(options),
      status_(std::move(status)),
      flags_(options.flags),
      pulse_(strand, manager),
      reload_signal_(strand, [this] { reload(); }) {
  net::co_spawn(strand, pulse_.run([this] { return look(); }), rethrow);
  manager_.ready();
}

void ClientService::end() {
  pulse_.stop();
  reload_signal_.cancel();
}

void ClientService::reload() {
  manager_.reloading();
  if (const auto now = options_.read_again()) {
    auto names = changed_flags(flags_, now->flags);
    std::string text = "read the flags again: nothing changes now";
    if (std::erase(names, "--verbose") > 0) {
      set_log_level(now->verbose ? LogLevel::debug : LogLevel::info);
      flags_.erase("--verbose");
      if (const auto flag = now->flags.find("--verbose"); flag != now->flags.end())
        flags_.insert(*flag);
      text = now->verbose ? "read the flags again, changed: the log has more lines (--verbose)"
                          : "read the flags again, changed: the log has fewer lines (no --verbose)";
    }
    if (!names.empty()) text += fmt::format("; only a restart changes {}", fmt::join(names, ", "));
    log_info("{}", text);
  } else {
    log_error("the flags were not read again, and nothing has changed: {}", now.error().message());
  }
  manager_.ready();
}

}  // namespace fl
