// SPDX-License-Identifier: Apache-2.0
// Tracks which updates a client has saved: reads each manifest that the client writes to its disk.
#include "tests/world/world.hpp"

#include "shared/base/json.hpp"

namespace fl::test {

namespace {

/// The update that the manifest names as pending, if any.
std::optional<wire::UploadBegin> pending_update(MemFiles& disk) {
  const auto json = parse_json(peek(disk, "/state/client.json"));
  if (!json.is_object() || !json.contains("pending")) return std::nullopt;
  const auto raw = json.at("pending").at("begin").get<std::vector<std::uint8_t>>();
  wire::UploadBegin begin;
  if (!begin.ParseFromArray(raw.data(), static_cast<int>(raw.size()))) return std::nullopt;
  return begin;
}

}  // namespace

void World::watch_manifest(Client& client, const std::filesystem::path& path) {
  if (path.filename() != "client.json") return;
  const auto begin = pending_update(client.disk);
  client.unsure.reset();
  if (begin && client.saved.emplace(begin->task(), begin->round()).second)
    client.unsure = begin->task();
}

/// Call after a client died: a power loss may have undone its last manifest.
void World::settle_manifest(Client& client) {
  const auto begin = pending_update(client.disk);
  if (client.unsure && !(begin && begin->task() == *client.unsure))
    client.saved.erase(*client.unsure);
  client.unsure.reset();
}

}  // namespace fl::test
