// Count sketch: each of some rows adds the values, with random signs, into a few cells at random; a
// value is estimated by the median of its cells. Charikar 2002, "Finding frequent items in data
// streams", section 3. For gradients, with the largest estimates as what was meant: Ivkin 2019,
// "Communication-efficient distributed SGD with sketching"; Rothchild 2020, "FetchSGD".
//
// Columns and k are those of 65,536 elements; a shorter block has a share of them, and one of fewer
// than 256 elements goes as fp32. Cells and signs follow from the block's place in the model alone,
// so all clients' sketches of a block may be added up before they are decoded.
//
// FetchSGD sketches all values, and what isn't recovered stays in a sketch at the server. Here each
// update is decoded alone: small values would only disturb the large ones, and are better kept for
// the next round by error feedback. So only the k largest magnitudes are sketched, and the encoder,
// which sees what is decoded, sends the estimate from which on estimates count: of the k largest as
// many as lessen the squared error most. By default k is an eighth of the columns: with 5 rows
// fewer values lose more, and of more hardly any but the same are recovered, because they collide.
//
// The bytes: u8 rows, u16 columns, u64 key, binary32 the least magnitude of an estimate that
// counts, then the rows' cells as binary32. Where no estimate is worth it, an empty sparse block.
#include "shared/codec/codec_table.hpp"

#include "kernels/kernels.hpp"
#include "kernels/select.hpp"
#include "shared/codec/block_key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

namespace fl {

namespace {

constexpr std::int32_t sketch_rows_max = 15;
constexpr std::int32_t sketch_cells_max = part_elements_max / 2;

struct CountsketchSettings {
  /// An eighth of the columns.
  [[nodiscard]] static std::int32_t k_otherwise(std::int32_t columns) { return columns / 8; }

  std::int32_t rows;     // Odd, 3 to sketch_rows_max.
  std::int32_t columns;  // From 8 on, rows * columns at most sketch_cells_max.
  std::int32_t k;        // How many values are sketched, 1 to the columns.
};

constexpr std::size_t sketched_min = 256;  // Elements of a block.
constexpr std::size_t sketch_head_bytes = 1 + 2 + sizeof(std::uint64_t) + sizeof(float);
/// Of all clients and rounds.
constexpr std::uint64_t shared_seed = 0;

/// Of a block's share of what 65,536 elements have, rounded up.
std::size_t share_of_block(std::int32_t number, std::size_t elements) {
  return (static_cast<std::size_t>(number) * elements + part_elements_max - 1) / part_elements_max;
}

/// The cell of a random word: its upper 31 bits by the columns. The lowest bit is the sign.
std::size_t column_of(std::uint32_t word, std::size_t columns) {
  return static_cast<std::size_t>((word >> 1) * std::uint64_t{columns} >> 31);
}
float signed_by(std::uint32_t word, float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ word << 31);
}

/// The random words of a row of the sketch.
std::span<const std::uint32_t> words_of(std::uint64_t key, std::size_t row, std::size_t elements,
                                        SketchScratch& scratch) {
  scratch.words.resize(std::max(scratch.words.size(), elements));
  kernels().random_words(key, row, scratch.words.data(), elements);
  return std::span(scratch.words).first(elements);
}

/// Adds the selected values into a row's cells.
void fill_row(std::span<const float> x, std::span<const std::uint32_t> selected,
              std::span<const std::uint32_t> words, std::span<float> cells) {
  std::vector<double> sums(cells.size());
  for (const std::uint32_t i : selected) {
    sums[column_of(words[i], cells.size())] += static_cast<double>(signed_by(words[i], x[i]));
  }
  std::ranges::transform(sums, cells.begin(), [](double v) { return static_cast<float>(v); });
}

void read_row(std::span<const std::uint32_t> words, std::span<const float> cells,
              std::span<float> estimates) {
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    estimates[i] = signed_by(words[i], cells[column_of(words[i], cells.size())]);
  }
}

/// Of the rows' estimates, which lie one row after the other and are an odd number: sorts those of
/// each element, and returns the middle row.
std::span<const float> medians(std::span<float> estimates, std::size_t rows) {
  const std::size_t n = estimates.size() / rows;
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) {
      float* const lower = estimates.data() + row * n;
      float* const upper = lower + n;
      for (std::size_t i = 0; i < n; ++i) {
        const float least = std::min(lower[i], upper[i]);
        upper[i] = std::max(lower[i], upper[i]);
        lower[i] = least;
      }
    }
  }
  return estimates.subspan(rows / 2 * n, n);
}

/// From which magnitude on the estimates, of the k largest, lessen the squared error most. 0: none
/// does.
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

class Countsketch final : public Method {
 public:
  explicit Countsketch(const CountsketchSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.rows >= 3 && settings.rows <= sketch_rows_max && settings.rows % 2 == 1);
    FL_ASSERT(settings.columns >= 1 && settings.rows * settings.columns <= sketch_cells_max);
    FL_ASSERT(settings.k >= 1 && settings.k <= settings.columns);
  }

  std::string spec() const override {
    std::string text = fmt::format("countsketch:{}x{}", settings_.rows, settings_.columns);
    if (settings_.k != CountsketchSettings::k_otherwise(settings_.columns)) {
      text += fmt::format(",k={}", settings_.k);
    }
    return text;
  }

  bool needs_places() const override { return true; }

  std::size_t block_bytes_max(std::size_t elements) const override {
    if (elements < sketched_min) return dense_method().block_bytes_max(elements);
    return 1 + sketch_head_bytes +
           rows() * share_of_block(settings_.columns, elements) * sizeof(float);
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const MethodPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (x.size() < sketched_min) {
      return dense_method().encode(x, scan, layout, block, seed, {}, scratch, out);
    }
    const std::uint64_t key = block_key(shared_seed, KeyFamily::quantizer, block);
    const std::size_t columns = share_of_block(settings_.columns, x.size());
    const std::size_t k = share_of_block(settings_.k, x.size());
    SketchScratch& room = scratch.sketch;
    room.selected.resize(x.size());
    Cutoff cutoff = find_largest({&x, 1}, k);
    const auto selected =
        std::span(room.selected).first(select_largest(x, cutoff, room.selected.data()));

    std::vector<float> cells(rows() * columns);
    room.estimates.resize(rows() * x.size());
    for (std::size_t row = 0; row < rows(); ++row) {
      const auto words = words_of(key, row, x.size(), room);
      const auto of_row = std::span(cells).subspan(row * columns, columns);
      fill_row(x, selected, words, of_row);
      read_row(words, of_row, std::span(room.estimates).subspan(row * x.size(), x.size()));
    }
    if (kernels().scan(cells.data(), cells.size()).first_bad != cells.size()) {
      return Error(Errc::invalid_input, fmt::format("the values at {} are too large for {}",
                                                    layout.describe(block.flat), spec()));
    }
    const float least = least_that_counts(x, medians(room.estimates, rows()), k);
    if (least == 0) {
      out.assign({static_cast<std::byte>(MethodId::sparse), std::byte{0}, std::byte{0}});
      return {};
    }
    out.resize(1 + sketch_head_bytes + cells.size() * sizeof(float));
    out[0] = static_cast<std::byte>(MethodId::countsketch);
    out[1] = static_cast<std::byte>(settings_.rows);
    store(out, 2, static_cast<std::uint16_t>(columns));
    store(out, 4, key);
    store(out, 12, least);
    std::memcpy(out.data() + 1 + sketch_head_bytes, cells.data(), cells.size() * sizeof(float));
    return {};
  }

 private:
  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(settings_.rows); }

  CountsketchSettings settings_;
};

}  // namespace

MethodResult parse_countsketch(const SpecParts& parts) {
  const std::string_view size = parts.argument.value_or(parts.name.substr(parts.name.size()));
  const std::size_t times = size.find('x');
  if (times == std::string_view::npos) {
    return wrong(parts.whole, size,
                 "countsketch wants ROWSxCOLUMNS here, such as countsketch:5x4000");
  }
  CountsketchSettings settings{};
  FL_TRY(settings.rows, parse_number(parts.whole, size.substr(0, times), "the rows of countsketch",
                                     3, sketch_rows_max));
  if (settings.rows % 2 == 0) return wrong(parts.whole, size, "the rows of countsketch are odd");
  FL_TRY(settings.columns,
         parse_number(parts.whole, size.substr(times + 1), "the columns of so many rows", 8,
                      sketch_cells_max / settings.rows));
  settings.k = CountsketchSettings::k_otherwise(settings.columns);
  for (const auto& [key, value] : parts.settings) {
    if (key != "k") return wrong(parts.whole, key, "countsketch has the setting k");
    FL_TRY(settings.k, parse_number(parts.whole, value, "k", 1, settings.columns));
  }
  return std::make_unique<Countsketch>(settings);
}

Result<void> decode_countsketch(Bytes body, std::span<float> out, DecodeScratch& scratch) {
  if (body.size() < sketch_head_bytes) return Error(Errc::corrupt, "the sketch's head is cut off");
  const std::size_t rows = load<std::uint8_t>(body, 0);
  const std::size_t columns = load<std::uint16_t>(body, 1);
  const auto key = load<std::uint64_t>(body, 3);
  const auto least = load<float>(body, 11);
  if (rows > static_cast<std::size_t>(sketch_rows_max) || rows % 2 == 0 || columns == 0) {
    return Error(Errc::corrupt, fmt::format("a sketch of {} rows of {} cells", rows, columns));
  }
  // Written so that NaN fails too.
  if (!(least > 0 && std::isfinite(least))) {
    return Error(Errc::corrupt, fmt::format("estimates count from {} on", least));
  }
  FL_CHECK(check_body_bytes(body, sketch_head_bytes + rows * columns * sizeof(float)));
  SketchScratch& room = scratch.sketch;
  room.cells.resize(std::max(room.cells.size(), rows * columns));
  const auto cells = std::span(room.cells).first(rows * columns);
  std::memcpy(cells.data(), body.data() + sketch_head_bytes, cells.size_bytes());
  if (kernels().scan(cells.data(), cells.size()).first_bad != cells.size()) {
    return Error(Errc::corrupt, "a cell of the sketch is not finite");
  }
  room.estimates.resize(rows * out.size());
  for (std::size_t row = 0; row < rows; ++row) {
    read_row(words_of(key, row, out.size(), room), cells.subspan(row * columns, columns),
             std::span(room.estimates).subspan(row * out.size(), out.size()));
  }
  const auto estimates = medians(room.estimates, rows);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::fabs(estimates[i]) >= least ? estimates[i] : 0.0f;
  }
  return {};
}

}  // namespace fl
