// SPDX-License-Identifier: Apache-2.0
#include "client/learn/precision.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace {

using fl::AdaptivePrecision;
using fl::NumberFormat;

std::string error_of(const std::string& text) {
  const auto plan = fl::parse_precision(text);
  return plan ? "none" : plan.error().message();
}

void note_low(AdaptivePrecision& adaptive, int steps, double norm) {
  for (int step = 0; step < steps; ++step) {
    REQUIRE(adaptive.is_low());
    adaptive.note_low(norm, {.is_odd = adaptive.is_odd(norm)});
  }
}

/// The steps in fp32 that come now.
int pause_of(AdaptivePrecision& adaptive, double norm) {
  int steps = 0;
  for (; !adaptive.is_low(); ++steps) adaptive.note_full(norm);
  return steps;
}

}  // namespace

TEST_CASE("a precision is a format, and formats of layers by pattern, the first that fits") {
  const auto plan = fl::parse_precision("bf16,block?.norm*=fp32,*norm*=fp16,logits=fp32").value();
  CHECK_FALSE(plan.is_adaptive);
  CHECK(plan.format_of("fc1") == NumberFormat::bf16);
  CHECK(plan.format_of("block1.norm2") == NumberFormat::fp32);
  CHECK(plan.format_of("block10.norm2") == NumberFormat::fp16);
  CHECK(plan.format_of("norm") == NumberFormat::fp16);
  CHECK(plan.format_of("logits") == NumberFormat::fp32);
  CHECK(plan.format_of("logits2") == NumberFormat::bf16);
  CHECK(plan.has(NumberFormat::fp16));
  CHECK_FALSE(fl::parse_precision("bf16,a=fp32")->has(NumberFormat::fp16));
  CHECK(fl::parse_precision("fp32")->otherwise == NumberFormat::fp32);
  for (const char* const text : {"adaptive", "adaptive:bf16"}) {
    CHECK(fl::parse_precision(text)->is_adaptive);
    CHECK(fl::parse_precision(text)->otherwise == NumberFormat::bf16);
  }
  CHECK(fl::parse_precision("adaptive:fp16,fc=fp32")->otherwise == NumberFormat::fp16);
}

TEST_CASE("an error about a precision says what there is") {
  for (const char* const text : {"", "fp8", "bf16,a=fp8", "bf16,a=adaptive", "adaptive:fp32",
                                 "adaptive:", "fp16:bf16", "BF16"}) {
    CAPTURE(text);
    CHECK(error_of(text).find("fp32, bf16, fp16") != std::string::npos);
  }
  for (const char* const text : {"bf16,", "bf16,fp32", "bf16,=fp32", "bf16,,a=fp32"}) {
    CAPTURE(text);
    CHECK(error_of(text).find("PATTERN=FORMAT") != std::string::npos);
  }
  std::string many = "bf16";
  for (int i = 0; i < 101; ++i) many += ",a=fp32";
  CHECK(error_of(many).find("100") != std::string::npos);
}

TEST_CASE("a pattern that fits no layer is an error that names the layers") {
  const std::vector<std::string> layers = {"conv1", "fc1"};
  CHECK(fl::parse_precision("bf16,fc*=fp32")->check_layers(layers).has_value());
  const auto checked = fl::parse_precision("bf16,fc*=fp32,*norm*=fp32")->check_layers(layers);
  REQUIRE(checked.has_error());
  CHECK(checked.error().message().find("\"*norm*\"; its layers are conv1, fc1") !=
        std::string::npos);
}

TEST_CASE("four overflows in a row make the next steps fp32, twice as many each time") {
  AdaptivePrecision adaptive;
  const auto overflow = [&](int times) {
    for (int i = 0; i < times; ++i) adaptive.note_low(1, {.has_overflowed = true});
  };
  overflow(3);
  CHECK(adaptive.is_low());
  note_low(adaptive, 1, 1);
  overflow(3);
  CHECK(adaptive.is_low());
  overflow(1);
  CHECK(pause_of(adaptive, 1) == 16);
  overflow(3);
  CHECK(adaptive.is_low());
  overflow(1);
  CHECK(pause_of(adaptive, 1) == 32);
  for (int i = 0; i < 8; ++i) {
    overflow(4);
    (void)pause_of(adaptive, 1);
  }
  overflow(4);
  CHECK(pause_of(adaptive, 1) == 1024);
}

TEST_CASE("a gradient much longer or shorter than those before makes the next steps fp32") {
  for (const double norm : {17.0, 0.2}) {
    AdaptivePrecision adaptive;
    CHECK_FALSE(adaptive.is_odd(1e9));  // Nothing is known yet.
    note_low(adaptive, 8, 2);
    CHECK_FALSE(adaptive.is_odd(15));
    CHECK_FALSE(adaptive.is_odd(0.3));
    CHECK(adaptive.is_odd(norm));
    note_low(adaptive, 1, norm);
    CHECK(pause_of(adaptive, norm) == 16);
    CHECK_FALSE(adaptive.is_odd(norm));  // By now this norm is usual.
  }
}

TEST_CASE("a norm that is not finite is not counted") {
  AdaptivePrecision adaptive;
  note_low(adaptive, 8, 2);
  adaptive.note_low(std::numeric_limits<double>::infinity(), {.has_overflowed = true});
  CHECK_FALSE(adaptive.is_odd(2));
  CHECK(adaptive.is_odd(17));
}
