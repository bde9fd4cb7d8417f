// SPDX-License-Identifier: Apache-2.0
// Fuzzes the JSON messages of programs that run beside a client: trainer programs, and the ranks of
// a site. The first byte says which message the rest is.
#include "client/learn/process/trainer_messages.hpp"
#include "client/site/doctor.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/json.hpp"

#include <vector>

using namespace fl;
using namespace fl::site;

namespace {

constexpr std::uint64_t examples = 100;  // The examples of the client that the answers are for.

void check_hello(const nlohmann::json& message) {
  const auto hello = parse_hello(message);
  if (!hello) {
    const Errc why = hello.error().code();  // too_large: a limit of Layout.
    FL_ASSERT(why == Errc::invalid_input || why == Errc::too_large);
    return;
  }
  FL_ASSERT(hello->types.size() == hello->files.tensors().size());
  FL_ASSERT(hello->layout.elements() > 0);
}

void check_train_answer(const nlohmann::json& message) {
  const auto answer = parse_train_answer(message, examples);
  if (!answer) return;
  FL_ASSERT(answer->report.examples <= examples);
}

void check_eval_answer(const nlohmann::json& message) {
  static const std::vector<MetricKind> metrics{known_metric("accuracy")};
  [[maybe_unused]] const auto report = parse_eval_answer(message, examples, metrics);
}

template <class Parse>
void check_any(Parse parse) {
  if (const auto value = parse(); !value) FL_ASSERT(!value.error().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const nlohmann::json message = parse_json(text);
  if (!message.is_discarded()) {
    // The text that is written back has an equal value, and no deeper nesting than was allowed.
    FL_ASSERT(!parse_json(json_text(message)).is_discarded());
  }
  switch (data[0] % 8) {
    case 0: check_hello(message); break;
    case 1: check_any([&] { return parse_client_answer(message); }); break;
    case 2: check_train_answer(message); break;
    case 3: check_eval_answer(message); break;
    case 4: check_any([&] { return parse_rank_hello(message, 4); }); break;
    case 5: check_any([&] { return parse_facts(message); }); break;
    case 6: check_any([&] { return parse_measured(message); }); break;
    default: check_any([&] { return parse_spans(message); }); break;
  }
  return 0;
}
