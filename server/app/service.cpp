// SPDX-License-Identifier: Apache-2.0
#include "server/app/service.hpp"

#include "server/admin/status_line.hpp"
#include "server/app/commands.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <utility>

namespace fl {

namespace {

constexpr const char* is_stopping_text = "the server is stopping";

LogLevel log_level(const ServerOptions& options) {
  return options.verbose ? LogLevel::debug : LogLevel::info;
}

}  // namespace

Reload compare_flags(const ServerOptions& before, const ServerOptions& now, bool token_changed) {
  Reload reload;
  for (const std::string& name : changed_flags(before.flags, now.flags)) {
    if (name == "--verbose") {
      reload.changed.emplace_back(now.verbose ? "the log has more lines (--verbose)"
                                              : "the log has fewer lines (no --verbose)");
    } else if (name == "--admin-host" || name == "--admin-token-file") {
      reload.changed.push_back(name);
    } else if (name != "--new-run") {  // That was for the start.
      reload.need_restart.push_back(name);
    }
  }
  if (token_changed) reload.changed.emplace_back("the token of the admin pages");
  return reload;
}

std::string Reload::text() const {
  std::string text =
      changed.empty() ? "read the flags again: nothing changes now"
                      : fmt::format("read the flags again, changed: {}", fmt::join(changed, ", "));
  if (!need_restart.empty())
    text += fmt::format("; only a restart changes {}", fmt::join(need_restart, ", "));
  return text;
}

Service::Service(net::io_context& io, net::any_io_executor strand, ServiceManager manager,
                 ServerOptions options)
    : io_(io),
      strand_(std::move(strand)),
      manager_(std::move(manager)),
      pulse_(strand_, manager_),
      probes_(pulse_),
      options_(std::move(options)) {}

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
  co_return format_status(parts_->current.get()->status());
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

/// Reads all before it changes anything.
Result<Reload> Service::read_again() {
  FL_TRY(ServerOptions now, read_options_again(options_.arguments, server_commands()));
  bool token_changed = false;
  if (parts_->admin != nullptr) {
    FL_TRY(Admin::Options access, parts_->read_access(now));
    token_changed = parts_->admin->change(std::move(access.access));
  }
  Reload reload = compare_flags(options_, now, token_changed);
  set_log_level(log_level(now));
  // What needs a restart stays as it is, and so is told at the next SIGHUP again.
  for (const char* name : {"--verbose", "--admin-host", "--admin-token-file"}) {
    options_.flags.erase(name);
    if (const auto flag = now.flags.find(name); flag != now.flags.end())
      options_.flags.insert(*flag);
  }
  return reload;
}

}  // namespace fl
