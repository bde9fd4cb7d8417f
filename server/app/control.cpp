// SPDX-License-Identifier: Apache-2.0
#include "server/app/control.hpp"

#include "server/app/asked_run.hpp"
#include "server/app/command_audit.hpp"
#include "server/app/command_line.hpp"
#include "server/app/run_queue.hpp"
#include "server/run/settings_table.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/identity/crypto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace fl::server {

namespace {

using nlohmann::json;

/// The prefix tells people and scanners what the token is.
constexpr std::string_view token_prefix = "flo1.";
constexpr std::size_t token_bytes = 32;

Error bad(std::string text) { return {Errc::invalid_input, std::move(text)}; }

/// A text of the body. With `usual` it may be missing.
Result<std::string> text_in(const json& body, const char* key,
                            std::optional<std::string> usual = std::nullopt) {
  const auto found = body.find(key);
  if (found == body.end() && usual) return *usual;
  if (found == body.end() || !found->is_string())
    return bad(fmt::format("\"{}\" must be there, and a text", key));
  return found->get<std::string>();
}

/// The run that the body names, by its number or its key.
Result<RunRecord> run_in(Store& store, const json& body) {
  const auto found = body.find("run");
  const auto number = found != body.end() ? number_in<RunId>(*found) : std::nullopt;
  const bool is_text =
      found != body.end() && found->is_string() && !found->get_ref<const std::string&>().empty();
  if (is_text) return asked_run(store.runs(), found->get<std::string>());
  if (!number || *number < 1)
    return bad("\"run\" must be there, and the number or the key of a run");
  return asked_run(store.runs(), std::to_string(*number));
}

std::string shown(const json& body, const char* key) {
  const auto found = body.find(key);
  if (found == body.end()) return "nothing";
  return found->is_string() ? found->get<std::string>() : json_text(*found);
}

bool is_text(const RunSettingRow& row) {
  return std::holds_alternative<std::string RunSettings::*>(row.field);
}

/// The settings of {"settings": {"rounds": 20, …}}, by the names that `history --runs --json` has.
/// Numbers may be texts, as a form has them: these are read as the command line reads them.
Result<RunOptions> settings_in(const json& body, RunOptions options) {
  const auto settings = body.find("settings");
  if (settings == body.end() || !settings->is_object() || settings->empty())
    return bad("\"settings\" must be an object with at least one setting, such as \"rounds\"");
  const RunSettingTable rows = run_setting_table();
  options.given.clear();
  json typed = json::object();
  std::vector<std::string> words;
  for (const auto& [name, value] : settings->items()) {
    const auto& all = rows.rows();
    const auto row = std::ranges::find_if(
        all, [&name = name](const RunSettingRow& each) { return each.json_key() == name; });
    if (row == all.end() || row->flag.empty())
      return bad(fmt::format("there is no setting \"{}\"", name));
    // Those who may queue runs must not read files of the server.
    if (row->is_existing_file)
      return bad(
          fmt::format("\"{}\" names a file of the server's machine: queue such a run there, "
                      "with 'fl-server queue'",
                      name));
    options.given.insert(std::string(row->flag));
    if (value.is_string() && !is_text(*row)) {
      words.push_back(fmt::format("--{}={}", row->flag, value.get_ref<const std::string&>()));
    } else {
      typed[name] = value;
    }
  }
  const auto parsed = rows.from_json(json_text(typed));
  if (!parsed) return bad(parsed.error().message());
  options.settings = *parsed;
  FL_CHECK(read_run_settings(words, options.settings, options.given));
  if (std::string why = idle_setting(options.settings, options.given); !why.empty())
    return bad(std::move(why));
  return options;
}

Result<Invitation> invitation_in(const json& body) {
  Invitation invitation;
  FL_TRY(invitation.name, text_in(body, "client"));
  FL_TRY(invitation.role, text_in(body, "role", ""));
  if (!invitation.role.empty() && invitation.role != "trainer" && invitation.role != "evaluator")
    return bad("\"role\" must be \"trainer\" or \"evaluator\"");
  if (const auto found = body.find("expires_s"); found != body.end()) {
    const auto seconds = number_in<double>(*found);
    if (!seconds || !(*seconds > 0) || !(*seconds < 1e9))
      return bad("\"expires_s\" must be a number of seconds above 0 and below 1e9");
    invitation.expires_s = *seconds;
  }
  if (const auto found = body.find("examples_max"); found != body.end()) {
    // SQLite's integers have a sign.
    const auto examples = number_in<std::int64_t>(*found);
    if (!examples || *examples < 0)
      return bad(fmt::format("\"examples_max\" must be a whole number from 0 to {}, not {}",
                             std::numeric_limits<std::int64_t>::max(), short_json(*found)));
    invitation.examples_max = static_cast<std::uint64_t>(*examples);
  }
  return invitation;
}

std::string no_client(const json&) { return ""; }
std::string client_of(const json& body) { return shown(body, "client"); }

ControlAction queue_action(const RunOptions& options) {
  return {"queue", AdminRole::run_operator,
          [options](Store& store, const json& body, const std::string&) -> Result<json> {
            FL_TRY(const RunOptions asked, settings_in(body, options));
            FL_TRY(const RunRecord run, queue_run(store.runs(), asked));
            return json{{"run", run.id}, {"key", run.key}};
          },
          no_client,
          [](const json& body) { return "queues a run with " + shown(body, "settings"); }};
}

ControlAction drop_action() {
  return {"drop", AdminRole::run_operator,
          [](Store& store, const json& body, const std::string& by) -> Result<json> {
            FL_TRY(const RunRecord run, run_in(store, body));
            FL_TRY(const std::string done, drop_run(store, run, by));
            return json{{"run", run.id}, {"done", done}};
          },
          no_client,
          [](const json& body) { return "takes run " + shown(body, "run") + " out of the queue"; }};
}

ControlAction stop_action() {
  return {"stop", AdminRole::run_operator,
          [](Store& store, const json& body, const std::string& by) -> Result<json> {
            FL_TRY(const RunRecord run, run_in(store, body));
            FL_TRY(const std::string done, end_run(store, run, by));
            return json{{"run", run.id}, {"done", done}};
          },
          no_client, [](const json& body) { return "ends run " + shown(body, "run"); }};
}

ControlAction revoke_action() {
  return {"revoke", AdminRole::admin,
          [](Store& store, const json& body, const std::string& by) -> Result<json> {
            FL_TRY(const std::string name, text_in(body, "client"));
            FL_TRY(const std::string done, revoke_member(store, name, by));
            return json{{"done", done}};
          },
          client_of, [](const json&) { return std::string("revokes the client"); }};
}

ControlAction pardon_action() {
  return {"pardon", AdminRole::run_operator,
          [](Store& store, const json& body, const std::string&) -> Result<json> {
            FL_TRY(const std::string name, text_in(body, "client"));
            FL_TRY(const std::string done, pardon_member(store, name));
            return json{{"done", done}};
          },
          client_of, [](const json&) { return std::string("pardons the client"); }};
}

ControlAction enroll_action(const SharedOptions& options) {
  return {"enroll", AdminRole::admin,
          [options](Store& store, const json& body, const std::string&) -> Result<json> {
            FL_TRY(const Invitation invitation, invitation_in(body));
            FL_TRY(const Invited invited, invite(store.members(), options, invitation));
            return json{{"token", invited.token}, {"replaces", invited.replaces}};
          },
          client_of,
          [](const json& body) {
            const auto asked = invitation_in(body);
            if (!asked)
              return std::string("makes a join token for the client");  // invite() refuses it.
            return text_of_invitation(asked->role, asked->examples_max);
          }};
}

ControlAction add_operator_action() {
  return {"add-operator", AdminRole::admin,
          [](Store& store, const json& body, const std::string& by) -> Result<json> {
            FL_TRY(const std::string name, text_in(body, "name"));
            FL_TRY(const std::string role, text_in(body, "role"));
            FL_TRY(const std::string token, name_operator(store.operators(), name, role, by));
            return json{{"token", token}};
          },
          no_client,
          [](const json& body) {
            return fmt::format("names an operator '{}' with the role {}", shown(body, "name"),
                               shown(body, "role"));
          }};
}

ControlAction revoke_operator_action() {
  return {"revoke-operator", AdminRole::admin,
          [](Store& store, const json& body, const std::string& by) -> Result<json> {
            FL_TRY(const std::string name, text_in(body, "name"));
            FL_CHECK(store.operators().revoke(name, by));
            return json{{"name", name}};
          },
          no_client,
          [](const json& body) { return "revokes the operator " + shown(body, "name"); }};
}

bool is_good_name(std::string_view name) {
  return !name.empty() && name.size() <= limits::operator_name_bytes_max &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
             "._@-") == name.npos;
}

}  // namespace

Result<std::string> drop_run(Store& store, const RunRecord& run, std::string_view by) {
  FL_TRY(const bool dropped, store.runs().give_up(run.id, fmt::format("{} has removed it", by)));
  if (dropped) {
    store.events().note(run.id, EventLevel::notice,
                        fmt::format("{} removes the run, which had no model yet", by));
    return fmt::format("run {} is removed: it had no model yet", run.id);
  }
  FL_TRY(const auto now, store.runs().find(run.id));
  if (now && now->state == RunState::running)
    return Error(Errc::conflict, fmt::format("run {} is under way: 'fl-server end-run {}' ends it "
                                             "after the round",
                                             run.id, run.id));
  return Error(Errc::conflict, fmt::format("run {} is over", run.id));
}

Result<std::string> end_run(Store& store, const RunRecord& run, std::string_view by) {
  if (run.state == RunState::waiting) {
    auto dropped = drop_run(store, run, by);
    // A server may have made its first model in between.
    if (dropped || dropped.error().code() != Errc::conflict) return dropped;
  } else if (run.state != RunState::running) {
    return Error(Errc::conflict, fmt::format("run {} is over", run.id));
  }
  FL_CHECK(store.runs().end_early(run.id, fmt::format("{} has ended it", by)));
  store.events().note(run.id, EventLevel::notice,
                      fmt::format("{} ends the run after the round under way", by));
  return fmt::format("run {} ends after the round that is under way", run.id);
}

Result<std::string> revoke_member(Store& store, const std::string& name, std::string_view by) {
  FL_CHECK(store.members().revoke(name, by));
  FL_TRY(const auto member, store.members().find(name));
  if (!member) {
    const std::string text = fmt::format("the tokens of '{}' are void", name);
    store.events().note(0, EventLevel::info, text);
    return text + "; nobody has joined by that name";
  }
  store.events().note(0, EventLevel::info, fmt::format("'{}' was revoked", name));
  return fmt::format("'{}' is revoked: its sessions end within a second, and it cannot come back",
                     name);
}

Result<std::string> pardon_member(Store& store, const std::string& name) {
  FL_CHECK(store.members().pardon(name));
  return fmt::format(
      "'{}' is pardoned: what it missed up to now counts no more, and it is asked as "
      "before",
      name);
}

Result<std::string> name_operator(Operators& operators, const std::string& name,
                                  const std::string& role, std::string_view by) {
  if (!is_good_name(name)) {
    return bad(
        fmt::format("an operator's name has 1 to {} letters, digits and the characters . _ "
                    "@ -",
                    limits::operator_name_bytes_max));
  }
  if (!parse_admin_role(role)) return bad("the role must be viewer, operator or admin");
  std::array<std::byte, token_bytes> secret{};
  FL_CHECK(fill_random(secret));
  const std::string token = std::string(token_prefix) + to_base64url(secret);
  FL_CHECK(operators.add({name, role, operator_token_hash(token), Clock::unix_seconds(), 0}, by));
  return token;
}

std::vector<ControlAction> control_actions(const RunOptions& options) {
  return {queue_action(options), drop_action(),           stop_action(),
          pardon_action(),       revoke_action(),         enroll_action(options),
          add_operator_action(), revoke_operator_action()};
}

}  // namespace fl::server
