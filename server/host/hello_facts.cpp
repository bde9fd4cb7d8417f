// SPDX-License-Identifier: Apache-2.0
#include "server/host/hello_facts.hpp"

#include "shared/base/io/digest.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

namespace fl::server {

HelloFacts read_facts(const wire::Hello& hello) {
  HelloFacts facts;
  facts.evaluator = hello.evaluator();
  facts.software = printable(hello.software(), limits::software_bytes_max);
  facts.model = printable(hello.model(), limits::run_model_bytes_max);
  facts.data = printable(hello.data(), limits::data_shape_bytes_max);
  if (const auto tensors = Digest::from_bytes(hello.tensors())) facts.tensors = tensors->hex();
  return facts;
}

}  // namespace fl::server
