// SPDX-License-Identifier: Apache-2.0
// Declarations of Gloo's classes that c10d's ProcessGroupGloo.hpp needs. The torch wheel has Gloo
// in libtorch_cpu.so, but not Gloo's headers, and installed headers are of another version. So this
// program does not construct these classes, and calls no virtual function of them, whose order
// below does not matter: c10d does so inside libtorch. A linker finds the functions that it calls
// by their names, which do not tell what they return: rank_abort_test.cpp calls them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

namespace transport {
class Pair {
 public:
  virtual ~Pair();
};
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  /// Null for this rank itself.
  std::unique_ptr<transport::Pair>& getPair(int rank);
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

namespace tcp {
class Pair : public transport::Pair {
 public:
  /// Closes the connection; whoever waits for it gets an exception with this text, which is
  /// returned too. Any thread.
  std::exception_ptr signalExceptionExternal(const std::string& text);
};
}  // namespace tcp
}  // namespace transport

}  // namespace gloo
