// SPDX-License-Identifier: Apache-2.0
#include "server/app/service.hpp"

#include "server/admin/status_line.hpp"
#include "server/app/command_line.hpp"
#include "server/app/commands.hpp"
#include "shared/base/log.hpp"

#include <array>
#include <utility>

namespace fl::server {

namespace {

constexpr const char* new_run = "--new-run";  // This flag was for the first start only.
constexpr const char* is_stopping_text = "the server is stopping";

constexpr std::array<std::string_view, 5> live_flags{"--admin-host", "--admin-token-file",
                                                     "--max-upload", "--max-download", "--quiet"};

}  // namespace

Service::Service(net::io_context& io, net::any_io_executor strand, ServiceManager manager,
                 ServeOptions options)
    : io_(io),
      strand_(std::move(strand)),
      manager_(std::move(manager)),
      pulse_(strand_, manager_),
      probes_(pulse_),
      options_(std::move(options)),
      traffic_(make_governors(options_.traffic)) {
  options_.flags.erase(new_run);
}

void Service::start(const Parts& parts) {
  parts_.emplace(parts);
  reload_signal_.emplace(net::make_strand(io_), [this] { reload(); });
  net::co_spawn(strand_, pulse_.run([this] { return look(); }), rethrow);
  manager_.ready();
}

void Service::stopping() {
  is_stopping_ = true;
  probes_.set_trouble(is_stopping_text);
  manager_.stopping();
}

/// Asks the store's thread too, because an engine whose store hangs does nothing any more.
Awaitable<std::string> Service::look() {
  auto ask_store = [state = options_.state] { return trouble_with_history(state); };
  std::string trouble = co_await parts_->store_thread.run(std::move(ask_store));
  if (!parts_->pause->why.empty()) trouble = parts_->pause->why;
  probes_.set_trouble(is_stopping_ ? is_stopping_text : std::move(trouble));
  co_return format_status(parts_->engines.newest()->view().status());
}

void Service::reload() {
  manager_.reloading();
  if (const auto done = read_again()) {
    log_info("{}", done->text());
  } else {
    log_error("the flags were not read again, and nothing has changed: {}", done.error().message());
  }
  manager_.ready();
}

/// Reads all flags before it changes anything.
Result<FlagReload> Service::read_again() {
  FL_TRY(ServeOptions now, read_options_again(options_.arguments, server_commands()));
  now.flags.erase(new_run);
  bool token_changed = false;
  if (parts_->admin != nullptr) {
    FL_TRY(Admin::Options access, parts_->read_access(now));
    token_changed = parts_->admin->change(std::move(access.access));
  }
  FlagReload reload = follow_flags(options_.flags, now.flags, live_flags);
  if (reload.has_changed(traffic_flags)) change_governors(traffic_, now.traffic);
  if (token_changed) reload.changed.emplace_back("the token of the admin pages");
  set_log_level(now.verbose ? LogLevel::debug : LogLevel::info);
  return reload;
}

}  // namespace fl::server
