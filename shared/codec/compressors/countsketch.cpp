// SPDX-License-Identifier: Apache-2.0
// "countsketch": a count sketch. It has a few rows of cells. Each row adds every value, with a
// random sign, to a random cell; the estimate of a value is the median of its cells. Charikar 2002,
// "Finding frequent items in data streams", section 3. For gradients, with the largest estimates as
// the result: Ivkin 2019, "Communication-efficient distributed SGD with sketching"; Rothchild 2020,
// "FetchSGD".
//
// Columns and k are for a block of 65,536 elements. A shorter block has proportionally fewer, and a
// block of fewer than 256 elements is sent losslessly. Only the k largest magnitudes are sketched.
// Small values would disturb the large ones, and without them nearly all cells are 0 and cost
// nothing. By default k is an eighth of the columns. With 5 rows a smaller k loses more values, and
// a larger k recovers hardly any more, because they collide.
//
// Cells and signs depend only on the block's place in the model. So a server can add up the
// sketches of all clients and read only the sum (sketch_sums.hpp), as FetchSGD does. Error feedback
// is not possible then: what the server recovers from the sum is not the sum of what it would
// recover from each sketch, so a client does not know what the server adds. (FetchSGD has its error
// feedback at the server, in another sketch.) Where a server decodes such an update alone
// (accumulator.hpp), the result can even have a larger error than zeros, if all values are alike.
//
// With recovery=own, and with error feedback, each update is decoded alone. The encoder can then
// compute what will be decoded. It sends the least magnitude of the estimates to use: those of the
// k largest that together reduce the squared error most. The bytes are then u8 rows, u16 columns,
// u64 key, binary32 this magnitude, and the cells, row by row, as a block of "lossless"; or an
// empty sparse block, if no estimate reduces the error.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/select.hpp"
#include "kernels/generic/sketch.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/blocks/sketch_block.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

namespace fl::codec {

namespace {

constexpr BlockFormat countsketch_own{30};

struct CountsketchSettings {
  SketchShape shape;  // The shape has at least 3 rows and 8 columns.
  std::uint32_t k;    // How many values are sketched, 1 to the number of columns.
  bool is_summed;     // The spec does not say recovery=own, so a server may add up the sketches.
  bool has_feedback;
};

/// The k of a spec that does not set it.
std::uint32_t k_otherwise(std::uint32_t columns) { return columns / 8; }

/// The head of countsketch_own: it also has the least magnitude of the estimates to use.
constexpr std::size_t own_head_bytes = sketch_head_bytes + sizeof(float);

/// Adds the selected values into a row's cells.
void fill_row(std::span<const float> x, std::span<const std::uint32_t> selected, std::uint64_t key,
              std::uint32_t row, std::span<float> cells) {
  std::vector<double> sums(cells.size());
  for (const std::uint32_t i : selected) {
    const std::uint32_t word = sketch::word_at(key, row, i);
    sums[sketch::column_of(word, cells.size())] +=
        static_cast<double>(sketch::signed_by(word, x[i]));
  }
  std::ranges::transform(sums, cells.begin(), [](double v) { return static_cast<float>(v); });
}

/// The least magnitude of the estimates to use. From the k largest it takes those that together
/// reduce the squared error most. 0 if none reduces it.
float least_that_counts(std::span<const float> x, std::span<const float> estimates, std::size_t k) {
  const auto cutoff = find_largest({&estimates, 1}, k).magnitude;
  const float smallest = std::bit_cast<float>(cutoff);
  struct Gain {
    float magnitude;
    double squares;
  };
  std::vector<Gain> gains;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float magnitude = std::fabs(estimates[i]);
    if (magnitude == 0 || magnitude < smallest) continue;
    const double estimate = estimates[i];
    gains.push_back({magnitude, estimate * (2 * static_cast<double>(x[i]) - estimate)});
  }
  std::ranges::stable_sort(gains, std::greater{}, &Gain::magnitude);
  float least = 0;
  double best = 0;
  double sum = 0;
  for (std::size_t i = 0; i < gains.size(); ++i) {
    sum += gains[i].squares;
    if (i + 1 < gains.size() && gains[i + 1].magnitude == gains[i].magnitude) continue;
    if (sum <= best) continue;
    best = sum;
    least = gains[i].magnitude;
  }
  return least;
}

class Countsketch final : public Compressor {
 public:
  explicit Countsketch(const CountsketchSettings& settings) : settings_(settings) {
    const auto [rows, columns] = settings.shape;
    FL_ASSERT(rows >= sketch::rows_min && rows <= sketch::rows_max && rows % 2 == 1);
    FL_ASSERT(columns >= 1 && rows * columns <= sketch_cells_max);
    FL_ASSERT(settings.k >= 1 && settings.k <= columns);
    FL_ASSERT(!(settings.is_summed && settings.has_feedback));
  }

  std::string spec() const override {
    const auto [rows, columns] = settings_.shape;
    std::string text = fmt::format("countsketch:{}x{}", rows, columns);
    if (settings_.k != k_otherwise(columns)) text += fmt::format(",k={}", settings_.k);
    if (!settings_.is_summed && !settings_.has_feedback) text += ",recovery=own";
    return text;
  }

  std::optional<SketchShape> summed_sketch() const override {
    if (!settings_.is_summed) return std::nullopt;
    return settings_.shape;
  }

  bool needs_places() const override { return true; }

  std::size_t block_bytes_max(std::size_t elements) const override {
    if (elements < sketched_min) return dense_compressor().block_bytes_max(elements);
    const SketchShape shape = share_of_block(settings_.shape, elements);
    return 1 + own_head_bytes + dense_compressor().block_bytes_max(shape.rows * shape.columns);
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (x.size() < sketched_min) {
      return dense_compressor().encode(x, scan, layout, block, seed, {}, scratch, out);
    }
    const SketchShape shape = share_of_block(settings_.shape, x.size());
    std::vector<float> cells(std::size_t{shape.rows} * shape.columns);
    fill(x, sketch_key(block), shape, scratch.sketch.selected, cells);
    if (!all_finite(cells)) {
      return Error(Errc::invalid_input, fmt::format("the values at {} are too large for {}",
                                                    layout.describe(block.flat), spec()));
    }
    float least = 0;
    if (!settings_.is_summed) {
      const auto estimates = sketch_estimates(
          {.shape = shape, .key = sketch_key(block), .cells = cells}, x.size(), scratch.sketch);
      least = least_that_counts(x, estimates, k_of(x.size()));
      if (least == 0) {
        out.assign({static_cast<std::byte>(BlockFormat::sparse), std::byte{0}, std::byte{0}});
        return {};
      }
    }
    return write(cells, least, layout, block, scratch, out);
  }

 private:
  [[nodiscard]] std::uint32_t k_of(std::size_t elements) const {
    return share_of_block(settings_.k, elements);
  }

  /// Sketches the k largest magnitudes. Their indices are written to `room`.
  void fill(std::span<const float> x, std::uint64_t key, const SketchShape& shape,
            std::vector<std::uint32_t>& room, std::span<float> cells) const {
    room.resize(std::max(room.size(), x.size()));
    Cutoff cutoff = find_largest({&x, 1}, k_of(x.size()));
    const auto selected = std::span(room).first(select_largest(x, cutoff, room.data()));
    for (std::uint32_t row = 0; row < shape.rows; ++row)
      fill_row(x, selected, key, row,
               cells.subspan(std::size_t{row} * shape.columns, shape.columns));
  }

  /// `least`: the result of least_that_counts(); not used if the sketch can be added to others.
  Result<void> write(std::span<const float> cells, float least, const Layout& layout,
                     const Block& block, EncodeScratch& scratch,
                     std::vector<std::byte>& out) const {
    const Scan scan = kernels().scan(cells.data(), cells.size());
    Block of_cells = block;
    of_cells.elements = static_cast<std::uint32_t>(cells.size());
    std::vector<std::byte> coded;
    FL_CHECK(
        encode_block(dense_compressor(), cells, scan, layout, of_cells, 0, {}, scratch, coded));
    const SketchShape shape = share_of_block(settings_.shape, block.elements);
    const bool is_summed = settings_.is_summed;
    out.resize(1 + (is_summed ? sketch_head_bytes : own_head_bytes));
    out[0] = static_cast<std::byte>(is_summed ? BlockFormat::countsketch_sum : countsketch_own);
    out[1] = static_cast<std::byte>(shape.rows);
    store(out, 2, static_cast<std::uint16_t>(shape.columns));
    store(out, 4, sketch_key(block));
    if (!is_summed) store(out, 1 + sketch_head_bytes, least);
    out.insert(out.end(), coded.begin(), coded.end());
    return {};
  }

  CountsketchSettings settings_;
};

}  // namespace

CompressorResult parse_countsketch(const SpecParts& parts) {
  const std::string_view size = parts.argument.value_or(parts.name.substr(parts.name.size()));
  const std::size_t times = size.find('x');
  if (times == std::string_view::npos) {
    return wrong(parts.whole, size,
                 "countsketch needs ROWSxCOLUMNS here, such as countsketch:5x4000");
  }
  FL_TRY(const std::int32_t rows,
         parse_number(parts.whole, size.substr(0, times), "the rows of countsketch",
                      static_cast<std::int32_t>(sketch::rows_min),
                      static_cast<std::int32_t>(sketch::rows_max)));
  if (rows % 2 == 0)
    return wrong(parts.whole, size, "the rows of countsketch must be an odd number");
  FL_TRY(
      const std::int32_t columns,
      parse_number(parts.whole, size.substr(times + 1), "the number of columns with so many rows",
                   8, static_cast<std::int32_t>(sketch_cells_max) / rows));
  CountsketchSettings settings{.shape = {.rows = static_cast<std::uint32_t>(rows),
                                         .columns = static_cast<std::uint32_t>(columns)},
                               .k = k_otherwise(static_cast<std::uint32_t>(columns)),
                               .is_summed = !parts.error_feedback,
                               .has_feedback = parts.error_feedback};
  for (const auto& [key, value] : parts.settings) {
    if (key == "recovery") {
      if (value != "own" && value != "sum")
        return wrong(parts.whole, value, "recovery must be own or sum");
      settings.is_summed = value == "sum";
      if (!settings.is_summed || !settings.has_feedback) continue;
      return wrong(parts.whole, value,
                   "recovery=sum is not possible with +ef, +dgc or delta+, because a client must "
                   "know what the server adds; leave it out, or use recovery=own");
    }
    if (key != "k")
      return wrong(parts.whole, key, "countsketch has no such setting; its own are k and recovery");
    FL_TRY(const std::int32_t k, parse_number(parts.whole, value, "k", 1, columns));
    settings.k = static_cast<std::uint32_t>(k);
  }
  return std::make_unique<Countsketch>(settings);
}

Result<void> decode_countsketch(BlockFormat id, Bytes body, std::span<float> out,
                                DecodeScratch& scratch) {
  if (id == BlockFormat::countsketch_sum) {
    FL_TRY(const SketchCells sketch, read_sketch(body, sketch_head_bytes, scratch));
    std::ranges::copy(sketch_estimates(sketch, out.size(), scratch.sketch), out.begin());
    return {};
  }
  FL_TRY(const SketchCells sketch, read_sketch(body, own_head_bytes, scratch));
  const auto least = load<float>(body, sketch_head_bytes);
  // Written so that NaN fails too.
  if (!(least > 0 && std::isfinite(least))) {
    return Error(Errc::corrupt, fmt::format("estimates count from {} on", least));
  }
  const auto estimates = sketch_estimates(sketch, out.size(), scratch.sketch);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::fabs(estimates[i]) >= least ? estimates[i] : 0.0f;
  }
  return {};
}

}  // namespace fl::codec
