// SPDX-License-Identifier: Apache-2.0
// Fuzzes the messages of enrolment. The first character says which one follows: 0 a request, 1 a
// response, 2 and 3 an error response with status 403 and 503.
#include "shared/identity/enrolment.hpp"

using namespace fl;

namespace {

void check_request(std::string_view body) {
  const auto request = parse_enrolment_request(body);
  if (!request) {
    FL_ASSERT(request.error().code() == Errc::invalid_input ||
              request.error().code() == Errc::too_large);
    // The error that the peer gets quotes its own message, which may contain any bytes.
    FL_ASSERT(http_status(request.error()) < 500 && !to_json(request.error()).empty());
    return;
  }
  FL_ASSERT(request->token_id.size() == 16 && request->secret.size() == 16);
  FL_ASSERT(request->token_id.find_first_not_of("0123456789abcdef") == std::string::npos);
}

void check_response(unsigned status, std::string_view body) {
  const auto response = parse_enrolment_response(status, body);
  FL_ASSERT(!response || status == 200);
  if (response) return;
  const Errc code = response.error().code();
  const bool is_told = code == (status >= 500 ? Errc::unavailable : Errc::unauthenticated);
  FL_ASSERT(code == Errc::protocol || code == Errc::too_large || (is_told && status != 200));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: check_request(body); break;
    case 1: check_response(200, body); break;
    case 2: check_response(403, body); break;
    default: check_response(503, body); break;
  }
  return 0;
}
