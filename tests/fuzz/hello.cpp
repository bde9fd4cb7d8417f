// SPDX-License-Identifier: Apache-2.0
// Fuzzes the first bytes of a connection: what is whole, or can't become a ClientHello, stays so
// when more bytes come.
#include "server/net/client_hello.hpp"
#include "shared/base/error.hpp"

using namespace fl;
using namespace fl::server;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes all = std::as_bytes(std::span(data, size));
  HelloStage before = HelloStage::partial;
  const std::size_t step = 1 + size / 64;
  for (std::size_t end = 0; end < size; end += step) {
    const HelloStage now = look_at_hello(all.first(end));
    FL_ASSERT(before == HelloStage::partial || now == before);
    before = now;
  }
  FL_ASSERT(before == HelloStage::partial || look_at_hello(all) == before);
  return 0;
}
