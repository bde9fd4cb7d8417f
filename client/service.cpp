// SPDX-License-Identifier: Apache-2.0
#include "client/service.hpp"

#include "shared/base/log.hpp"

#include <utility>

namespace fl::client {

ClientService::ClientService(net::any_io_executor strand, const ServiceManager& manager,
                             const ClientOptions& options, Governors traffic, std::string status)
    : manager_(manager),
      options_(options),
      traffic_(std::move(traffic)),
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
    const FlagReload reload = follow_flags(flags_, now->flags, traffic_flags);
    if (reload.has_changed(traffic_flags)) change_governors(traffic_, now->traffic);
    set_log_level(now->verbose ? LogLevel::debug : LogLevel::info);
    log_info("{}", reload.text());
  } else {
    log_error("the flags were not read again, and nothing has changed: {}", now.error().message());
  }
  manager_.ready();
}

}  // namespace fl::client
