// SPDX-License-Identifier: Apache-2.0
// A session that keeps what it is told, for the tests of the engine's parts.
#pragma once

#include "server/host/peer.hpp"

#include <memory>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;

class FakePeer final : public Peer {
 public:
  explicit FakePeer(std::string name, bool is_evaluator = false) {
    facts_.name = std::move(name);
    facts_.evaluator = is_evaluator;
    facts_.train_examples = is_evaluator ? 0 : 100;
  }
  const Facts& facts() const override { return facts_; }
  void post(wire::Header header) override { posted.push_back(std::move(header)); }
  void dismiss(wire::Bye::Cause cause, const std::string&) override { byes.push_back(cause); }
  std::uint64_t bytes_up() const override { return up; }
  std::uint64_t bytes_down() const override { return down; }

  Facts& editable_facts() { return facts_; }
  std::vector<wire::Header> posted;
  std::vector<wire::Bye::Cause> byes;
  std::uint64_t up = 0;
  std::uint64_t down = 0;

 private:
  Facts facts_;
};

inline std::shared_ptr<FakePeer> trainer(const std::string& name) {
  return std::make_shared<FakePeer>(name);
}
inline std::shared_ptr<FakePeer> evaluator(const std::string& name) {
  return std::make_shared<FakePeer>(name, true);
}

}  // namespace fl::test
