// Count sketch: each of some rows adds the values, with random signs, into a few cells at random; a
// value is estimated by the median of its cells. Charikar 2002, "Finding frequent items in data
// streams", section 3. For gradients, with the largest estimates as what was meant: Ivkin 2019,
// "Communication-efficient distributed SGD with sketching"; Rothchild 2020, "FetchSGD".
//
// Columns and k are those of 65,536 elements; a shorter block has a share of them, and one of fewer
// than 256 elements goes losslessly. Cells and signs follow from the block's place in the model
// alone, so all clients' sketches of a block may be added up before they are decoded.
//
// FetchSGD sketches all values, and what isn't recovered stays in a sketch at the server. Here each
// update is decoded alone: small values would only disturb the large ones, and are better kept for
// the next round by error feedback. So only the k largest magnitudes are sketched, and the encoder,
// which sees what is decoded, sends the estimate from which on estimates count: of the k largest as
// many as lessen the squared error most. By default k is an eighth of the columns: with 5 rows
// fewer values lose more, and of more hardly any but the same are recovered, because they collide.
//
// The bytes: u8 rows, u16 columns, u64 key, binary32 the least magnitude of an estimate that
// counts, then the rows' cells, as a block of "lossless" has them. Where no estimate is worth it,
// an empty sparse block.
#include "shared/codec/codec_table.hpp"

#include "kernels/kernels.hpp"
#include "kernels/select.hpp"
#include "kernels/sketch.hpp"
#include "shared/codec/block_key.hpp"
#include "shared/codec/device_coder.hpp"
#include "shared/codec/parts.hpp"
#include "shared/codec/sparse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>

namespace fl {

namespace {

constexpr auto sketch_rows_max = static_cast<std::int32_t>(sketch::rows_max);
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

/// The random words of a row of the sketch.
std::span<const std::uint32_t> words_of(std::uint64_t key, std::size_t row, std::size_t elements,
                                        SketchScratch& scratch) {
  scratch.words.resize(std::max(scratch.words.size(), elements));
  kernels().random_words(key, row, scratch.words.data(), elements);
  return std::span(scratch.words).first(elements);
}

/// Adds the selected values into a row's cells; word_of(i): the word of element i.
template <class WordOf>
void fill_row(std::span<const float> x, std::span<const std::uint32_t> selected,
              const WordOf& word_of, std::span<float> cells) {
  std::vector<double> sums(cells.size());
  for (const std::uint32_t i : selected) {
    const std::uint32_t word = word_of(i);
    sums[sketch::column_of(word, cells.size())] +=
        static_cast<double>(sketch::signed_by(word, x[i]));
  }
  std::ranges::transform(sums, cells.begin(), [](double v) { return static_cast<float>(v); });
}

void read_row(std::span<const std::uint32_t> words, std::span<const float> cells,
              std::span<float> estimates) {
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    estimates[i] = sketch::signed_by(words[i], cells[sketch::column_of(words[i], cells.size())]);
  }
}

/// Of the rows' estimates, which lie one row after the other and are an odd number: sorts those of
/// each element (as sketch::median() sorts), and returns the middle row.
std::span<const float> medians(std::span<float> estimates, std::size_t rows) {
  const std::size_t n = estimates.size() / rows;
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) {
      float* const lower = estimates.data() + row * n;
      float* const upper = lower + n;
      for (std::size_t i = 0; i < n; ++i) sketch::order(lower[i], upper[i]);
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

/// Of one block.
struct Sketch {
  std::vector<float> cells;
  float least = 0;  // Of the estimates that count.
};

}  // namespace

/// By where their blocks begin in the vector; made with a device's estimates.
struct SketchPlan {
  std::map<std::uint64_t, Sketch> of_blocks;

  /// Null: it was not made.
  [[nodiscard]] const Sketch* find(const Block& block) const {
    const auto found = of_blocks.find(block.flat);
    return found == of_blocks.end() ? nullptr : &found->second;
  }
};

namespace {

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
           dense_method().block_bytes_max(rows() * share_of_block(settings_.columns, elements));
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const MethodPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (x.size() < sketched_min) {
      return dense_method().encode(x, scan, layout, block, seed, {}, scratch, out);
    }
    if (const Sketch* const planned = plan.sketches ? plan.sketches->find(block) : nullptr) {
      return write(*planned, layout, block, scratch, out);
    }
    const std::uint64_t key = key_of(block);
    const std::size_t columns = columns_of(x.size());
    SketchScratch& room = scratch.sketch;
    const auto selected = select(x, room.selected);
    Sketch made = {.cells = std::vector<float>(rows() * columns)};
    room.estimates.resize(rows() * x.size());
    for (std::size_t row = 0; row < rows(); ++row) {
      const auto words = words_of(key, row, x.size(), room);
      const auto of_row = std::span(made.cells).subspan(row * columns, columns);
      fill_row(
          x, selected, [words](std::uint32_t i) { return words[i]; }, of_row);
      read_row(words, of_row, std::span(room.estimates).subspan(row * x.size(), x.size()));
    }
    if (!is_finite(made.cells)) {
      return Error(Errc::invalid_input, fmt::format("the values at {} are too large for {}",
                                                    layout.describe(block.flat), spec()));
    }
    made.least = least_that_counts(x, medians(room.estimates, rows()), k_of(x.size()));
    return write(made, layout, block, scratch, out);
  }

  bool plans_on_device() const override { return true; }

  /// What a block's sketch takes is reading it. Of what lies there only cells are used, so a copy
  /// of the vector is for nothing, but takes a thirtieth of what is saved.
  MethodPlan plan(const VectorToPlan& vector) const override {
    if (vector.device == nullptr) return {};
    auto plan = std::make_shared<SketchPlan>();
    const BlockMap map(*vector.layout, vector.block_elements);
    std::vector<Block> batch;
    for (std::uint64_t index = 0; index < map.blocks(); ++index) {
      const Block block = map.at(index);
      const bool is_ours = std::ranges::find(vector.tensors, block.tensor) != vector.tensors.end();
      if (is_ours && block.elements >= sketched_min && block.elements <= part_elements_max)
        batch.push_back(block);
      if (batch.size() < CodecDevice::batch_blocks_max && index + 1 < map.blocks()) continue;
      if (!batch.empty() && !plan_batch(vector, batch, *plan)) break;
      batch.clear();
    }
    return {.sketches = std::move(plan)};
  }

 private:
  /// False: the device does no more.
  bool plan_batch(const VectorToPlan& vector, std::span<const Block> blocks,
                  SketchPlan& plan) const {
    std::vector<SketchBlock> sketches;
    std::vector<float> cells;
    std::vector<std::uint32_t> room;
    std::uint32_t elements = 0;
    for (const Block& block : blocks) {
      const auto x = vector.x.subspan(block.flat, block.elements);
      const std::size_t columns = columns_of(x.size());
      sketches.push_back({.key = key_of(block),
                          .rows = static_cast<std::uint32_t>(rows()),
                          .columns = static_cast<std::uint32_t>(columns),
                          .elements = block.elements,
                          .cells_begin = static_cast<std::uint32_t>(cells.size()),
                          .begin = elements});
      elements += block.elements;
      const std::size_t begin = cells.size();
      cells.resize(begin + rows() * columns);
      const auto selected = select(x, room);
      for (std::size_t row = 0; row < rows(); ++row) {
        const auto word_of = [&](std::uint32_t i) {
          return sketch::word_at(sketches.back().key, row, i);
        };
        fill_row(x, selected, word_of, std::span(cells).subspan(begin + row * columns, columns));
      }
    }
    std::vector<float> estimates(elements);
    if (!vector.device->estimate(sketches, cells, estimates)) return false;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const auto x = vector.x.subspan(blocks[b].flat, blocks[b].elements);
      const auto of_it = std::span<const float>(cells).subspan(
          sketches[b].cells_begin, rows() * std::size_t{sketches[b].columns});
      // It will be refused by its name, when its turn comes.
      if (!is_finite(x) || !is_finite(of_it)) continue;
      const auto read = std::span(estimates).subspan(sketches[b].begin, x.size());
      plan.of_blocks[blocks[b].flat] = {.cells = {of_it.begin(), of_it.end()},
                                        .least = least_that_counts(x, read, k_of(x.size()))};
    }
    return true;
  }

  static std::uint64_t key_of(const Block& block) {
    return block_key(shared_seed, KeyFamily::quantizer, block);
  }
  [[nodiscard]] std::size_t columns_of(std::size_t elements) const {
    return share_of_block(settings_.columns, elements);
  }
  [[nodiscard]] std::size_t k_of(std::size_t elements) const {
    return share_of_block(settings_.k, elements);
  }

  /// Those that are sketched; they lie in `room`.
  std::span<const std::uint32_t> select(std::span<const float> x,
                                        std::vector<std::uint32_t>& room) const {
    room.resize(std::max(room.size(), x.size()));
    Cutoff cutoff = find_largest({&x, 1}, k_of(x.size()));
    return std::span(room).first(select_largest(x, cutoff, room.data()));
  }

  static bool is_finite(std::span<const float> values) {
    return kernels().scan(values.data(), values.size()).first_bad == values.size();
  }

  Result<void> write(const Sketch& of, const Layout& layout, const Block& block,
                     EncodeScratch& scratch, std::vector<std::byte>& out) const {
    if (of.least == 0) {
      out.assign({static_cast<std::byte>(MethodId::sparse), std::byte{0}, std::byte{0}});
      return {};
    }
    const Scan scan = kernels().scan(of.cells.data(), of.cells.size());
    Block cells = block;
    cells.elements = static_cast<std::uint32_t>(of.cells.size());
    std::vector<std::byte> coded;
    FL_CHECK(encode_block(dense_method(), of.cells, scan, layout, cells, 0, {}, scratch, coded));
    out.resize(1 + sketch_head_bytes);
    out[0] = static_cast<std::byte>(MethodId::countsketch);
    out[1] = static_cast<std::byte>(settings_.rows);
    store(out, 2, static_cast<std::uint16_t>(of.cells.size() / rows()));
    store(out, 4, key_of(block));
    store(out, 12, of.least);
    out.insert(out.end(), coded.begin(), coded.end());
    return {};
  }

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
  if (rows > static_cast<std::size_t>(sketch_rows_max) || rows % 2 == 0 || columns == 0 ||
      rows * columns > static_cast<std::size_t>(sketch_cells_max)) {
    return Error(Errc::corrupt, fmt::format("a sketch of {} rows of {} cells", rows, columns));
  }
  // Written so that NaN fails too.
  if (!(least > 0 && std::isfinite(least))) {
    return Error(Errc::corrupt, fmt::format("estimates count from {} on", least));
  }
  SketchScratch& room = scratch.sketch;
  room.cells.resize(std::max(room.cells.size(), rows * columns));
  const auto cells = std::span(room.cells).first(rows * columns);
  const Bytes coded = body.subspan(sketch_head_bytes);
  FL_CHECK(is_sparse(coded) ? decode_sparse(coded, cells, scratch)
                            : decode_lossless_block(coded, cells, scratch));
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
