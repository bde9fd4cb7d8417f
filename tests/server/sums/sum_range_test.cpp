// SPDX-License-Identifier: Apache-2.0
// How exact the mean of a round is, against exact integers, and that its bits depend on nothing but
// the updates that count.
#include "server/sums/sum_range.hpp"

#include "server/sums/accumulator.hpp"
#include "tests/codec/codec_support.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

using namespace fl;
using namespace fl::server;
using namespace fl::testing;

namespace {

/// An integer of 512 bits in two's complement, in multiples of 2^-149: any sum of floats with
/// weights that sum to at most 2^63.
class ExactInteger {
 public:
  void add(float value, std::uint64_t weight) {
    if (value == 0) return;
    int exponent = 0;
    const double mantissa = std::ldexp(std::frexp(std::fabs(double{value}), &exponent), 24);
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = Wide{static_cast<std::uint64_t>(mantissa)} * weight;
    const auto shift = static_cast<unsigned>(exponent - 24 + 149);
    std::array<std::uint64_t, words> term{};
    for (unsigned bit = 0; bit < 128; ++bit) {
      if ((product >> bit & 1) != 0) term[(bit + shift) / 64] |= 1ull << (bit + shift) % 64;
    }
    if (value < 0) negate(term);
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t sum = words_[i] + term[i];
      const std::uint64_t with_carry = sum + carry;
      carry = (sum < term[i] ? 1u : 0u) + (with_carry < sum ? 1u : 0u);
      words_[i] = with_carry;
    }
  }

  /// Rounded to a long double.
  [[nodiscard]] long double value() const {
    auto magnitude = words_;
    const bool is_negative = magnitude.back() >> 63 != 0;
    if (is_negative) negate(magnitude);
    long double out = 0;
    for (std::size_t i = words; i-- > 0;) out = out * 0x1p64L + magnitude[i];
    return std::ldexp(is_negative ? -out : out, -149);
  }

 private:
  static constexpr std::size_t words = 8;

  static void negate(std::array<std::uint64_t, words>& number) {
    std::uint64_t carry = 1;
    for (auto& word : number) {
      word = ~word + carry;
      carry = carry != 0 && word == 0 ? 1 : 0;
    }
  }

  std::array<std::uint64_t, words> words_{};
};

struct Member {
  std::vector<float> values;
  std::uint64_t weight;
};

/// The mean by an accumulator that expects `expected` and adds in the given order.
std::vector<float> mean_of(const Layout& layout, const std::vector<Member>& members,
                           std::uint64_t expected, bool backward, Accumulator* used = nullptr) {
  Accumulator fresh(layout, expected);
  Accumulator& sums = used != nullptr ? *used : fresh;
  sums.reset(expected);
  std::vector<std::vector<std::byte>> payloads;
  for (const Member& member : members)
    payloads.push_back(encode(*codec_of("none"), layout, member.values));
  const auto each = [&](const auto& use) -> Result<void> {
    for (std::size_t n = 0; n < members.size(); ++n) {
      const std::size_t at = backward ? members.size() - 1 - n : n;
      SpanSource source(payloads[at]);
      auto reader = PayloadReader::open(source, payloads[at].size(), layout).value();
      FL_CHECK(use(reader, members[at].weight, nullptr));
    }
    return {};
  };
  REQUIRE(each([&](PayloadReader& reader, std::uint64_t weight, auto) -> Result<void> {
            FL_TRY(const auto added, sums.add(reader, weight));
            sums.count(added);
            return {};
          }).has_value());
  REQUIRE(
      sums.settle([&](const Accumulator::AddUpdate& again) { return each(again); }).has_value());
  std::vector<float> out(layout.elements());
  sums.mean(0, static_cast<double>(sums.total_weight()), out);
  return out;
}

/// Checks each value of the mean against exact arithmetic.
void check_exact(const Layout& layout, const std::vector<Member>& members,
                 std::span<const float> mean) {
  long double weight = 0;
  for (const Member& member : members) weight += static_cast<long double>(member.weight);
  const BlockMap map(layout, block_elements_default);
  for (std::uint64_t b = 0; b < map.blocks(); ++b) {
    const Block block = map.at(b);
    long double block_max = 0;
    for (const Member& member : members)
      for (std::uint64_t i = 0; i < block.elements; ++i)
        block_max =
            std::max(block_max, std::fabs(static_cast<long double>(member.values[block.flat + i])));
    for (std::uint64_t i = block.flat; i < block.flat + block.elements; ++i) {
      ExactInteger sum;
      long double largest = 0;
      for (const Member& member : members) {
        sum.add(member.values[i], member.weight);
        largest = std::max(largest, std::fabs(static_cast<long double>(member.values[i])) *
                                        static_cast<long double>(member.weight) / weight);
      }
      const long double wanted = sum.value() / weight;
      const long double allowed = std::max(std::ldexp(largest, -23), std::ldexp(block_max, -40)) +
                                  std::ldexp(std::fabs(wanted), -24) + 0x1p-149L;
      if (std::fabs(mean[i] - wanted) > allowed)
        FAIL("element ", i, ": ", mean[i], ", not ", static_cast<double>(wanted));
    }
  }
}

/// Tensors of one value, of two blocks, and of a statistic.
const Layout& layout_of_many() {
  static const Layout layout =
      layout_of({{"a", {70'001}}, {"b", {1}}, {"c", {300}}, {"bn.running_var", {40}}, {"d", {5}}});
  return layout;
}

/// Normal values times a factor that differs between the tensors, and a spike here and there.
std::vector<float> mixed(std::uint64_t seed, double scale, double spike) {
  const Layout& layout = layout_of_many();
  std::vector<float> x = normal(layout.elements(), seed);
  double factor = scale;
  for (const auto& tensor : layout.tensors()) {
    for (std::uint64_t i = 0; i < tensor.elements; ++i) {
      float& v = x[tensor.offset + i];
      v = static_cast<float>(v * factor * (i % 997 == seed % 97 ? spike : 1));
    }
    factor *= 1e-4;
  }
  return x;
}

}  // namespace

TEST_CASE("a mean equals the exact one, whatever the weights and values, in any order") {
  const std::vector<std::vector<std::uint64_t>> weights = {
      {1, 1, 1},
      {500'000'000, 500'000'000},
      {4'000'000'000, 4'000'000'000, 4'000'000'000},
      {(1ull << 32) - 1, (1ull << 32) - 1, (1ull << 32) - 1, (1ull << 32) - 1},
      {1, 1'000'000'000'000, 3, 700},
      {update_weight_max, update_weight_max - 1, 1},
      std::vector<std::uint64_t>(1023, update_weight_max)};
  // 1e-30 with factors down to 1e-16 reaches the denormal floats.
  const std::vector<std::pair<double, double>> magnitudes = {
      {1e-30, 1}, {4e-7, 1}, {1, 1}, {30'000, 1}, {1, 1e6}, {1e30, 1}, {1e-3, 1e9}, {1e37, 0.1}};
  for (const auto& of_clients : weights) {
    CAPTURE(of_clients.size());
    CAPTURE(of_clients.front());
    for (const auto& magnitude : magnitudes) {
      const auto scale = magnitude.first;
      const auto spike = magnitude.second;
      CAPTURE(scale);
      CAPTURE(spike);
      if (of_clients.size() > 100 && scale != 1e-3) continue;
      const Layout small = flat_layout(200);
      const bool is_many = of_clients.size() > 100;
      const Layout& layout = is_many ? small : layout_of_many();
      std::vector<Member> members;
      for (std::size_t n = 0; n < of_clients.size(); ++n) {
        auto values = mixed(n + 1, scale * (n % 2 == 0 ? 1 : 3), spike);
        values.resize(layout.elements());
        members.push_back({std::move(values), of_clients[n]});
      }
      const auto mean = mean_of(layout, members, 1, false);
      check_exact(layout, members, mean);
      CHECK(mean_of(layout, members, 1, true) == mean);
      CHECK(mean_of(layout, members, 1ull << 60, true) == mean);
    }
  }
}

TEST_CASE("values that cancel out leave what is exactly left") {
  const Layout& layout = layout_of_many();
  std::vector<Member> members;
  for (int n = 0; n < 6; ++n) {
    auto values = mixed(7, n % 2 == 0 ? 1000 : -1000, 1);
    if (n == 5)
      for (float& v : values) v = std::nextafter(v, 0.0f);
    members.push_back({std::move(values), 12'345});
  }
  check_exact(layout, members, mean_of(layout, members, 1, false));
}

TEST_CASE("the rounds before leave no trace in a mean") {
  const Layout& layout = layout_of_many();
  std::vector<std::vector<Member>> rounds;
  for (const double scale : {1.0, 1e-6, 1e20, 1e-6}) {
    rounds.emplace_back();
    for (std::uint64_t n = 0; n < 3; ++n)
      rounds.back().push_back({mixed(n, scale, 10), 100 + n * 1'000'000});
  }
  Accumulator sums(layout, 1);
  for (const auto& members : rounds) {
    const auto mean = mean_of(layout, members, 1000, false, &sums);
    check_exact(layout, members, mean);
    CHECK(mean_of(layout, members, 1, true) == mean);
  }
}

TEST_CASE("an update that is taken back leaves no trace in a mean") {
  const Layout layout = layout_of({{"a", {1000}}, {"b", {1000}}});
  const auto values = normal(2000, 5);
  const std::vector<Member> members{{values, 3}, {normal(2000, 6), 4}};
  const auto wanted = mean_of(layout, members, 1, false);
  // The layout's first tensor is much larger than all others, and the last value is bad.
  auto large = normal(2000, 7);
  for (std::size_t i = 0; i < 1000; ++i) large[i] *= 1e30f;
  auto damaged = encode(*codec_of("none"), layout, large);
  for (std::size_t i = damaged.size() - 4; i < damaged.size(); ++i) damaged[i] = std::byte{0xff};
  for (const bool is_first : {true, false}) {
    Accumulator sums(layout, 7);
    const auto spoil = [&] {
      SpanSource source(damaged);
      auto reader = PayloadReader::open(source, damaged.size(), layout).value();
      CHECK(sums.add(reader, 1ull << 40).has_error());
    };
    std::vector<std::vector<std::byte>> payloads;
    const auto each = [&](const auto& use) -> Result<void> {
      for (const Member& member : members) {
        const auto payload = encode(*codec_of("none"), layout, member.values);
        SpanSource source(payload);
        auto reader = PayloadReader::open(source, payload.size(), layout).value();
        FL_CHECK(use(reader, member.weight, nullptr));
      }
      return {};
    };
    if (is_first) spoil();
    REQUIRE(each([&](PayloadReader& reader, std::uint64_t weight, auto) -> Result<void> {
              FL_TRY(const auto added, sums.add(reader, weight));
              sums.count(added);
              return {};
            }).has_value());
    if (!is_first) spoil();
    REQUIRE(
        sums.settle([&](const Accumulator::AddUpdate& again) { return each(again); }).has_value());
    std::vector<float> mean(2000);
    sums.mean(0, 7, mean);
    CHECK(mean == wanted);
  }
}

TEST_CASE("what is like the round before is added once, and a failed settle() can be repeated") {
  const Layout layout = flat_layout(5000);
  Accumulator sums(layout, 1);
  const auto add = [&](float scale) {
    auto values = normal(5000, 3);
    for (float& v : values) v *= scale;
    const auto payload = encode(*codec_of("none"), layout, values);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    sums.count(sums.add(reader, 100).value());
    return payload;
  };
  int visits = 0;
  std::vector<std::byte> payload = add(1);
  const auto visit = [&](const Accumulator::AddUpdate& again) -> Result<void> {
    ++visits;
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    return again(reader, 100, nullptr);
  };
  REQUIRE(sums.settle(visit).has_value());
  sums.reset(100);
  payload = add(1.01f);
  visits = 0;
  REQUIRE(sums.settle(visit).has_value());
  CHECK(visits == 0);
  // The magnitude is another one: it is added again.
  sums.reset(100);
  payload = add(1e-9f);
  const auto fail = [&](const Accumulator::AddUpdate& again) -> Result<void> {
    FL_CHECK(visit(again));
    return Error(Errc::no_space, "the disk is full");
  };
  CHECK(sums.settle(fail).error().code() == Errc::no_space);
  REQUIRE(sums.settle(visit).has_value());
  CHECK(visits == 2);
  std::vector<float> mean(5000);
  sums.mean(0, 100, mean);
  CHECK(mean == decode(payload, layout));
}

TEST_CASE("a unit never lets a sum overflow, and serves values within a factor of 256") {
  for (const int exponent : {-148, -20, 0, 1, 7, 8, 128}) {
    for (const std::uint64_t weight : {std::uint64_t{1}, std::uint64_t{255}, std::uint64_t{256},
                                       update_weight_max, total_weight_max}) {
      const int unit = unit_log2_of(exponent, weight);
      const auto weight_log2 = static_cast<int>(std::bit_width(weight));
      CHECK(exponent + weight_log2 - unit <= 62);
      CHECK(exponent + weight_log2 - unit > 54);
      CHECK((unit + 62) % 8 == 0);
    }
  }
  CHECK(exponent_above(0.0f) == exponent_of_zero);
  CHECK(exponent_above(1.0f) == 1);
  CHECK(exponent_above(-0.999f) == 0);
  CHECK(exponent_above(std::numeric_limits<float>::max()) == 128);
  CHECK(exponent_above(std::numeric_limits<float>::denorm_min()) == -148);
}

TEST_CASE("a range refuses what its unit is too small for, until it begins again") {
  SumRange range;
  REQUIRE(range.admit(0, 1, 1));
  CHECK(range.admit(7, 1, 1));
  CHECK_FALSE(range.admit(8, 1, 1));
  CHECK(range.is_stale());
  CHECK_FALSE(range.admit(0, 1, 1));  // Something is missing in the sums.
  range.count(8);
  CHECK(range.begin_again(1));
  CHECK(range.unit_log2() == unit_log2_of(8, 1));
  CHECK(range.admit(8, 1, 1));
  SumRange heavy;
  REQUIRE(heavy.admit(0, 1, 1));
  CHECK(heavy.admit(0, 255, 1));
  CHECK_FALSE(heavy.admit(0, 256, 1));
}
