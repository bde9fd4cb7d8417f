// SPDX-License-Identifier: Apache-2.0
// What c10d's ProcessGroupGloo.hpp needs of Gloo's headers, which the torch wheel lacks though its
// libtorch_cpu.so holds Gloo. Installed Gloo headers are of another version than that library, so
// we never construct anything of these classes, and call nothing of them: c10d does both inside of
// libtorch. The order of virtual functions below is therefore of no importance.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace transport

}  // namespace gloo
