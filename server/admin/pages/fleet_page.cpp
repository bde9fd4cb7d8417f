// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/fleet_page.hpp"

#include "server/admin/pages/json_values.hpp"
#include "server/admin/pages/live_view.hpp"
#include "server/history/client_figures.hpp"

#include <cmath>

namespace fl::server {

namespace {

std::string_view next_step_of(WaitsFor waits_for) {
  switch (waits_for) {
    case WaitsFor::its_data: return "gets ready";
    case WaitsFor::a_run: return "waits for a run";
    case WaitsFor::another_run: return "waits for another run";
  }
  return "";
}

}  // namespace

std::string_view next_step(const ClientRecord& client, const MemberStatus& member) {
  if (client.revoked_at != 0) return "nothing: it was revoked";
  switch (member.activity) {
    case Activity::away: return member.is_awaited ? "is expected back" : "must connect";
    case Activity::present: return next_step_of(member.waits_for);
    case Activity::idle:
      return client.evaluator ? "measures the next version" : "waits to be asked";
    case Activity::paused: return "is asked again after its pause";
    case Activity::downloading: return client.evaluator ? "measures the model" : "trains the model";
    case Activity::training: return "sends its update";
    case Activity::uploading: return "has its update checked";
    case Activity::interrupted: return "must go on with its upload";
    case Activity::checking: return "gets its verdict";
    case Activity::waiting: return "counts in the next round";
    case Activity::accepted: return "waits for the next round";
    case Activity::failed: return "waits to be asked again";
  }
  return "";
}

std::string fleet_text(const FleetRecords& records, const std::vector<MemberStatus>& members,
                       double now, bool show_clients) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < records.clients.size(); ++i) {
    const ClientRecord& client = records.clients[i];
    const MemberStatus& member = members[i];
    const auto found = records.uploads.find(client.name);
    const NewestUpload* const upload = found != records.uploads.end() ? &found->second : nullptr;
    const std::uint64_t examples =
        member.examples == 0 && upload != nullptr ? upload->examples : member.examples;
    const bool is_away = member.activity == Activity::away;
    const HelloFacts said = member.said.value_or(HelloFacts());
    rows.push_back(
        {{"name", client.name},
         {"role", client.evaluator ? "evaluator" : "trainer"},
         {"state", client.revoked_at != 0 ? "revoked" : to_text(member.activity)},
         {"next", next_step(client, member)},
         {"software", said.software},
         {"model", member.said ? nlohmann::json(said.model) : nlohmann::json()},
         {"data", said.data},
         {"enrolled_at", moment(client.enrolled_at)},
         {"last_seen_at", moment(is_away ? client.last_seen_at : now)},
         {"revoked_at", moment(client.revoked_at)},
         {"certificate_ends_at", moment(member.certificate_ends_at)},
         {"bytes_up", member.bytes_up},
         {"bytes_down", member.bytes_down},
         {"upload_bytes_per_s",
          upload != nullptr ? nlohmann::json(std::round(upload->bytes_per_s)) : nlohmann::json()},
         {"round", member.round == 0 ? nlohmann::json() : nlohmann::json(member.round)},
         {"task_seconds", member.task_s ? nlohmann::json(*member.task_s) : nlohmann::json()},
         {"due_at", moment_in(member.due_s, now)},
         {"paused_until", moment_in(member.pause_s, now)},
         {"misses", member.misses},
         {"trouble", show_clients ? member.trouble : without_figures(member.trouble)},
         {"trouble_at", moment(member.trouble_at)}});
    if (show_clients)
      rows.back()["examples"] = examples == 0 ? nlohmann::json() : nlohmann::json(examples);
  }
  nlohmann::json page{{"members", std::move(rows)}, {"total", records.total}, {"next", nullptr}};
  if (records.has_more) page["next"] = records.clients.back().name;
  return json_text(page);
}

}  // namespace fl::server
