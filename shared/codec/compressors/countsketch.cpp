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
  SketchShape shape;  // At least 3 rows and 8 columns.
  std::uint32_t k;    // How many values are sketched, 1 to the number of columns.
  bool is_summed;     // Not recovery=own: a server may add up the sketches.
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

/// The sketch of one block.
struct Sketch {
  std::vector<float> cells;
  float least = 0;  // What least_that_counts() returned.
};

}  // namespace

/// Sketches that plan() made with a device's estimates.
struct SketchPlan {
  std::map<std::uint64_t, Sketch> of_blocks;  // By Block::flat.

  /// The sketch of a block; null if plan() did not make it.
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

  /// Most of a block's time is reading its sketch, so the device does that. It uses only the cells.
  /// The copy of the vector to the device is not needed, but takes only a thirtieth of the time
  /// that is saved.
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
  /// Adds the sketches of these blocks to `plan`. Returns false if the device gave up.
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
      // The error comes when the block is encoded.
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

  /// Sketches the k largest magnitudes. Their indices are written to `room`.
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

}  // namespace fl
