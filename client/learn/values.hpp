// SPDX-License-Identifier: Apache-2.0
// How a trainer gets the weights of a model and gives what it made of them: in stretches of a flat
// fp32 vector, so that a model may be larger than the memory. The owner of the vectors implements
// these interfaces; the trainer calls them from one thread at a time.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/params/write_values.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace fl {

class ValueSource {
 public:
  virtual ~ValueSource() = default;

  [[nodiscard]] virtual std::uint64_t elements() const = 0;
  /// Copies the values from element `first` on into `out`. They can be read in any order, and
  /// again.
  [[nodiscard]] virtual Result<void> read(std::uint64_t first, std::span<float> out) const = 0;
  /// All values, if they lie one after the other in memory or in a mapped file; else empty. Valid
  /// as long as the source.
  [[nodiscard]] virtual std::span<const float> whole() const { return {}; }
};

class ValueSink {
 public:
  virtual ~ValueSink() = default;

  /// Takes the values from element `first` on. In any order; each element once.
  [[nodiscard]] virtual Result<void> write(std::uint64_t first, std::span<const float> values) = 0;
  /// The memory of all values, if there is such: then they may be written there instead. Else
  /// empty.
  [[nodiscard]] virtual std::span<float> whole() { return {}; }
};

/// Writes to a sink, which must outlive the function.
[[nodiscard]] inline WriteValues write_to(ValueSink& sink) {
  return [&sink](std::uint64_t first, std::span<const float> values) {
    return sink.write(first, values);
  };
}

/// Values in memory. `values` must outlive it.
class SpanValues final : public ValueSource {
 public:
  explicit SpanValues(std::span<const float> values) : values_(values) {}
  [[nodiscard]] std::uint64_t elements() const override { return values_.size(); }
  [[nodiscard]] Result<void> read(std::uint64_t first, std::span<float> out) const override {
    FL_ASSERT(first + out.size() <= values_.size());
    copy_span(values_.subspan(first, out.size()), out);
    return {};
  }
  [[nodiscard]] std::span<const float> whole() const override { return values_; }

 private:
  std::span<const float> values_;
};

/// All values of a source. `room` holds them if they are not together.
[[nodiscard]] inline Result<std::span<const float>> whole_of(const ValueSource& source,
                                                             std::vector<float>& room) {
  if (const auto values = source.whole(); !values.empty()) return values;
  room.resize(source.elements());
  FL_CHECK(source.read(0, room));
  return std::span<const float>(room);
}

/// Fills a sink by work(span of all its values): in its memory, or in `room`, which is written to
/// it afterwards. `elements`: how many it takes. Returns what `work` returns, a Result.
template <class Work>
[[nodiscard]] auto fill_whole(ValueSink& sink, std::uint64_t elements, std::vector<float>& room,
                              const Work& work) -> decltype(work(std::span<float>())) {
  if (const auto memory = sink.whole(); !memory.empty()) {
    FL_ASSERT(memory.size() == elements);
    return work(memory);
  }
  room.resize(elements);
  auto done = work(std::span<float>(room));
  if (!done) return done;
  FL_CHECK(sink.write(0, room));
  return done;
}

}  // namespace fl
