// SPDX-License-Identifier: Apache-2.0
// Codec specs: which specs parse, their canonical forms, and the place at which an error's caret
// points.
#include "shared/base/limits.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/codec/codec_support.hpp"

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

// The part of the spec that the error names: from where it is wrong to its end.
std::string pointed_at(const std::string& spec) {
  const auto parsed = parse_codec(spec);
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().code() == Errc::invalid_input);
  const std::string message = parsed.error().message();
  CHECK(message.find('\n') == std::string::npos);
  const std::string whole =
      "codec \"" + (spec.size() > 256 ? spec.substr(0, 256) + "..." : spec) + "\"";
  REQUIRE(message.starts_with(whole));
  const std::string more = message.substr(whole.size());
  if (more.starts_with(", at its end: ")) return "";
  if (more.starts_with(": ")) return spec;
  const std::string at = ", at \"";
  REQUIRE(more.starts_with(at));
  return more.substr(at.size(), more.find("\": ") - at.size());
}

}  // namespace

TEST_CASE("canonical specs parse to themselves") {
  for (const std::string& spec : specs_to_test()) {
    CHECK(codec_of(spec)->canonical() == spec);
    CHECK_FALSE(codec_of(spec)->error_feedback());
    // With +ef the canonical form leaves these settings out: +ef itself chooses ecuq's mode and a
    // sketch's recovery, and norm and clip have no meaning with it.
    const bool ef_says_it = spec.ends_with(",mode=centroid") || spec.ends_with(",norm=l2") ||
                            spec.ends_with(",recovery=own") ||
                            spec.find(",clip=") != std::string::npos;
    const std::string shortest = ef_says_it ? spec.substr(0, spec.rfind(',')) : spec;
    CHECK(codec_of(spec + "+ef")->canonical() == shortest + "+ef");
    CHECK(codec_of(spec + "+ef")->error_feedback());
  }
  CHECK(codec_of("qsgd:127,norm=max,bucket=512")->canonical() == "qsgd:127");
  CHECK(codec_of("qsgd:007,norm=l2,bucket=9+ef")->canonical() == "qsgd:7,bucket=9+ef");
  CHECK(codec_of("terngrad,clip=1+ef")->canonical() == "terngrad+ef");
  CHECK(codec_of("kbit:4,mode=symmetric,scale=tensor")->canonical() == "kbit:4");
  CHECK(codec_of("kbit:4,mode=affine,scale=channel")->canonical() ==
        "kbit:4,scale=channel,mode=affine");
  CHECK(codec_of("terngrad,clip=2.50")->canonical() == "terngrad");
  CHECK(codec_of("terngrad,clip=1e-1")->canonical() == "terngrad,clip=0.1");
  CHECK(codec_of("ecuq:2bit,mode=dither")->canonical() == "ecuq:2");
  CHECK(codec_of("ecuq:2.50bit+ef")->canonical() == "ecuq:2.5+ef");
  CHECK(codec_of("ecuq:2,mode=dither+ef")->canonical() == "ecuq:2,mode=dither+ef");
  CHECK(codec_of("topk:0.1+ecuq:2,mode=centroid+ef")->canonical() == "topk:0.1+ecuq:2+ef");
}

TEST_CASE("delta+ uses any codec as with error feedback, but keeps no residual") {
  for (const std::string& spec : specs_to_test()) {
    const auto delta = codec_of("delta+" + spec);
    const std::string under_feedback = codec_of(spec + "+ef")->canonical();
    CHECK(delta->canonical() == "delta+" + under_feedback.substr(0, under_feedback.size() - 3));
    CHECK(delta->is_delta());
    CHECK_FALSE(delta->error_feedback());
    CHECK_FALSE(delta->is_exact());
    CHECK(delta->names().front() == "delta");
  }
  CHECK_FALSE(codec_of("qsgd:4")->is_delta());
  CHECK(codec_of("delta+*.bias=none;*=topk:0.01+qsgd:4")->canonical() ==
        "delta+*.bias=none;*=topk:0.01+qsgd:4");
  CHECK(pointed_at("delta+qsgd:4+ef") == "ef");
  CHECK(pointed_at("delta+topk:0.1+dgc:0.9") == "dgc:0.9");
  CHECK(pointed_at("delta+delta+qsgd:4") == "delta+qsgd:4");
  CHECK(pointed_at("delta") == "delta");
  CHECK(pointed_at("delta+") == "");
}

TEST_CASE("a selector can be combined with a quantizer, and rules with each other") {
  const auto canonical = [](std::string_view spec) { return codec_of(spec)->canonical(); };
  for (const char* same :
       {"topk:0.01", "topk:0.01+qsgd:4+ef", "randk:0.1+fp16", "topk:1e-05", "topk:1",
        "*.bias=none;conv*=qsgd:8;*=topk:0.01+qsgd:4", "*=qsgd:8", "*=none,dense_below=0+ef",
        "a?=topk:0.5,scope=global,dense_below=7+qsgd:4,bucket=9,norm=l2;*=threshold:1000000"}) {
    CHECK(canonical(same) == same);
  }
  CHECK(canonical("threshold:0.001+none") == "threshold:0.001+none");
  CHECK(canonical("threshold:0.001+lossless") == "threshold:0.001");
  CHECK(canonical("topk:0.010,dense_below=1024,scope=layer") == "topk:0.01");
  CHECK(canonical("powersgd:4,min_ratio=2.0") == "powersgd:4");
  CHECK(canonical("gradzip:4,min_ratio=1e6+ef") == "gradzip:4,min_ratio=1000000+ef");
  CHECK(canonical("gradzip:4,projection=own,min_ratio=2") == "gradzip:4,projection=own");
  CHECK(canonical("gradzip:4,projection=shared") == "gradzip:4");
  CHECK(canonical("countsketch:05x80,k=10+ef") == "countsketch:5x80+ef");
  CHECK(canonical("countsketch:5x80,recovery=own+ef") == "countsketch:5x80+ef");
  CHECK(canonical("countsketch:5x80,recovery=sum") == "countsketch:5x80");
  CHECK(canonical("countsketch:5x80,recovery=own,k=9") == "countsketch:5x80,k=9,recovery=own");
  CHECK(canonical("threshold:1e5") == "threshold:100000");
  CHECK(canonical("threshold:-0") == "threshold:0");
  CHECK(canonical("qsgd:8,dense_below=0") == "qsgd:8");
  CHECK(canonical("*=qsgd:8,dense_below=1024") == "*=qsgd:8");
}

TEST_CASE("dgc is error feedback with momentum, for all rules together") {
  for (const char* same : {"topk:0.001+dgc:0.9", "randk:0.1+kbit:4+dgc:0.5",
                           "*.bias=none;a=topk:0.1+ecuq:2;*=kbit:4+dgc:0.75"}) {
    const auto codec = codec_of(same);
    CHECK(codec->canonical() == same);
    CHECK(codec->error_feedback());
    CHECK(codec->momentum() > 0);
  }
  CHECK(codec_of("topk:0.001+dgc:0.9")->momentum() == 0.9f);
  CHECK(codec_of("topk:0.10+dgc:9e-1")->canonical() == "topk:0.1+dgc:0.9");
  CHECK(codec_of("topk:0.1+ef")->momentum() == 0);
  CHECK(codec_of("topk:0.1")->momentum() == 0);
  CHECK(parse_codec("topk:0.001,from=0.25,over=4+dgc:0.9", 1).value()->canonical() ==
        "topk:0.25+dgc:0.9");
}

TEST_CASE("errors in composed specs point at the wrong part") {
  CHECK(pointed_at("topk") == "");
  CHECK(pointed_at("topk+qsgd:4") == "+qsgd:4");
  CHECK(pointed_at("topk:0") == "0");
  CHECK(pointed_at("topk:1.01+qsgd:4") == "1.01+qsgd:4");
  CHECK(pointed_at("topk:nan") == "nan");
  CHECK(pointed_at("topk:0.1x") == "0.1x");
  CHECK(pointed_at("topk:0.1,scope=all") == "all");
  CHECK(pointed_at("topk:0.1,bucket=3") == "bucket=3");
  CHECK(pointed_at("topk:0.1,dense_below=-1") == "-1");
  CHECK(pointed_at("topk:0.1,dense_below=0,dense_below=0") == "dense_below=0");
  CHECK(pointed_at("topk:0.1+qsgd:4,dense_below=0") == "dense_below=0");
  CHECK(pointed_at("randk:0.1,scope=layer") == "scope=layer");
  CHECK(pointed_at("randk:-0.1") == "-0.1");
  CHECK(pointed_at("threshold") == "");
  CHECK(pointed_at("ema-threshold") == "");
  CHECK(pointed_at("ema-threshold:0") == "0");
  CHECK(pointed_at("ema-threshold:0.1,scope=global") == "scope=global");
  CHECK(pointed_at("threshold:-1") == "-1");
  CHECK(pointed_at("threshold:1e7") == "1e7");
  CHECK(pointed_at("threshold:inf") == "inf");
  CHECK(pointed_at("topk:0.1+topk:0.1") == "topk:0.1");
  CHECK(pointed_at("topk:0.1+zip") == "zip");
  CHECK(pointed_at("topk:0.1+qsgd:0") == "0");
  CHECK(pointed_at("topk:0.1+") == "");
  CHECK(pointed_at("topk:0.1+qsgd:4+fp16") == "fp16");
  CHECK(pointed_at("qsgd:4+topk:0.1") == "topk:0.1");
  CHECK(pointed_at("topk:0.1+ef+qsgd:4") == "ef+qsgd:4");
  CHECK(pointed_at("+ef") == "+ef");
  CHECK(pointed_at("topk:0.1+dgc") == "");
  CHECK(pointed_at("topk:0.1+dgc:") == "");
  CHECK(pointed_at("topk:0.1+dgc:1") == "1");
  CHECK(pointed_at("topk:0.1+dgc:0") == "0");
  CHECK(pointed_at("topk:0.1+dgc:-0.5") == "-0.5");
  CHECK(pointed_at("topk:0.1+dgc:0.5,mask=no") == "0.5,mask=no");
  CHECK(pointed_at("topk:0.1+dgc:0.9+qsgd:4") == "dgc:0.9+qsgd:4");
  CHECK(pointed_at("topk:0.1+dgc:0.9+ef") == "dgc:0.9+ef");
  CHECK(pointed_at("topk:0.1+ef+dgc:0.9") == "ef+dgc:0.9");
  CHECK(pointed_at("qsgd:4+dgc:0.9") == "dgc:0.9");
  CHECK(pointed_at("a=none;*=fp16+dgc:0.9") == "dgc:0.9");

  CHECK(pointed_at("a=none") == "a=none");
  CHECK(pointed_at("a=none;b=fp16") == "b=fp16");
  CHECK(pointed_at("*=none;a=none") == "a=none");
  CHECK(pointed_at("a=none;*") == "*");
  CHECK(pointed_at("a=none;;*=none") == ";*=none");
  CHECK(pointed_at("a=none;*=none;") == "");
  CHECK(pointed_at("=none") == "=none");
  CHECK(pointed_at("none;*=none") == "none;*=none");
  CHECK(pointed_at("qsgd:4,bucket=8;*=none") == "qsgd:4,bucket=8;*=none");
  CHECK(pointed_at("a=none+ef;*=none+ef") == "ef;*=none+ef");
  CHECK(pointed_at("a=zip;*=none") == "zip;*=none");
  CHECK(pointed_at("a=;*=none") == ";*=none");
  CHECK(pointed_at("*=qsgd:4,bucket=0") == "0");
  std::string many;
  for (std::size_t i = 0; i < rules_max; ++i) many += "a=none;";
  CHECK(pointed_at(many + "*=none") == "*=none");
  CHECK(codec_of(many.substr(7) + "*=none")->canonical() == many.substr(7) + "*=none");

  // A character that is not printable is shown as an escape.
  const auto parsed = parse_codec("a\tb=none;*=none");
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().message().find("a?b=none") != std::string::npos);
  // As many patterns as a large model has layers; the error shows the beginning, and the wrong
  // part.
  std::string layers;
  for (int i = 0; i < 100; ++i) layers += "model.layers." + std::to_string(i) + ".weight=qsgd:4;";
  CHECK(codec_of(layers + "*=none")->canonical() == layers + "*=none");
  CHECK(pointed_at(layers + "*=nonee") == "nonee");
  CHECK(parse_codec(layers + "*=nonee").error().message().size() < 700);
  CHECK(parse_codec(layers + "*=nonee").error().message().ends_with("; did you mean none?"));

  // The canonical form would be too long.
  const std::string pattern(
      limits::spec_bytes_max - std::string_view("=threshold:1e5;*=none").size(), 'p');
  CHECK_FALSE(parse_codec(pattern + "=threshold:1e5;*=none").has_value());
  CHECK(parse_codec(pattern + "=threshold:1e2;*=none").has_value());
}

TEST_CASE("errors in simple specs point at the wrong part") {
  CHECK(pointed_at("qsgd:0") == "0");
  CHECK(pointed_at("qsgd:32768,bucket=4") == "32768,bucket=4");
  CHECK(pointed_at("qsgd:12x") == "12x");
  CHECK(pointed_at("qsgd:-3") == "-3");
  CHECK(pointed_at("qsgd:99999999999999999999") == "99999999999999999999");
  CHECK(pointed_at("qsgd:") == "");
  CHECK(pointed_at("qsgd") == "");
  CHECK(pointed_at("qsgd,bucket=4") == ",bucket=4");
  CHECK(pointed_at("qsgd:4,bucket=0+ef") == "0+ef");
  CHECK(pointed_at("qsgd:4,bucket=65537") == "65537");
  CHECK(pointed_at("qsgd:4,bukket=8") == "bukket=8");
  CHECK(pointed_at("qsgd:4,norm=l1") == "l1");
  CHECK(pointed_at("qsgd:4,norm") == "norm");
  CHECK(pointed_at("qsgd:4,") == "");
  CHECK(pointed_at("qsgd:4,norm=l2,norm=max") == "norm=max");
  CHECK(pointed_at("qsgd:4+fe") == "fe");
  CHECK(pointed_at("qsgd:4+ef+ef") == "ef+ef");
  CHECK(pointed_at("none:1") == "1");
  CHECK(pointed_at("fp16,bucket=1") == "bucket=1");
  CHECK(pointed_at("bf16:1") == "1");
  CHECK(pointed_at("sign,scale=tensor") == "scale=tensor");
  CHECK(pointed_at("kbit") == "");
  CHECK(pointed_at("kbit:1") == "1");
  CHECK(pointed_at("kbit:9,mode=affine") == "9,mode=affine");
  CHECK(pointed_at("kbit:4,mode=odd") == "odd");
  CHECK(pointed_at("kbit:4,scale=row") == "row");
  CHECK(pointed_at("kbit:4,clip=2") == "clip=2");
  CHECK(pointed_at("eden") == "");
  CHECK(pointed_at("eden:0") == "0");
  CHECK(pointed_at("eden:5+ef") == "5+ef");
  CHECK(pointed_at("eden:0.04") == "0.04");
  CHECK(pointed_at("eden:1.2345") == "1.2345");
  CHECK(pointed_at("eden:2,norm=l2") == "norm=l2");
  CHECK(pointed_at("powersgd") == "");
  CHECK(pointed_at("powersgd:0") == "0");
  CHECK(pointed_at("powersgd:65+ef") == "65+ef");
  CHECK(pointed_at("powersgd:2,min_ratio=0.9") == "0.9");
  CHECK(pointed_at("gradzip:2,ratio=3") == "ratio=3");
  CHECK(pointed_at("gradzip:2,projection=mine") == "mine");
  CHECK(pointed_at("powersgd:2,projection=own") == "projection=own");
  CHECK(pointed_at("gradzip:2,min_ratio=nan") == "nan");
  CHECK(pointed_at("countsketch") == "");
  CHECK(pointed_at("countsketch:5") == "5");
  CHECK(pointed_at("countsketch:4x100") == "4x100");
  CHECK(pointed_at("countsketch:1x100") == "1x100");
  CHECK(pointed_at("countsketch:17x100") == "17x100");
  CHECK(pointed_at("countsketch:5x7") == "7");
  CHECK(pointed_at("countsketch:5x6554") == "6554");
  CHECK(pointed_at("countsketch:5x") == "");
  CHECK(pointed_at("countsketch:5x100x3") == "100x3");
  CHECK(pointed_at("countsketch:5x100,k=0") == "0");
  CHECK(pointed_at("countsketch:5x100,k=101+ef") == "101+ef");
  CHECK(pointed_at("countsketch:5x100,rows=3") == "rows=3");
  CHECK(pointed_at("countsketch:5x100,recovery=both") == "both");
  CHECK(pointed_at("countsketch:5x100,recovery=sum+ef") == "sum+ef");
  CHECK(pointed_at("delta+countsketch:5x100,recovery=sum") == "sum");
  CHECK(pointed_at("topk:0.1+countsketch:5x100") == "countsketch:5x100");
  CHECK(pointed_at("topk:0.1+powersgd:2") == "powersgd:2");
  CHECK(pointed_at("topk:0.1+gradzip:2+ef") == "gradzip:2+ef");
  CHECK(pointed_at("terngrad:2") == "2");
  CHECK(pointed_at("terngrad,clip=-0") == "-0");
  CHECK(pointed_at("terngrad,clip=nan") == "nan");
  CHECK(pointed_at("terngrad,clip=257") == "257");
  CHECK(pointed_at("terngrad,clip=2.5x+ef") == "2.5x+ef");
  CHECK(pointed_at("terngrad,mode=affine") == "mode=affine");
  CHECK(pointed_at("ecuq") == "");
  CHECK(pointed_at("ecuq:0.04") == "0.04");
  CHECK(pointed_at("ecuq:8.1bit") == "8.1bit");
  CHECK(pointed_at("ecuq:bit") == "bit");
  CHECK(pointed_at("ecuq:2,mode=odd") == "odd");
  CHECK(pointed_at("ecuq:2,bucket=4") == "bucket=4");
  CHECK(pointed_at("zip") == "zip");
  CHECK(pointed_at("") == "");
  CHECK_FALSE(parse_codec(std::string(1000, 'a')).has_value());
}

TEST_CASE("a warm-up changes by equal ratios from round 1 on to the spec's value") {
  const auto canonical = [](std::string_view spec, std::uint32_t round) {
    return parse_codec(spec, round).value()->canonical();
  };
  const auto all = [&](std::string_view spec, const std::vector<const char*>& wanted) {
    for (std::uint32_t round = 1; round <= wanted.size(); ++round) {
      CHECK(canonical(spec, round) == wanted[round - 1]);
    }
    CHECK(canonical(spec, 1'000'000) == wanted.back());
    CHECK(codec_of(spec)->canonical() == wanted.back());
  };
  // Lin 2018, section 3.3, has 25%, 6.25%, 1.5625%, 0.4%, 0.1%; the exact ratio is 250^(1/4).
  all("topk:0.001,from=0.25,over=4",
      {"topk:0.25", "topk:0.06287", "topk:0.01581", "topk:0.003976", "topk:0.001"});
  all("topk:0.001,scope=global,from=0.016,dense_below=7,over=2+qsgd:4+ef",
      {"topk:0.016,scope=global,dense_below=7+qsgd:4+ef",
       "topk:0.004,scope=global,dense_below=7+qsgd:4+ef",
       "topk:0.001,scope=global,dense_below=7+qsgd:4+ef"});
  all("kbit:2,from=8,over=10,mode=affine",
      {"kbit:8,mode=affine", "kbit:7,mode=affine", "kbit:6,mode=affine", "kbit:5,mode=affine",
       "kbit:5,mode=affine", "kbit:4,mode=affine", "kbit:3,mode=affine", "kbit:3,mode=affine",
       "kbit:3,mode=affine", "kbit:2,mode=affine", "kbit:2,mode=affine"});
  all("randk:0.5,from=0.125,over=2", {"randk:0.125", "randk:0.25", "randk:0.5"});
  all("ema-threshold:0.5,from=0.125,over=2",
      {"ema-threshold:0.125", "ema-threshold:0.25", "ema-threshold:0.5"});
  all("qsgd:1,from=127,over=1", {"qsgd:127", "qsgd:1"});
  all("powersgd:1,from=16,over=4",
      {"powersgd:16", "powersgd:8", "powersgd:4", "powersgd:2", "powersgd:1"});
  all("eden:1,from=4,over=2+ef", {"eden:4+ef", "eden:2+ef", "eden:1+ef"});
  all("eden:1,from=3,over=2", {"eden:3", "eden:1.732", "eden:1"});
  all("ecuq:0.5,from=8bit,over=4", {"ecuq:8", "ecuq:4", "ecuq:2", "ecuq:1", "ecuq:0.5"});
  all("*.bias=none;a=kbit:2,over=2,from=8;*=topk:0.01,from=1,over=1+kbit:4,from=6,over=2",
      {"*.bias=none;a=kbit:8;*=topk:1+kbit:6", "*.bias=none;a=kbit:4;*=topk:0.01+kbit:5",
       "*.bias=none;a=kbit:2;*=topk:0.01+kbit:4"});
  all("topk:1,from=1e-320,over=2", {"topk:1e-320", "topk:1e-160", "topk:1"});
  // With a warm-up over 1,000 rounds the value never goes back.
  double before = 0.25;
  for (std::uint32_t round = 1; round <= 1001; ++round) {
    const double now = std::stod(canonical("topk:0.001,from=0.25,over=1000", round).substr(5));
    CHECK(now == doctest::Approx(0.25 * std::pow(0.004, (round - 1) / 1000.0)).epsilon(1e-3));
    REQUIRE(now <= before);
    before = now;
  }

  CHECK(pointed_at("topk:0.01,from=0.25") == "0.25");
  CHECK(pointed_at("topk:0.01,over=4+qsgd:8") == "4+qsgd:8");
  CHECK(pointed_at("topk:0.01,from=0,over=4") == "0,over=4");
  CHECK(pointed_at("topk:0.01,from=2,over=4") == "2,over=4");
  CHECK(pointed_at("topk:0.01,from=0.25,over=0") == "0");
  CHECK(pointed_at("topk:0.01,from=0.25,over=4,over=4") == "over=4");
  CHECK(pointed_at("topk:0,from=0.25,over=4") == "0,from=0.25,over=4");
  CHECK(pointed_at("kbit:2,from=9,over=10") == "9,over=10");
  CHECK(pointed_at("kbit:2,from=2.5,over=10") == "2.5,over=10");
  CHECK(pointed_at("ecuq:2,from=9bit,over=10") == "9bit,over=10");
  CHECK(pointed_at("threshold:0.1,from=0.2,over=3") == "from=0.2,over=3");
  CHECK(pointed_at("fp16,from=2,over=3") == "from=2,over=3");
  CHECK(pointed_at("topk,from=0.25,over=4") == ",from=0.25,over=4");
}

TEST_CASE("a low-rank codec that starts late is dense before, and warms up from its start") {
  const auto canonical = [](std::string_view spec, std::uint32_t round) {
    return parse_codec(spec, round).value()->canonical();
  };
  for (const std::uint32_t round : {1u, 19u}) {
    CHECK(canonical("powersgd:4@20+ef", round) == "none+ef");
    CHECK(canonical("gradzip:4@20,min_ratio=3", round) == "none");
    CHECK(canonical("*.bias=fp16;*=powersgd:4@20+ef", round) == "*.bias=fp16;*=none+ef");
  }
  CHECK(parse_codec("powersgd:4@20+ef", 1).value()->is_exact());
  for (const std::uint32_t round : {20u, 21u, warmed_up}) {
    CHECK(canonical("powersgd:4@20+ef", round) == "powersgd:4+ef");
    CHECK(canonical("gradzip:4@20,min_ratio=3", round) == "gradzip:4,min_ratio=3");
  }
  CHECK(canonical("powersgd:4@1", 1) == "powersgd:4");
  const char* warming = "powersgd:1@5,from=16,over=4";
  CHECK(canonical(warming, 4) == "none");
  CHECK(canonical(warming, 5) == "powersgd:16");
  CHECK(canonical(warming, 7) == "powersgd:4");
  CHECK(canonical(warming, 9) == "powersgd:1");
  CHECK(canonical(warming, warmed_up) == "powersgd:1");

  CHECK(pointed_at("powersgd:4@") == "");
  CHECK(pointed_at("powersgd:4@0+ef") == "0+ef");
  CHECK(pointed_at("powersgd:4@2.5") == "2.5");
  CHECK(pointed_at("powersgd:0@20") == "0@20");
  CHECK(pointed_at("powersgd:@20") == "@20");
  CHECK(pointed_at("kbit:4@20") == "4@20");
  // A spec that is wrong for a later round is refused in round 1.
  CHECK_FALSE(parse_codec("powersgd:65@20", 1).has_value());
  CHECK_FALSE(parse_codec("powersgd:4@20,ratio=3", 1).has_value());
}

TEST_CASE("the size limit of a payload is that of its round's codec") {
  const Layout layout = flat_layout(100'000);
  std::uint64_t before = ~std::uint64_t{0};
  for (std::uint32_t round = 1; round <= 5; ++round) {
    const auto codec = parse_codec("topk:0.001,from=0.25,over=4", round).value();
    const std::uint64_t bytes_max = codec->payload_bytes_max(layout);
    const auto payload = encode(*codec, layout, normal(layout.elements(), round));
    CHECK(payload.size() <= bytes_max);
    CHECK(bytes_max < before);
    before = bytes_max;
  }
}

TEST_CASE("the error for an unknown codec lists all codecs") {
  const auto parsed = parse_codec("zip");
  for (const CodecRow& row : codec_rows()) {
    CHECK(parsed.error().message().find(row.name) != std::string::npos);
  }
}
