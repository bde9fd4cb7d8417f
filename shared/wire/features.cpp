// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/features.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

struct Row {
  Feature feature;
  std::string_view name;  // On the wire: a-z, 0-9 and '-'; never changed later.
  std::string_view what;  // What an end does that offers it.
  bool of_client = false;
  bool of_server = false;
  /// Whether an end that sends no list has it: such ends are older than the lists.
  bool before_lists = false;
};

constexpr Row rows[] = {
    {.feature = Feature::evaluation,
     .name = "evaluation",
     .what = "the server asks by Evaluate, and the client answers by Evaluation",
     .of_client = true,
     .of_server = true,
     .before_lists = true},
    {.feature = Feature::renewal,
     .name = "renewal",
     .what = "the server answers Renew by a new certificate",
     .of_server = true,
     .before_lists = true},
    {.feature = Feature::summaries,
     .name = "summaries",
     .what = "the client's Ready has means and deviations of the values that the model scales",
     .of_client = true,
     .before_lists = true},
    {.feature = Feature::notices,
     .name = "notices",
     .what = "the client shows the text of a Notice to its user",
     .of_client = true},
    {.feature = Feature::clip_norm,
     .name = "clip-norm",
     .what = "the client shortens gradients to --clip-norm",
     .of_client = true},
    {.feature = Feature::secure_aggregation,
     .name = "secure-aggregation",
     .what = "the client masks its updates for the members of a list",
     .of_client = true},
};

std::string_view name_of(End end) { return end == End::client ? "client" : "server"; }

bool is_of(const Row& row, End end) { return end == End::client ? row.of_client : row.of_server; }

bool is_name(std::string_view name) {
  const auto is_fit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !name.empty() && name.size() <= limits::feature_name_bytes_max &&
         std::ranges::all_of(name, is_fit);
}

}  // namespace

Features Features::of(End end) {
  Features all;
  for (const Row& row : rows)
    if (is_of(row, end)) all.bits_ |= bit(row.feature);
  return all;
}

Features Features::before_lists(End end) {
  Features old = of(end);
  for (const Row& row : rows)
    if (!row.before_lists) old = old.without(row.feature);
  return old;
}

Result<Features> Features::read(const wire::Features& list) {
  if (list.names_size() > static_cast<int>(limits::features_max)) {
    return Error(Errc::protocol, fmt::format("a list of {} features; the limit is {}",
                                             list.names_size(), limits::features_max));
  }
  Features read;
  for (const std::string& name : list.names()) {
    if (!is_name(name)) {
      return Error(
          Errc::protocol,
          fmt::format("the name of a feature is not 1 to {} characters of a-z, 0-9 and '-'",
                      limits::feature_name_bytes_max));
    }
    const auto* const row = std::ranges::find(rows, name, &Row::name);
    if (row != std::end(rows)) read.bits_ |= bit(row->feature);
  }
  return read;
}

Result<Features> Features::read(const wire::Hello& hello) {
  return hello.has_features() ? read(hello.features()) : before_lists(End::client);
}

Result<Features> Features::read(const wire::Welcome& welcome) {
  return welcome.has_features() ? read(welcome.features()) : before_lists(End::server);
}

wire::Features Features::to_wire() const {
  wire::Features list;
  for (const Row& row : rows)
    if (has(row.feature)) list.add_names(std::string(row.name));
  return list;
}

Result<void> demand(const Features& theirs, End end, Feature feature, std::string_view user) {
  if (theirs.has(feature)) return {};
  const auto* const row = std::ranges::find(rows, feature, &Row::feature);
  FL_ASSERT(row != std::end(rows));
  return Error(Errc::invalid_input,
               fmt::format("{} needs the feature '{}', which this {} lacks ({}): use a {} that has "
                           "it",
                           user, row->name, name_of(end), row->what, name_of(end)));
}

}  // namespace fl
