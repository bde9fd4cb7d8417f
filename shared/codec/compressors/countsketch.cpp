// Count sketch: each of some rows adds the values, with random signs, into a few cells at random; a
// value is estimated by the median of its cells. Charikar 2002, "Finding frequent items in data
// streams", section 3. For gradients, with the largest estimates as what was meant: Ivkin 2019,
// "Communication-efficient distributed SGD with sketching"; Rothchild 2020, "FetchSGD".
//
// Columns and k are those of 65,536 elements; a shorter block has a share of them, and one of fewer
// than 256 elements goes losslessly. Only the k largest magnitudes are sketched: small values would
// disturb the large ones, and nearly all cells are 0, which costs nothing. By default k is an
// eighth of the columns: with 5 rows fewer values lose more, and of more hardly any but the same
// are recovered, because they collide.
//
// Cells and signs follow from the block's place in the model alone, so a server adds up all
// clients' sketches, and reads the sum of them all (sketch_sums.hpp), as FetchSGD does. What is
// recovered of a sum is not the sum of what is recovered of each, so there is no error feedback
// with it: a client does not know what the server will add. (FetchSGD's is at the server, in a
// sketch of its own.) Where a server decodes such an update alone (accumulator.hpp), that may even
// be farther from what it was than zeros are, of values that are all alike.
//
// With recovery=own, as under error feedback, each update is decoded alone, and the encoder, which
// sees what is decoded, sends the estimate from which on estimates count: of the k largest as many
// as lessen the squared error most. The bytes are then u8 rows, u16 columns, u64 key, binary32 that
// estimate, then the rows' cells, as a block of "lossless" has them; where no estimate is worth it,
// an empty sparse block.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/select.hpp"
#include "kernels/generic/sketch.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/device/device_coder.hpp"

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

constexpr BlockFormat countsketch_own{30};

struct CountsketchSettings {
  SketchShape shape;  // From 3 rows and 8 columns on.
  std::uint32_t k;    // So many values are sketched, 1 to the columns.
  bool is_summed;
  bool has_feedback;
};

std::uint32_t k_otherwise(std::uint32_t columns) { return columns / 8; }

/// With the estimate from which on estimates count.
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
                      const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (x.size() < sketched_min) {
      return dense_compressor().encode(x, scan, layout, block, seed, {}, scratch, out);
    }
    if (const Sketch* const planned = plan.sketches ? plan.sketches->find(block) : nullptr) {
      return write(*planned, layout, block, scratch, out);
    }
    const SketchShape shape = share_of_block(settings_.shape, x.size());
    Sketch made = {.cells = std::vector<float>(std::size_t{shape.rows} * shape.columns)};
    fill(x, k_of(x.size()), sketch_key(block), shape, scratch.sketch.selected, made.cells);
    if (!all_finite(made.cells)) {
      return Error(Errc::invalid_input, fmt::format("the values at {} are too large for {}",
                                                    layout.describe(block.flat), spec()));
    }
    if (!settings_.is_summed) {
      const auto estimates =
          sketch_estimates({.shape = shape, .key = sketch_key(block), .cells = made.cells},
                           x.size(), scratch.sketch);
      made.least = least_that_counts(x, estimates, k_of(x.size()));
    }
    return write(made, layout, block, scratch, out);
  }

  bool plans_on_device() const override { return !settings_.is_summed; }

  /// What a block's sketch takes is reading it. Of what lies there only cells are used, so a copy
  /// of the vector is for nothing, but takes a thirtieth of what is saved.
  CompressorPlan plan(const VectorToPlan& vector) const override {
    if (vector.device == nullptr || settings_.is_summed) return {};
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
      const SketchShape shape = share_of_block(settings_.shape, x.size());
      const std::size_t begin = cells.size();
      sketches.push_back({.key = sketch_key(block),
                          .rows = shape.rows,
                          .columns = shape.columns,
                          .elements = block.elements,
                          .cells_begin = static_cast<std::uint32_t>(begin),
                          .begin = elements});
      elements += block.elements;
      cells.resize(begin + std::size_t{shape.rows} * shape.columns);
      fill(x, k_of(x.size()), sketch_key(block), shape, room, std::span(cells).subspan(begin));
    }
    std::vector<float> estimates(elements);
    if (!vector.device->estimate(sketches, cells, estimates)) return false;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const auto x = vector.x.subspan(blocks[b].flat, blocks[b].elements);
      const auto of_it = std::span<const float>(cells).subspan(
          sketches[b].cells_begin, std::size_t{sketches[b].rows} * sketches[b].columns);
      // It will be refused by its name, when its turn comes.
      if (!all_finite(x) || !all_finite(of_it)) continue;
      const auto read = std::span(estimates).subspan(sketches[b].begin, x.size());
      plan.of_blocks[blocks[b].flat] = {.cells = {of_it.begin(), of_it.end()},
                                        .least = least_that_counts(x, read, k_of(x.size()))};
    }
    return true;
  }

  [[nodiscard]] std::uint32_t k_of(std::size_t elements) const {
    return share_of_block(settings_.k, elements);
  }

  /// Sketches the k largest, whose indices lie in `room`.
  static void fill(std::span<const float> x, std::uint32_t k, std::uint64_t key,
                   const SketchShape& shape, std::vector<std::uint32_t>& room,
                   std::span<float> cells) {
    room.resize(std::max(room.size(), x.size()));
    Cutoff cutoff = find_largest({&x, 1}, k);
    const auto selected = std::span(room).first(select_largest(x, cutoff, room.data()));
    for (std::uint32_t row = 0; row < shape.rows; ++row)
      fill_row(x, selected, key, row,
               cells.subspan(std::size_t{row} * shape.columns, shape.columns));
  }

  Result<void> write(const Sketch& of, const Layout& layout, const Block& block,
                     EncodeScratch& scratch, std::vector<std::byte>& out) const {
    if (!settings_.is_summed && of.least == 0) {
      out.assign({static_cast<std::byte>(BlockFormat::sparse), std::byte{0}, std::byte{0}});
      return {};
    }
    const Scan scan = kernels().scan(of.cells.data(), of.cells.size());
    Block cells = block;
    cells.elements = static_cast<std::uint32_t>(of.cells.size());
    std::vector<std::byte> coded;
    FL_CHECK(
        encode_block(dense_compressor(), of.cells, scan, layout, cells, 0, {}, scratch, coded));
    const SketchShape shape = share_of_block(settings_.shape, block.elements);
    const bool is_summed = settings_.is_summed;
    out.resize(1 + (is_summed ? sketch_head_bytes : own_head_bytes));
    out[0] = static_cast<std::byte>(is_summed ? BlockFormat::countsketch_sum : countsketch_own);
    out[1] = static_cast<std::byte>(shape.rows);
    store(out, 2, static_cast<std::uint16_t>(shape.columns));
    store(out, 4, sketch_key(block));
    if (!is_summed) store(out, 1 + sketch_head_bytes, of.least);
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
                 "countsketch wants ROWSxCOLUMNS here, such as countsketch:5x4000");
  }
  FL_TRY(const std::int32_t rows,
         parse_number(parts.whole, size.substr(0, times), "the rows of countsketch",
                      static_cast<std::int32_t>(sketch::rows_min),
                      static_cast<std::int32_t>(sketch::rows_max)));
  if (rows % 2 == 0) return wrong(parts.whole, size, "the rows of countsketch are odd");
  FL_TRY(const std::int32_t columns,
         parse_number(parts.whole, size.substr(times + 1), "the columns of so many rows", 8,
                      static_cast<std::int32_t>(sketch_cells_max) / rows));
  CountsketchSettings settings{.shape = {.rows = static_cast<std::uint32_t>(rows),
                                         .columns = static_cast<std::uint32_t>(columns)},
                               .k = k_otherwise(static_cast<std::uint32_t>(columns)),
                               .is_summed = !parts.error_feedback,
                               .has_feedback = parts.error_feedback};
  for (const auto& [key, value] : parts.settings) {
    if (key == "recovery") {
      if (value != "own" && value != "sum")
        return wrong(parts.whole, value, "recovery is own or sum");
      settings.is_summed = value == "sum";
      if (!settings.is_summed || !settings.has_feedback) continue;
      return wrong(parts.whole, value,
                   "with +ef and delta+ a client must know what the server adds: recovery=own, "
                   "which it is when not said");
    }
    if (key != "k") return wrong(parts.whole, key, "countsketch has the settings k and recovery");
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

}  // namespace fl
