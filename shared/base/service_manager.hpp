// SPDX-License-Identifier: Apache-2.0
// Tells the service manager that started this program how it is: systemd with Type=notify, or one
// that speaks its protocol (sd_notify(3)). Each message is a datagram to the Unix socket that
// NOTIFY_SOCKET names. These few lines are our own, because libsystemd would bring five more
// libraries into each container image. Without a manager nothing is sent. Any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

class ServiceManager {
 public:
  /// A process without a service manager.
  ServiceManager() = default;
  /// `socket`: a path, or "@NAME" for an abstract socket. `watchdog`: the manager ends a program
  /// that has sent nothing for this long.
  ServiceManager(std::string socket, std::optional<std::chrono::microseconds> watchdog)
      : socket_(std::move(socket)), watchdog_(watchdog) {}

  /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the environment: a
  /// trainer that this program starts must not speak for it. Before other threads exist.
  [[nodiscard]] static ServiceManager take_from_environment();

  [[nodiscard]] bool is_present() const { return !socket_.empty(); }
  [[nodiscard]] std::optional<std::chrono::microseconds> watchdog() const { return watchdog_; }

  void ready() const { send("READY=1"); }
  void stopping() const { send("STOPPING=1"); }
  /// Between reloading() and ready() the manager shows that flags are read again.
  void reloading() const;
  /// One line for `systemctl status`.
  void status(std::string_view text) const;
  void feed_watchdog() const;

 private:
  void send(std::string_view lines) const;

  std::string socket_;  // "": no manager.
  std::optional<std::chrono::microseconds> watchdog_;
};

}  // namespace fl
