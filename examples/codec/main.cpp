// SPDX-License-Identifier: Apache-2.0
// The codecs alone, as a library: a vector becomes bytes and comes back, twice with error feedback.
//
//   codec-example [SPEC]          such as ecuq:2+ef, or one of `fl-server codecs`
//
// In a CMake project of your own, with Tributary installed (see CMakeLists.txt beside this file):
//
//   find_package(Tributary REQUIRED)
//   target_link_libraries(my-program PRIVATE Tributary::codec)
//
// or, with its source in your tree, add_subdirectory(tributary EXCLUDE_FROM_ALL) instead of the
// first line.
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

fl::Result<void> show(const std::string& spec) {
  // Both ends know the tensors, in the order in which their values lie in one flat vector.
  FL_TRY(const fl::Layout layout,
         fl::Layout::make({{"layer.weight", {1000, 1000}}, {"layer.bias", {1000}}}));
  FL_TRY(const auto codec, fl::codec::parse_codec(spec));

  std::vector<float> residual(layout.elements());
  fl::codec::CodecState state;  // Holds what some codecs learn from one vector for the next.
  for (std::uint64_t round = 1; round <= 2; ++round) {
    std::vector<float> update(layout.elements());
    for (std::size_t i = 0; i < update.size(); ++i)
      update[i] = std::sin(static_cast<float>(i * round));
    if (codec->error_feedback()) fl::codec::add_residual(update, residual, codec->residual_kept());

    // The sender. The same vector and seed give the same bytes on every machine.
    std::vector<std::byte> payload;
    fl::codec::VectorSink sink(payload);
    FL_TRY(const std::uint64_t bytes,
           codec->encode(layout, update, round, sink, fl::codec::block_elements_of_codec, &state));

    // The receiver, which needs no codec: a payload says how to decode it, and may be hostile.
    fl::codec::SpanSource source(payload);
    FL_TRY(auto reader, fl::codec::PayloadReader::open(source, bytes, layout));
    std::vector<float> received(layout.elements());
    FL_CHECK(reader.decode_all(received));

    // With error feedback the residual of this update is part of the next one.
    FL_TRY(const fl::codec::CodingError error,
           codec->error_feedback() ? fl::codec::keep_residual(update, reader, residual)
                                   : fl::codec::coding_error(update, reader));
    std::printf("round %d: %s, %llu bytes, %.3f bits a value, a mean error of %.4f\n",
                static_cast<int>(round), codec->canonical().c_str(),
                static_cast<unsigned long long>(bytes),
                8 * static_cast<double>(bytes) / static_cast<double>(layout.elements()),
                std::sqrt(error.lost / static_cast<double>(layout.elements())));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto shown = show(argc > 1 ? argv[1] : "ecuq:2+ef");
  if (shown) return 0;
  std::fprintf(stderr, "%s\n", shown.error().message().c_str());
  return 1;
}
