// SPDX-License-Identifier: Apache-2.0
// The hooks' own loops: each gives the bits of the operations of libtorch that it replaces, around
// every boundary of its pieces. Payloads are added up the same in slices of any size.
#include "client/site/rank/hooks/loops.hpp"
#include "client/site/rank/hooks/payload_sums.hpp"
#include "client/site/rank/hooks/sign_bits.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

namespace fl::test {

using namespace fl::codec;
using namespace fl::site;
namespace {

constexpr std::int64_t lengths[] = {0, 1, 7, 8, 9, 63, 511, 4095, 4096, 4097, 12'345};

/// Values of all sizes, which differ from each other.
torch::Tensor random_values(std::int64_t count, std::uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const torch::Tensor sizes = torch::randn({count}, generator).mul_(3).exp_();
  return torch::randn({count}, at::detail::createCPUGenerator(seed + 1)).mul_(sizes);
}

std::span<float> span_of(torch::Tensor& values) {
  return {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())};
}

}  // namespace

TEST_CASE("values that are not finite are found wherever they are") {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  constexpr float largest = std::numeric_limits<float>::max();
  for (const std::int64_t n : lengths) {
    CAPTURE(n);
    torch::Tensor a = random_values(n, 1);
    torch::Tensor b = random_values(n, 2);
    CHECK(sums_are_finite(span_of(a), span_of(b)));
    for (const std::int64_t place : {std::int64_t{0}, n / 2, n - 1}) {
      if (n == 0) break;
      for (const auto& [x, y] : {std::pair(infinite, 0.0F),
                                 {1.0F, std::nanf("")},
                                 {-largest, -largest},
                                 {infinite, -infinite}}) {
        torch::Tensor worse_a = a.clone();
        torch::Tensor worse_b = b.clone();
        worse_a[place] = x;
        worse_b[place] = y;
        CHECK_FALSE(sums_are_finite(span_of(worse_a), span_of(worse_b)));
      }
      for (const auto& [type, exponent] :
           {std::pair(torch::kFloat16, 0x7c00), {torch::kBFloat16, 0x7f80}}) {
        for (const float bad : {infinite, -infinite, std::nanf("")}) {
          torch::Tensor half = a.clamp(-100, 100).to(type);
          const auto is_finite = [&] {
            return none_has_exponent(
                {static_cast<const std::uint16_t*>(half.data_ptr()), static_cast<std::size_t>(n)},
                static_cast<std::uint16_t>(exponent));
          };
          CHECK(is_finite());
          half[place] = bad;
          CHECK_FALSE(is_finite());
        }
      }
    }
  }
}

TEST_CASE("the largest values are those of libtorch's topk, and of equal ones the first") {
  for (const std::int64_t n : {1, 9, 4096, 4097, 200'003}) {
    for (const std::int64_t k : {std::int64_t{1}, n / 100, n / 2, n}) {
      CAPTURE(n);
      CAPTURE(k);
      torch::Tensor values = random_values(n, 3);
      torch::Tensor found = torch::full({k}, -1, torch::kInt32);
      find_largest_values(span_of(values),
                          {found.data_ptr<std::int32_t>(), static_cast<std::size_t>(k)});
      const torch::Tensor expected = std::get<1>(values.abs().topk(k));
      CHECK(found.equal(std::get<0>(expected.sort()).to(torch::kInt32)));
    }
  }
  torch::Tensor equal = torch::tensor({1.0F, -2.0F, 2.0F, 1.0F, -2.0F});
  torch::Tensor two = torch::empty({2}, torch::kInt32);
  find_largest_values(span_of(equal), {two.data_ptr<std::int32_t>(), 2});
  CHECK(two.equal(torch::tensor({1, 2}, torch::kInt32)));
}

TEST_CASE("codes of 8 bits and their mean have the bits of libtorch's operations") {
  for (const std::int64_t n : lengths) {
    for (const float shift : {0.0F, 1e4F, -1e4F}) {  // Also with all values of one sign.
      CAPTURE(n);
      CAPTURE(shift);
      std::vector<torch::Tensor> codes;
      std::vector<CodedRow> rows;
      torch::Tensor expected = torch::zeros({n});
      for (const std::uint64_t rank : {1, 2, 3}) {
        torch::Tensor values = random_values(n, 10 * rank).add_(shift);
        const CodeRange range = code_range_of(span_of(values));
        codes.push_back(torch::empty({n}, torch::kUInt8));
        to_codes(span_of(values), range, codes.back().data_ptr<std::uint8_t>());
        rows.push_back({.codes = codes.back().data_ptr<std::uint8_t>(), .range = range});
        if (n == 0) continue;
        const torch::Tensor least = values.amin().clamp_max(0);
        const torch::Tensor scale = ((values.amax().clamp_min(0) - least) / 255.0)
                                        .clamp_min(std::numeric_limits<float>::epsilon());
        const torch::Tensor zero = torch::clamp(-torch::round(least / scale), 0, 255);
        CHECK(scale.item<float>() == range.scale);
        CHECK(zero.item<float>() == range.zero);
        const torch::Tensor code = torch::clamp(torch::round(values / scale) + zero, 0, 255);
        CHECK(codes.back().equal(code.to(torch::kUInt8)));
        expected += scale * (code - zero);
      }
      torch::Tensor mean = random_values(n, 4);
      mean_of_codes(rows, span_of(mean));
      CHECK(mean.equal(expected / 3));
    }
  }
}

TEST_CASE("signs go into bits and come back as the mean of the ranks") {
  for (const std::int64_t n : lengths) {
    CAPTURE(n);
    std::vector<torch::Tensor> bits;
    std::vector<torch::Tensor> scales;
    torch::Tensor expected = torch::zeros({n});
    for (const std::uint64_t rank : {1, 2, 3}) {
      torch::Tensor values = random_values(n, 10 * rank);
      if (n > 3) values[3] = -0.0F;
      const SignCode code = sign_code_of(values);
      CHECK(code.bits.numel() == (n + 7) / 8);
      const double scale = n == 0 ? 0 : values.to(torch::kFloat64).abs().mean().item<double>();
      CHECK(code.scale.item<float>() == doctest::Approx(scale).epsilon(1e-6));
      const torch::Tensor signs = torch::where(values.ge(0), 1.0F, -1.0F).mul_(code.scale);
      expected += signs;
      const torch::Tensor left = values.clone();
      subtract_sign_code(code, left);
      CHECK(left.equal(values - signs));
      bits.push_back(code.bits);
      scales.push_back(code.scale);
    }
    const torch::Tensor mean = random_values(n, 4);
    mean_of_sign_codes(torch::stack(bits), torch::cat(scales), mean);
    CHECK(mean.equal(expected / 3));
  }
}

TEST_CASE("payloads are added up in the order of the ranks, in slices of any size") {
  const Layout layout = Layout::make({{.name = "a", .shape = {300, 500}},
                                      {.name = "b", .shape = {3}},
                                      {.name = "c", .shape = {40, 50}}})
                            .value();
  const auto elements = static_cast<std::int64_t>(layout.elements());
  for (const std::string spec :
       {"none", "qsgd:7", "topk:0.1+qsgd:4", "powersgd:2", "gradzip:2", "ecuq:2", "lossless"}) {
    const auto codec = parse_codec(spec).value();
    for (const int size : {1, 2, 4}) {
      std::vector<std::vector<std::byte>> payloads(static_cast<std::size_t>(size));
      torch::Tensor expected = torch::zeros({elements});
      std::vector<torch::Tensor> decoded;
      for (int rank = 0; rank < size; ++rank) {
        auto& payload = payloads[static_cast<std::size_t>(rank)];
        VectorSink sink(payload);
        // Payloads of unlike lengths, so that slices of one run ahead.
        torch::Tensor values = random_values(elements, 20 + static_cast<std::uint64_t>(rank));
        if (rank == 1) values.fill_(1);
        REQUIRE(codec->encode(layout, span_of(values), {1, 2}, sink).has_value());
        SpanSource source(payload);
        auto reader = PayloadReader::open(source, payload.size(), layout).value();
        torch::Tensor one = torch::empty({elements});
        REQUIRE(reader.decode_all(span_of(one)).has_value());
        expected += one;
        decoded.push_back(one);
      }
      std::vector<std::int64_t> bytes;
      for (const auto& payload : payloads)
        bytes.push_back(static_cast<std::int64_t>(payload.size()));
      for (const std::size_t slice : {std::size_t{100}, std::size_t{5000}, std::size_t{1} << 20}) {
        CAPTURE(spec);
        CAPTURE(size);
        CAPTURE(slice);
        std::atomic<int> right = 0;
        on_ranks(size, [&](Ranks& ranks) {
          const auto me = static_cast<std::size_t>(ranks.rank());
          torch::Tensor sum = torch::zeros({elements});
          torch::Tensor own = torch::zeros({elements});
          Lanes lanes(1 + ranks.rank(), 4);  // Ranks may have unlike threads.
          add_payloads(payloads[me], bytes, codec->payload_bytes_max(layout), layout, span_of(sum),
                       ranks, lanes, slice, [&](const Block& block, std::span<const float> values) {
                         std::ranges::copy(values, own.data_ptr<float>() + block.flat);
                       });
          right += sum.equal(expected);
          right += own.equal(decoded[me]);
        });
        CHECK(right == 2 * size);
      }
    }
  }
}

TEST_CASE(
    "a damaged payload is a failure that names the rank, as soon as its first slice is there") {
  const Layout layout = Layout::make({{.name = "a", .shape = {3000}}}).value();
  torch::Tensor values = random_values(3000, 1);
  std::vector<std::byte> payload;
  VectorSink sink(payload);
  const auto codec = parse_codec("none").value();
  REQUIRE(codec->encode(layout, span_of(values), {1, 2}, sink).has_value());
  const auto bytes = static_cast<std::int64_t>(payload.size());
  std::atomic<int> failed = 0;
  std::atomic<std::uint64_t> sent = 0;
  on_ranks(2, [&](Ranks& ranks) {
    std::vector<std::byte> mine = payload;
    if (ranks.rank() == 1) mine[0] = std::byte{0};
    torch::Tensor sum = torch::zeros({3000});
    const std::uint64_t before = ranks.bytes_sent();
    Lanes lanes(2, 2);
    try {
      add_payloads(mine, std::vector{bytes, bytes}, codec->payload_bytes_max(layout), layout,
                   span_of(sum), ranks, lanes, 1000);
    } catch (const RankFailure& failure) {
      failed += failure.rank() == 1;
    }
    sent += ranks.bytes_sent() - before;
  });
  CHECK(failed == 2);
  CHECK(sent <= 2 * 1000);
}

TEST_CASE(
    "a length that no payload can have is a failure that names the rank, and nothing is sent") {
  const Layout layout = Layout::make({{.name = "a", .shape = {3000}}}).value();
  const auto bytes_max =
      static_cast<std::int64_t>(parse_codec("none").value()->payload_bytes_max(layout));
  for (const std::int64_t told : {std::int64_t{-2}, bytes_max + 1, INT64_MAX}) {
    CAPTURE(told);
    std::atomic<int> failed = 0;
    std::atomic<std::uint64_t> sent = 0;
    on_ranks(2, [&](Ranks& ranks) {
      torch::Tensor sum = torch::zeros({3000});
      const std::uint64_t before = ranks.bytes_sent();
      Lanes lanes(1, 1);
      try {
        add_payloads({}, std::vector{std::int64_t{0}, told}, static_cast<std::uint64_t>(bytes_max),
                     layout, span_of(sum), ranks, lanes, 1000);
      } catch (const RankFailure& failure) {
        failed += failure.rank() == 1;
      }
      sent += ranks.bytes_sent() - before;
    });
    CHECK(failed == 2);
    CHECK(sent == 0);
  }
}

}  // namespace fl::test
