// Codec specs: what parses, what its canonical form is, and where the caret of an error stands.
#include "codec_support.hpp"

using namespace fl;
using namespace fl::testing;

namespace {

// The part of the spec that the error's caret points at, to the spec's end.
std::string pointed_at(const std::string& spec) {
  const auto parsed = parse_codec(spec);
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().code() == Errc::invalid_input);
  const std::string message = parsed.error().message();
  const std::size_t caret_line = message.rfind('\n') + 1;
  const std::size_t column = message.size() - 1 - caret_line - 2;
  REQUIRE(message.back() == '^');
  CHECK(message.find("\n  " + spec + "\n") != std::string::npos);
  return spec.substr(column);
}

}  // namespace

TEST_CASE("canonical specs parse to themselves") {
  for (const std::string& spec : specs_to_test()) {
    CHECK(codec_of(spec)->canonical() == spec);
    CHECK_FALSE(codec_of(spec)->error_feedback());
    CHECK(codec_of(spec + "+ef")->canonical() == spec + "+ef");
    CHECK(codec_of(spec + "+ef")->error_feedback());
  }
  CHECK(codec_of("qsgd:127,norm=max,bucket=512")->canonical() == "qsgd:127");
  CHECK(codec_of("qsgd:007,norm=l2,bucket=9+ef")->canonical() == "qsgd:7,bucket=9,norm=l2+ef");
  CHECK(codec_of("kbit:4,mode=symmetric,scale=tensor")->canonical() == "kbit:4");
  CHECK(codec_of("kbit:4,mode=affine,scale=channel")->canonical() ==
        "kbit:4,scale=channel,mode=affine");
  CHECK(codec_of("terngrad,clip=2.50")->canonical() == "terngrad");
  CHECK(codec_of("terngrad,clip=1e-1")->canonical() == "terngrad,clip=0.1");
}

TEST_CASE("errors point at the part that is wrong") {
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
  CHECK(pointed_at("terngrad:2") == "2");
  CHECK(pointed_at("terngrad,clip=-0") == "-0");
  CHECK(pointed_at("terngrad,clip=nan") == "nan");
  CHECK(pointed_at("terngrad,clip=257") == "257");
  CHECK(pointed_at("terngrad,clip=2.5x+ef") == "2.5x+ef");
  CHECK(pointed_at("terngrad,mode=affine") == "mode=affine");
  CHECK(pointed_at("zip") == "zip");
  CHECK(pointed_at("") == "");
  CHECK_FALSE(parse_codec(std::string(1000, 'a')).has_value());
}

TEST_CASE("an unknown codec's error names every codec there is") {
  const auto parsed = parse_codec("zip");
  for (const CodecRow& row : codec_rows()) {
    CHECK(parsed.error().message().find(row.name) != std::string::npos);
  }
}
