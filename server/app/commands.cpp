// SPDX-License-Identifier: Apache-2.0
#include "server/app/commands.hpp"

#include "server/app/doctor.hpp"
#include "server/app/history_commands.hpp"
#include "server/app/identity_commands.hpp"
#include "server/app/members_command.hpp"
#include "server/app/operator_commands.hpp"
#include "server/app/privacy_command.hpp"
#include "server/app/record_commands.hpp"
#include "server/app/replay_command.hpp"
#include "server/app/run_commands.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

namespace fl::server {

namespace {

void print_line(std::size_t width, std::string_view usage, std::string_view about) {
  fmt::print("{:<{}} {}\n", usage, width, about);
}

Result<void> print_codecs(const SharedOptions&) {
  constexpr std::size_t width = 54;
  for (const auto& row : codec::codec_rows()) print_line(width, row.usage, row.about);
  print_line(width, "...+ef", "any codec with error feedback: what it loses is sent later");
  print_line(width, "SELECTOR+...+dgc:M",
             "error feedback with momentum M and factor masking (Lin 2018)");
  print_line(width, "delta+...",
             "for --codec: sends the difference to the client's last update (EF21); takes 4 bytes "
             "a parameter of disk for each client, at both ends");
  print_line(width, "PATTERN=CODEC;…;*=CODEC",
             "by tensor name, the first pattern that fits: '*.bias=none;*=topk:0.01+qsgd:8'");
  print_line(width, "…,dense_below=N",
             "sends tensors of fewer elements losslessly (1024 under selectors and patterns)");
  print_line(width, "…,from=X,over=R",
             "F, S, B, R or BITS goes from X to its value over R rounds: topk:0.001,from=0.25,"
             "over=4");
  print_line(width, "auto[:CODEC|CODEC|…]",
             "for --codec: each client uses the finest codec, finest first, that its connection "
             "sends in time");
  return {};
}

Result<void> print_strategies(const SharedOptions&) {
  constexpr std::size_t width = 50;
  for (const auto& row : strategy_rows()) print_line(width, row.usage, row.about);
  print_line(width, "…,weight=uniform",
             "any method, with clients that count the same instead of by their examples");
  print_line(width, "…,personal=PATTERN|PATTERN",
             "any method, with tensors that stay on each client (FedPer, FedBN): fc3.*");
  return {};
}

Command codecs_command() {
  return make_command<SharedOptions>("codecs", "Lists the codecs", {.run = print_codecs});
}

Command strategies_command() {
  return make_command<SharedOptions>("strategies", "Lists the federated methods",
                                     {.run = print_strategies});
}

}  // namespace

std::span<const Command> server_commands() {
  static const Command table[] = {
      queue_command(),   history_command(), compare_command(), export_command(),
      replay_command(),  backup_command(),  prune_command(),   clients_command(),
      audit_command(),   enroll_command(),  pardon_command(),  revoke_command(),
      members_command(), privacy_command(), end_run_command(), operator_command(),
      rotate_command(),  doctor_command(),  codecs_command(),  strategies_command(),
  };
  return table;
}

}  // namespace fl::server
