// SPDX-License-Identifier: Apache-2.0
// Declarations of Gloo's classes that c10d's ProcessGroupGloo.hpp needs. The torch wheel has Gloo
// in libtorch_cpu.so, but not Gloo's headers, and installed headers are of another version. So this
// program neither constructs these classes nor calls them: c10d does both inside libtorch. The
// order of virtual functions below does not matter.
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
