// SPDX-License-Identifier: Apache-2.0
// Malicious or damaged payloads: truncated at every length, with every bit flipped, with bytes
// replaced at random. The result must be an error or finite values. After an error the settled sums
// must be unchanged.
#include "tests/codec/codec_support.hpp"

#include "kernels/generic/philox.hpp"
#include "server/sums/accumulator.hpp"
#include "tests/support/sanitized.hpp"

using namespace fl;
using namespace fl::server;
using namespace fl::testing;

namespace {

bool are_finite(std::span<const float> values) {
  return kernels().scan(values.data(), values.size()).first_bad == values.size();
}

const Layout& small_layout() {
  static const Layout layout = layout_of({{"w", {3, 100}}, {"b", {5}}});
  return layout;
}

// An accumulator with one good update of weight 2.
struct Server {
  Server() : sums(small_layout(), 1 << 20, 1), mean(small_layout().elements()) {
    restart();
    sums.mean(0, 2.0, mean);
  }
  void restart() {
    sums.reset(2, 1);  // The shared seed of the payloads here.
    SpanSource source(good);
    auto reader = PayloadReader::open(source, good.size(), small_layout()).value();
    sums.count(sums.add(reader, 2).value());
    settle();
  }
  void settle() {
    SpanSource source(good);
    auto reader = PayloadReader::open(source, good.size(), small_layout()).value();
    const auto visit = [&](const Accumulator::AddUpdate& again) {
      return again(reader, 2, nullptr);
    };
    REQUIRE(sums.settle(visit).has_value());
  }
  // Opens the payload and adds it. If either fails, checks that the mean is unchanged; else makes
  // the sums again without it. Returns whether the payload was accepted.
  bool offer(const std::vector<std::byte>& payload) {
    std::vector<float> values(small_layout().elements());
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), small_layout());
    if (reader) {
      if (reader->decode_all(values)) {
        REQUIRE(are_finite(values));
      }
      const auto into_sums = sums.add(*reader, 3);
      if (into_sums) {
        sums.count(*into_sums);
        restart();
        return true;
      }
    }
    settle();
    sums.mean(0, 2.0, values);
    REQUIRE(values == mean);
    REQUIRE(sums.total_weight() == 2);
    return false;
  }

  std::vector<std::byte> good = encode(*codec_of("none"), small_layout(), normal(305, 77));
  Accumulator sums;
  std::vector<float> mean;
};

}  // namespace

TEST_CASE("a truncated payload is refused at every length") {
  Server server;
  for (const std::string& spec : specs_to_test()) {
    const auto payload = encode(*codec_of(spec), small_layout(), normal(305, 1), 1, 256);
    for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
      CHECK_FALSE(
          server.offer({payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes)}));
    }
    auto longer = payload;
    longer.push_back(std::byte{0});
    CHECK_FALSE(server.offer(longer));
    CHECK(server.offer(payload));
  }
}

TEST_CASE("a flipped bit gives an error or finite values, and in the header always an error") {
  Server server;
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    auto payload = encode(*codec_of(spec), small_layout(), normal(305, 1), 1, 256);
    constexpr std::size_t table = payload_header_bytes;
    // Flip every bit of the header and of the first block's begin, and every fifth of the rest.
    const std::size_t all_of = 8 * (table + 3 * sizeof(std::uint32_t) + 32);
    constexpr std::size_t in_head = test::or_sanitized(1, 3), in_rest = test::or_sanitized(5, 17);
    for (std::size_t bit = 0; bit < payload.size() * 8; bit += bit < all_of ? in_head : in_rest) {
      const auto mask = static_cast<std::byte>(1 << bit % 8);
      payload[bit / 8] ^= mask;
      const bool taken = server.offer(payload);
      payload[bit / 8] ^= mask;
      // A larger block size is valid for sparse blocks, runs and low-rank blocks, if the number of
      // blocks is the same.
      const bool in_block_elements = bit / 8 >= 4 && bit / 8 < 8;
      const bool is_low_rank = spec.starts_with("powersgd") || spec.starts_with("gradzip");
      const bool has_runs = spec.starts_with("ecuq:0.");
      const bool selects = spec.find("dense_below") != std::string::npos;
      if (in_block_elements && (is_low_rank || has_runs || selects)) continue;
      if (bit / 8 < table + 3 * sizeof(std::uint32_t)) CHECK_FALSE(taken);
    }
  }
}

TEST_CASE("20,000 payloads with random bytes replaced give an error or finite values") {
  Server server;
  std::vector<std::vector<std::byte>> payloads;
  for (const std::string& spec : specs_to_test()) {
    payloads.push_back(encode(*codec_of(spec), small_layout(), normal(305, 1), 1, 256));
  }
  int refused = 0;
  for (std::uint64_t round = 0; round < 20'000; ++round) {
    auto payload = payloads[round % payloads.size()];
    const std::uint32_t changes = philox::block_at(2, 3, round).word[0] % 4 + 1;
    for (std::uint32_t i = 0; i < changes; ++i) {
      const philox::Block change = philox::block_at(2, 4 + i, round);
      // Half of the changes hit the first hundred bytes, which hold sizes and settings.
      const std::size_t reach = change.word[2] % 2 == 0 ? payload.size() : 100;
      std::byte& target = payload[change.word[0] % std::min(reach, payload.size())];
      target = static_cast<std::byte>(change.word[1]);
    }
    if (!server.offer(payload)) ++refused;
  }
  CHECK(refused > 5'000);
}

TEST_CASE("damaged levels in classes are mostly refused, and always decode to finite values") {
  const Layout layout = layout_of({{"w", {10'000}}});
  std::vector<float> values(layout.elements());
  const auto is_taken = [&](const std::vector<std::byte>& payload) {
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout);
    if (!reader || !reader->decode_all(values)) return false;
    REQUIRE(are_finite(values));
    return true;
  };
  constexpr std::size_t step = test::or_sanitized(1, 3);
  const auto count_taken = [&](std::vector<std::byte> payload) {
    REQUIRE(is_taken(payload));
    for (std::size_t bytes = 0; bytes < payload.size(); bytes += step) {
      CHECK_FALSE(
          is_taken({payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes)}));
    }
    std::size_t taken = 0;
    for (std::size_t bit = 0; bit < payload.size() * 8; bit += step) {
      const auto mask = static_cast<std::byte>(1 << bit % 8);
      payload[bit / 8] ^= mask;
      if (is_taken(payload)) ++taken;
      payload[bit / 8] ^= mask;
    }
    return taken;
  };
  // Accepted are most flips in the step, and a few in the stream's last words.
  CHECK(count_taken(encode(*codec_of("ecuq:1"), layout, normal(10'000, 1))) < 100 / step);
  // Runs have no check: a flipped bit means another level, or a level elsewhere.
  CHECK(count_taken(encode(*codec_of("ecuq:0.1"), layout, normal(10'000, 1))) > 100 / step);
}

TEST_CASE("a payload of another layout is a conflict, and the error names both layouts") {
  const Layout other = layout_of({{"w", {3, 100}}, {"c", {5}}});
  const auto payload = encode(*codec_of("none"), other, normal(305, 1));
  SpanSource source(payload);
  const auto reader = PayloadReader::open(source, payload.size(), small_layout());
  REQUIRE_FALSE(reader.has_value());
  CHECK(reader.error().code() == Errc::conflict);
  CHECK(reader.error().message().find(other.digest().hex().substr(0, 16)) != std::string::npos);
  CHECK(reader.error().message().find(small_layout().digest().hex().substr(0, 16)) !=
        std::string::npos);
}

TEST_CASE("errors inside a block name the block and the tensor") {
  auto payload = encode(*codec_of("qsgd:1"), small_layout(), normal(305, 1), 1, 256);
  const std::size_t first_block = payload_header_bytes + 3 * sizeof(std::uint32_t);
  payload[first_block] = std::byte{77};
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), small_layout()).value();
  std::vector<float> values(256);
  const auto decoded = reader.decode(0, values);
  REQUIRE_FALSE(decoded.has_value());
  CHECK(decoded.error().message() == "payload: block 0 (w[0..255]): block format 77 is not known");
}

TEST_CASE("scales that go on behind their block's end are refused before they are read") {
  // qsgd in both forms. Each of 200 buckets has its scale before the codes.
  std::vector<float> out(200);
  DecodeScratch scratch;
  for (const BlockFormat format : {BlockFormat{2}, BlockFormat{3}}) {
    std::vector<std::byte> block(2000);
    block[0] = static_cast<std::byte>(format);
    store(MutableBytes(block), 1, std::uint16_t{1});  // Levels; then the size of a bucket less 1.
    const std::size_t codes_at = 1 + 2 + 2 + 200 * sizeof(float);
    for (std::size_t bytes = 5; bytes < codes_at; ++bytes) {
      const auto decoded = decode_block(Bytes(block).first(bytes), out, scratch);
      REQUIRE(decoded.has_error());
      REQUIRE(decoded.error().message() == "qsgd scales are cut off");
    }
  }
}

TEST_CASE("a block that is larger than any format needs is refused before it is read") {
  const Layout layout = layout_of({{"w", {256}}});
  const auto open = [&](std::uint32_t size) {
    const std::array block_sizes = {size};
    auto payload = payload_prefix(BlockMap(layout, 256), block_sizes);
    payload.resize(payload.size() + size);
    SpanSource source(payload);
    const auto reader = PayloadReader::open(source, payload.size(), layout);
    return reader ? std::string("opened") : reader.error().message();
  };
  // As much as bare values, or a right factor as large as the tensor beside coded ones.
  CHECK(open(256 * sizeof(float)) == "opened");
  for (const std::uint32_t size : {256u * 100, 256u * 1000, 1u << 24}) {
    CAPTURE(size);
    CHECK(open(size).find("more than any block format needs") != std::string::npos);
  }
}
