// SPDX-License-Identifier: Apache-2.0
// Compares codecs on three vectors: bits per value, error, and speed relative to a copy of the
// values. Uses one core and takes the best of several runs. See --help.
#include "kernels/generic/philox.hpp"
#include "kernels/kernels.hpp"
#include "server/sums/accumulator.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/codec/spec/table.hpp"
#include "shared/params/model_table.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/support/distortion.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace fl;
using namespace fl::codec;
using namespace fl::server;

constexpr std::uint64_t seed = 1;
// Differs from `seed`, so that the values are independent of the codecs' random numbers.
constexpr std::uint64_t values_seed = 2;
constexpr std::size_t synthetic_values = 4 << 20;
// Near the sigma of a real update, so that thresholds and the range of fp16 act alike on all three.
constexpr float sigma = 0.01f;

struct Vector {
  std::string name;
  Layout layout;
  std::vector<float> x;
  double copy_seconds = std::numeric_limits<double>::infinity();
};

struct Measured {
  double bits = 0;  // Bits of the payload for each value.
  double nmse = 0;
  // For one pass over the vector.
  double encode_seconds = std::numeric_limits<double>::infinity();
  double decode_seconds = std::numeric_limits<double>::infinity();
  double add_seconds = std::numeric_limits<double>::infinity();
};

struct Row {
  std::string spec;
  std::shared_ptr<const Codec> codec;
  double bias_share;
  std::vector<Measured> of;  // One for each vector.

  // The smallest intended bias is that of terngrad's clip, with a share of 0.002.
  [[nodiscard]] bool is_biased() const { return bias_share > 5e-4; }
};

// A vector of n values; if n is a power of two, a matrix for low-rank codecs, square if possible.
Vector matrix_vector(std::string name, std::size_t n) {
  const std::size_t rows = std::has_single_bit(n) ? std::size_t{1} << std::countr_zero(n) / 2 : n;
  const TensorSpec tensor{"w",
                          {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(n / rows)}};
  return {std::move(name), Layout::make({tensor}).value(), std::vector<float>(n)};
}

Vector gaussian_vector(std::size_t n) {
  Vector out = matrix_vector("gaussian", n);
  kernels().gaussian(values_seed, 0, 0, out.x.data(), n);
  for (float& v : out.x) v *= sigma;
  return out;
}

Vector laplace_vector(std::size_t n) {
  Vector out = matrix_vector("laplace", n);
  std::uint32_t words[philox::line_elements];
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t in_line = i % philox::line_elements;
    if (in_line == 0) philox::fill_line(values_seed, 1, i / philox::line_elements, words);
    // The lowest bit is the sign, the others are a uniform number in (0, 1).
    const double uniform = ((words[in_line] >> 1) + 0.5) * 0x1p-31;
    const double magnitude = -std::log(uniform) / std::sqrt(2.0);
    out.x[i] = static_cast<float>(words[in_line] & 1 ? -magnitude : magnitude) * sigma;
  }
  return out;
}

std::vector<float> read_lenet(const Layout& layout, const std::string& path) {
  std::vector<float> out(layout.elements());
  const auto file = posix_files().open(path, OpenMode::read).value();
  read_safetensors(*file, layout, out).value();
  return out;
}

// One path is an update; two paths are the checkpoints before and after it.
Vector update_vector(const std::vector<std::string>& paths) {
  Vector out{"lenet update", builtin_layout("lenet").value(), {}};
  out.x = read_lenet(out.layout, paths.back());
  if (paths.size() == 2) {
    const std::vector<float> before = read_lenet(out.layout, paths.front());
    std::ranges::transform(out.x, before, out.x.begin(), std::minus<>());
  }
  return out;
}

void decode(const std::vector<std::byte>& payload, const Layout& layout, std::vector<float>& out) {
  SpanSource source(payload);
  PayloadReader::open(source, payload.size(), layout).value().decode_all(out).value();
}

// Adds the update as a server does.
void add(const std::vector<std::byte>& payload, const Layout& layout, Accumulator& sums) {
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  static_cast<void>(sums.add(reader, 1).value());
}

// Runs work() `repeats` times and lowers `best` to the mean seconds of a run.
void time_into(double& best, std::size_t repeats, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < repeats; ++i) work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  best = std::min(best, took.count() / static_cast<double>(repeats));
}

// Measures once more and keeps the fastest times so far.
void measure(const Codec& codec, Vector& vector, Measured& measured) {
  const std::size_t n = vector.x.size();
  const std::size_t repeats = std::max<std::size_t>(1, (1 << 20) / n);
  std::vector<float> out(n);
  std::vector<std::byte> payload;
  const auto encode = [&] {
    VectorSink sink(payload);
    payload.resize(codec.encode(vector.layout, vector.x, seed, sink).value());
  };
  encode();  // Allocates the payload's memory.
  measured.bits = 8.0 * static_cast<double>(payload.size()) / static_cast<double>(n);
  Accumulator sums(vector.layout, 1 << 20, seed, codec.summed_sketches(vector.layout));
  // The four take turns, so that a busy machine slows all of them alike.
  for (int turn = 0; turn < 2; ++turn) {
    time_into(vector.copy_seconds, repeats,
              [&] { std::memcpy(out.data(), vector.x.data(), n * sizeof(float)); });
    time_into(measured.encode_seconds, repeats, encode);
    time_into(measured.decode_seconds, repeats, [&] { decode(payload, vector.layout, out); });
    time_into(measured.add_seconds, repeats, [&] { add(payload, vector.layout, sums); });
  }
  measured.nmse = testing::nmse(vector.x, out);
}

// The share of the mean square error that is the square of a bias, which no averaging removes. The
// squared mean error of `seeds` runs is bias^2 + variance / seeds; this is solved for bias^2.
double bias_share(const Codec& codec) {
  constexpr int seeds = 256;
  const Vector vector = gaussian_vector(block_elements_default);
  std::vector<double> sums(vector.x.size());
  std::vector<float> out(vector.x.size());
  std::vector<std::byte> payload;
  double squares = 0;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    VectorSink sink(payload);
    payload.resize(codec.encode(vector.layout, vector.x, i, sink).value());
    decode(payload, vector.layout, out);
    for (std::size_t k = 0; k < out.size(); ++k) {
      const double error = static_cast<double>(out[k]) - vector.x[k];
      sums[k] += error;
      squares += error * error;
    }
  }
  if (squares == 0) return 0;
  double square_of_sums = 0;
  for (const double sum : sums) square_of_sums += sum * sum;
  return (square_of_sums / squares - 1) / (seeds - 1);
}

std::vector<std::string> default_specs() {
  std::vector<std::string> specs{
      "none",
      "lossless",
      "fp16",
      "bf16",
      "qsgd:127",
      "qsgd:7",
      "qsgd:1",
      "kbit:8",
      "kbit:4",
      "kbit:4,mode=affine",
      "kbit:2",
      "ecuq:4",
      "ecuq:2",
      "ecuq:1",
      "ecuq:0.25+ef",
      "ecuq:0.1+ef",
      "eden:2",
      "terngrad",
      "sign",
      "topk:0.05+qsgd:1",
      "topk:0.01",
      "topk:0.01+qsgd:8",
      "topk:0.001",
      "randk:0.1",
      "randk:0.01",
      "randk:0.1+qsgd:7",
      "threshold:0.025",
  };
  // Add the example of each codec that the list above leaves out.
  for (const CodecRow& row : codec_rows()) {
    const auto is_of_row = [&](const std::string& spec) {
      return spec.substr(0, spec.find_first_of(":,+")) == row.name;
    };
    if (std::ranges::none_of(specs, is_of_row)) specs.emplace_back(row.example);
  }
  return specs;
}

std::vector<Row> rows_of(std::span<const std::string> specs, std::size_t vectors) {
  std::vector<Row> rows;
  for (const std::string& spec : specs) {
    const auto codec = parse_codec(spec);
    if (codec) {
      rows.push_back({spec, *codec, bias_share(**codec), std::vector<Measured>(vectors)});
    } else {
      const std::string why = codec.error().message();
      fmt::print("skipped {}: {}\n", spec, why.substr(0, why.find('\n')));
    }
  }
  return rows;
}

void print_head(std::span<const Vector> vectors) {
  fmt::print("{:<25}{:<70}{:<19}{}\n", "", fmt::format("Gaussian, {} values", vectors[0].x.size()),
             "Laplace, as many",
             vectors.size() < 3 ? "LeNet's update" : fmt::format("LeNet, {}", vectors[2].x.size()));
  constexpr auto head =
      "{:<18} {:<6} {:>7} {:>8} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}   {:>7} {:>8}   {:>7} "
      "{:>8}\n";
  fmt::print(head, "", "", "", "", "above", "encode", "of", "decode", "of", "add", "of", "", "", "",
             "");
  fmt::print(head, "codec", "biased", "bits", "NMSE", "bound", "GB/s", "memcpy", "GB/s", "memcpy",
             "GB/s", "memcpy", "bits", "NMSE", "bits", "NMSE");
}

// Bits above the rate-distortion bound of the Gaussian vector; infinite if the error is 0.
double above_bound(const Measured& m) { return testing::bits_above_bound(m.bits, m.nmse); }

// Gigabytes of fp32 values per second.
double gigabytes_per_second(const Vector& vector, double seconds) {
  return static_cast<double>(vector.layout.bytes()) / seconds * 1e-9;
}

void print_row(const Row& row, std::span<const Vector> vectors) {
  const Measured& m = row.of[0];
  fmt::print("{:<18} {:<6} {:>7.3f} {:>8.2e} {:>7}", row.spec, row.is_biased() ? "yes" : "no",
             m.bits, m.nmse, m.nmse == 0 ? "-" : fmt::format("{:.3f}", above_bound(m)));
  for (const double seconds : {m.encode_seconds, m.decode_seconds, m.add_seconds}) {
    fmt::print(" {:>6.2f} {:>6.2f}", gigabytes_per_second(vectors[0], seconds),
               vectors[0].copy_seconds / seconds);
  }
  for (const Measured& other : std::span(row.of).subspan(1)) {
    fmt::print("   {:>7.3f} {:>8.2e}", other.bits, other.nmse);
  }
  fmt::print("{}\n", row.of.size() < 3 ? "   not measured" : "");
}

nlohmann::json to_json(const Row& row, std::span<const Vector> vectors) {
  nlohmann::json out{
      {"codec", row.spec}, {"is_biased", row.is_biased()}, {"bias_share", row.bias_share}};
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const Measured& m = row.of[i];
    nlohmann::json& one = out[vectors[i].name];
    one = {{"bits", m.bits},
           {"nmse", m.nmse},
           {"encode_gb_per_s", gigabytes_per_second(vectors[i], m.encode_seconds)},
           {"decode_gb_per_s", gigabytes_per_second(vectors[i], m.decode_seconds)},
           {"encode_of_memcpy", vectors[i].copy_seconds / m.encode_seconds},
           {"decode_of_memcpy", vectors[i].copy_seconds / m.decode_seconds},
           {"add_gb_per_s", gigabytes_per_second(vectors[i], m.add_seconds)},
           {"add_of_memcpy", vectors[i].copy_seconds / m.add_seconds}};
    if (i == 0 && m.nmse > 0) one["bits_above_bound"] = above_bound(m);
  }
  return out;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw std::runtime_error("can't write " + path);
}

constexpr auto about =
    R"(Compares codecs on a Gaussian and a Laplace vector and on an update of LeNet.

bits    a value, of the whole payload
NMSE    |x - decoded|^2 / |x|^2
above   bits beyond the rate-distortion bound of a Gaussian, log2(1 / NMSE) / 2
biased  whether the mean over 256 seeds misses x, measured on the Gaussian
add     to the sums of a round, from the payload
GB/s    of fp32 values, and the ratio to a memcpy of them: one core, best of --runs

The update is that of one client in one round on Fashion-MNIST, from tests/bench/data. Another:
run ./dev demo, then --update demo/server/checkpoints/round-0000{15,16}.safetensors)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{about, "codecs_bench"};
  std::vector<std::string> specs = default_specs();
  std::vector<std::string> update{FL_BENCH_DATA "/lenet_update.safetensors"};
  std::string json_file;
  int runs = 5;
  app.add_option("--spec", specs, "A codec to measure; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* const own_update =
      app.add_option("--update", update,
                     "safetensors files of LeNet: an update, or the models before and after it")
          ->expected(1, 2);
  app.add_option("--json", json_file,
                 "Also write the figures to this file (plot_codecs.py draws them)");
  app.add_option("--runs", runs, "Number of runs; the fastest counts")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<Vector> vectors{gaussian_vector(synthetic_values),
                                laplace_vector(synthetic_values)};
    if (*own_update || std::filesystem::exists(update[0])) vectors.push_back(update_vector(update));
    std::vector<Row> rows = rows_of(specs, vectors.size());
    if (rows.empty()) return 1;
    // Measure all codecs in each run, so that a short slowdown of the machine spoils no codec.
    for (int run = 0; run < runs; ++run) {
      for (Row& row : rows) {
        for (std::size_t i = 0; i < vectors.size(); ++i) {
          measure(*row.codec, vectors[i], row.of[i]);
        }
      }
    }
    print_head(vectors);
    nlohmann::json json = nlohmann::json::array();
    for (const Row& row : rows) {
      print_row(row, vectors);
      json.push_back(to_json(row, vectors));
    }
    fmt::print("memcpy of the Gaussian: {:.1f} GB/s\n",
               gigabytes_per_second(vectors[0], vectors[0].copy_seconds));
    if (!json_file.empty()) write_text(json_file, json.dump(2) + "\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "codecs_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
