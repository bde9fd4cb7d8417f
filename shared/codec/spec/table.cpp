#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fl {

namespace {

constexpr std::array codec_table = {
    CodecParser{{"none", "none", "fp32 as it is", "none"}, parse_none},
    CodecParser{{"lossless", "lossless",
                 "fp32, exactly, in about a sixth fewer bytes: exponents "
                 "near their entropy, no zeros",
                 "lossless"},
                parse_lossless},
    CodecParser{{"fp16", "fp16", "half precision, |x| up to 65504", "fp16"}, parse_fp16},
    CodecParser{
        {"qsgd", "qsgd:S[,bucket=512][,norm=max|l2]",
         "S levels of each sign, 127 are 8 bits a value; at random and unbiased without +ef",
         "qsgd:127"},
        parse_qsgd,
        nullptr,
        true},
    CodecParser{{"bf16", "bf16", "bfloat16, 8 bits of precision with the range of fp32", "bf16"},
                parse_bf16},
    CodecParser{
        {"kbit", "kbit:B[,scale=tensor|channel][,mode=symmetric|affine]",
         "B bits, 2 to 8, with a scale for each tensor or row; at random and unbiased without +ef",
         "kbit:8"},
        parse_kbit,
        nullptr,
        true},
    CodecParser{
        {"terngrad", "terngrad[,clip=2.5]",
         "-scale, 0 or scale, clipped at so many sigma; with +ef the nearest, else unbiased if "
         "clip=0",
         "terngrad"},
        parse_terngrad},
    CodecParser{
        {"sign", "sign", "1 bit a value: sign times mean magnitude; biased, use sign+ef", "sign"},
        parse_sign},
    CodecParser{
        {"eden", "eden:B",
         "B bits, 0.05 to 4, of a randomly rotated block, which makes all blocks alike; unbiased "
         "without +ef",
         "eden:2"},
        parse_eden,
        nullptr,
        true},
    CodecParser{
        {"ecuq", "ecuq:BITS[,mode=dither|centroid]",
         "one step for all tensors, chosen for BITS a value, 0.05 to 8; unbiased without +ef",
         "ecuq:2"},
        parse_ecuq,
        nullptr,
        true},
    CodecParser{
        {"powersgd", "powersgd:R[@ROUND][,min_ratio=2]",
         "each matrix as two thin ones of rank R, unless small, and fp32 before ROUND; biased, "
         "use +ef",
         "powersgd:2"},
        parse_powersgd,
        nullptr,
        true},
    CodecParser{
        {"gradzip", "gradzip:R[@ROUND][,min_ratio=2,projection=own]",
         "each matrix as its product with R random directions, fp32 before ROUND; unbiased without "
         "+ef",
         "gradzip:2"},
        parse_gradzip,
        nullptr,
        true},
    CodecParser{{"countsketch", "countsketch:ROWSxCOLUMNS[,k=COLUMNS/8][,recovery=own]",
                 "the k largest of 65,536 in a sketch; all clients' are added up and read once, or "
                 "with +ef each by itself; biased",
                 "countsketch:5x4000"},
                parse_countsketch},
    CodecParser{
        {"topk", "topk:F[,scope=global][+QUANTIZER]",
         "the largest magnitudes, a fraction F of each tensor or of all together", "topk:0.01"},
        nullptr,
        parse_topk,
        true},
    CodecParser{{"randk", "randk:F[+QUANTIZER]",
                 "a fraction F at random, unbiased without +ef; no indices are sent", "randk:0.01"},
                nullptr,
                parse_randk,
                true},
    CodecParser{{"threshold", "threshold:T[+QUANTIZER]", "magnitudes above T", "threshold:0.001"},
                nullptr,
                parse_threshold},
    CodecParser{{"ema-threshold", "ema-threshold:F[+QUANTIZER]",
                 "about a fraction F of each tensor, above a threshold that follows it over rounds",
                 "ema-threshold:0.01"},
                nullptr,
                parse_ema_threshold,
                true},
};

}  // namespace

Result<const CodecParser*> find_parser(const SpecParts& parts) {
  const auto row =
      std::ranges::find(codec_table, parts.name, [](const CodecParser& r) { return r.shown.name; });
  if (row != codec_table.end()) return &*row;
  if (parts.name == "ef" || parts.name == "dgc") {
    return wrong(parts.whole, parts.name,
                 fmt::format("{} comes once, at the end, and is for all rules", parts.name));
  }
  if (parts.name == delta_codec)
    return wrong(parts.whole, parts.name, "delta comes once, in front: delta+topk:0.01");
  std::string names;
  for (const CodecParser& r : codec_table) names += fmt::format(" {}", r.shown.name);
  return wrong(parts.whole, parts.name, fmt::format("there is no such codec; there are:{}", names));
}

std::span<const CodecRow> codec_rows() {
  static const auto shown = [] {
    std::array<CodecRow, codec_table.size()> out;
    std::ranges::transform(codec_table, out.begin(), &CodecParser::shown);
    return out;
  }();
  return shown;
}

}  // namespace fl
