// Which updates a client has saved, told by the manifests that it puts on its disk.
#include "tests/support/sim.hpp"

#include <nlohmann/json.hpp>

namespace fl::test {

namespace {

/// The round of the update that a manifest says is waiting to be delivered.
std::optional<Round> pending_round(MemFiles& disk) {
  const auto json = nlohmann::json::parse(peek(disk, "/state/client.json"), nullptr, false);
  if (!json.is_object() || !json.contains("pending")) return std::nullopt;
  const auto raw = json.at("pending").at("begin").get<std::vector<std::uint8_t>>();
  wire::Begin begin;
  if (!begin.ParseFromArray(raw.data(), static_cast<int>(raw.size())) ||
      begin.purpose() != wire::UPDATE)
    return std::nullopt;
  return begin.round();
}

}  // namespace

void World::watch_manifest(Client& client, const std::filesystem::path& path) {
  if (path.filename() != "client.json") return;
  const auto round = pending_round(client.disk);
  client.unsure.reset();
  if (round && client.saved.insert(*round).second) client.unsure = round;
}

/// After a death: the manifest that was put in place last may have been taken back.
void World::settle_manifest(Client& client) {
  if (client.unsure && pending_round(client.disk) != client.unsure)
    client.saved.erase(*client.unsure);
  client.unsure.reset();
}

}  // namespace fl::test
