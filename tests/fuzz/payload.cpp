// A whole payload, of the layout that the golden ones have (tests/codec/golden_test.cpp).
#include "shared/codec/payload.hpp"

#include "tests/fuzz/rows.hpp"

using namespace fl;

namespace {

const Layout& golden_layout() {
  static const Layout layout =
      Layout::make({{"layer.weight", {10, 30}}, {"layer.bias", {10}}, {"gain", {}}}).value();
  return layout;
}

Result<void> decode(Bytes payload, std::span<float> out) {
  SpanSource source(payload);
  FL_TRY(PayloadReader reader, PayloadReader::open(source, payload.size(), golden_layout()));
  return reader.decode_all(out);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes payload = std::as_bytes(std::span(data, size));
  const auto values =
      fuzz::decode_with_all_rows(golden_layout().elements(), [&](std::span<float> out) {
        auto decoded = decode(payload, out);
        FL_ASSERT(decoded || decoded.error().code() == Errc::corrupt ||
                  decoded.error().code() == Errc::conflict);
        return decoded;
      });
  if (values) FL_ASSERT(std::ranges::all_of(*values, [](float v) { return std::isfinite(v); }));
  return 0;
}
