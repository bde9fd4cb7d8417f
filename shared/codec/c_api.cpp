// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/c_api.h"

#include "shared/codec/encode/codec.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/codec/spec/table.hpp"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

struct flc_coder {
  fl::Layout layout;
  fl::codec::CodecState state;
  std::vector<std::byte> payload;
};

namespace {

using namespace fl;
using namespace fl::codec;

thread_local std::string last_error;

/// Returns the value of work(), a Result, or `failed` after an error, whose message it keeps for
/// flc_error(). Catches exceptions, because C has none.
template <class T, class Work>
T guarded(T failed, const Work& work) noexcept {
  try {
    auto done = work();
    if (done) return *done;
    last_error = done.error().message();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return failed;
}

/// The name that a line of a layout has with escapes.
Result<std::string> parse_name(std::string_view text) {
  constexpr std::string_view escapes = "sn\\";
  constexpr std::string_view meanings = " \n\\";
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      name += text[i];
      continue;
    }
    const std::size_t which = ++i < text.size() ? escapes.find(text[i]) : escapes.npos;
    if (which == escapes.npos)
      return Error(Errc::invalid_input,
                   "a backslash in the name " + std::string(text) + " must be \\\\");
    name += meanings[which];
  }
  return name;
}

Result<std::vector<TensorSpec>> parse_layout(std::string_view text) {
  std::vector<TensorSpec> specs;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto word = [&line] {
      const auto space = std::min(line.find(' '), line.size());
      const std::string_view first = line.substr(0, space);
      line.remove_prefix(std::min(space + 1, line.size()));
      return first;
    };
    TensorSpec& spec = specs.emplace_back();
    FL_TRY(spec.name, parse_name(word()));
    while (!line.empty()) {
      const std::string_view size = word();
      std::int64_t& number = spec.shape.emplace_back();
      const auto [at, failed] = std::from_chars(size.data(), size.data() + size.size(), number);
      if (failed != std::errc{} || at != size.data() + size.size())
        return Error(Errc::invalid_input,
                     "'" + std::string(size) + "' is not a size, in the line of " + spec.name);
    }
  }
  return specs;
}

/// Calls use(begin, elements) for each tensor that is not a statistic.
template <class Use>
void for_each_parameter(const Layout& layout, const Use& use) {
  for (const auto& tensor : layout.tensors()) {
    if (!is_statistic(tensor.name)) use(tensor.offset, tensor.elements);
  }
}

}  // namespace

uint32_t flc_version() { return FLC_VERSION; }

const char* flc_error() { return last_error.c_str(); }

const char* flc_names() {
  static const std::string names = [] {
    std::string all;
    for (const CodecRow& row : codec_rows()) {
      if (row.name == delta_codec) continue;
      if (!all.empty()) all += ' ';
      all += row.name;
    }
    return all;
  }();
  return names.c_str();
}

int32_t flc_keeps(const char* spec) {
  return guarded<int32_t>(-1, [&]() -> Result<int32_t> {
    FL_TRY(const auto codec, parse_codec(spec));
    return (codec->error_feedback() ? FLC_RESIDUAL : 0) |
           (codec->momentum() > 0 ? FLC_VELOCITY : 0);
  });
}

flc_coder* flc_coder_new(const char* layout) {
  return guarded<flc_coder*>(nullptr, [&]() -> Result<flc_coder*> {
    FL_TRY(const auto specs, parse_layout(layout));
    FL_TRY(Layout made, Layout::make(specs));
    return new flc_coder{std::move(made), {}, {}};
  });
}

void flc_coder_free(flc_coder* coder) { delete coder; }

uint64_t flc_coder_elements(const flc_coder* coder) { return coder->layout.elements(); }

const uint8_t* flc_coder_encode(flc_coder* coder, const char* spec, uint32_t round, uint64_t seed,
                                uint64_t shared_seed, const float* update, float* residual,
                                float* velocity, int32_t threads, uint64_t* bytes, double* nmse) {
  return guarded<const uint8_t*>(nullptr, [&]() -> Result<const uint8_t*> {
    const Layout& layout = coder->layout;
    FL_TRY(const auto codec, parse_codec(spec, round));
    if (codec->is_delta())
      return Error(
          Errc::invalid_input,
          "delta+ codecs need the last accepted update, which this interface doesn't keep");
    if ((codec->error_feedback() && residual == nullptr) ||
        (codec->momentum() > 0 && velocity == nullptr))
      return Error(
          Errc::invalid_input,
          codec->canonical() + " needs the residual or velocity that flc_keeps() asks for");
    const std::size_t elements = layout.elements();
    std::vector<float> x(update, update + elements);
    std::vector<float> speed;  // The new velocity. `velocity` changes only if all succeeds.
    if (codec->momentum() > 0) {
      speed.assign(velocity, velocity + elements);
      for_each_parameter(layout, [&](std::size_t begin, std::size_t n) {
        add_velocity(std::span(x).subspan(begin, n), std::span(speed).subspan(begin, n),
                     codec->momentum());
      });
    }
    if (codec->error_feedback()) add_residual(x, {residual, elements}, codec->residual_kept());

    coder->payload.clear();
    VectorSink sink(coder->payload);
    FL_TRY(*bytes, codec->encode(layout, x, CodeInputs(seed, shared_seed), sink,
                                 block_elements_of_codec, &coder->state, threads));
    SpanSource source(coder->payload);
    FL_TRY(auto reader, PayloadReader::open(source, *bytes, layout));
    if (codec->momentum() > 0) FL_CHECK(stop_sent(speed, reader, threads));
    CodingError error;
    if (codec->error_feedback()) {
      FL_TRY(error, keep_residual(x, reader, x, threads));
    } else if (!codec->is_exact()) {
      FL_TRY(error, coding_error(x, reader, threads));
    }
    if (codec->error_feedback()) std::ranges::copy(x, residual);
    if (codec->momentum() > 0) std::ranges::copy(speed, velocity);
    if (nmse != nullptr) *nmse = error.nmse();
    return reinterpret_cast<const uint8_t*>(coder->payload.data());
  });
}

int32_t flc_coder_decode(flc_coder* coder, const uint8_t* payload, uint64_t bytes, float* out,
                         int32_t threads) {
  return guarded<int32_t>(-1, [&]() -> Result<int32_t> {
    SpanSource source({reinterpret_cast<const std::byte*>(payload), bytes});
    FL_TRY(auto reader, PayloadReader::open(source, bytes, coder->layout));
    FL_CHECK(reader.decode_all({out, coder->layout.elements()}, threads));
    return 0;
  });
}

int32_t flc_coder_take_back(flc_coder* coder, const uint8_t* payload, uint64_t bytes,
                            float* residual, int32_t threads) {
  return guarded<int32_t>(-1, [&]() -> Result<int32_t> {
    const std::size_t elements = coder->layout.elements();
    SpanSource source({reinterpret_cast<const std::byte*>(payload), bytes});
    FL_TRY(auto reader, PayloadReader::open(source, bytes, coder->layout));
    // Statistics are left out: the next update does not need the values that this one had.
    std::vector<float> sum(residual, residual + elements);
    FL_CHECK(add_decoded(sum, reader, threads));
    for_each_parameter(coder->layout, [&](std::size_t begin, std::size_t n) {
      std::copy_n(sum.data() + begin, n, residual + begin);
    });
    return 0;
  });
}
