// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/spec/table.hpp"

#include "shared/base/spec/nearest_name.hpp"
#include "shared/codec/blocks/sparse_block.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

// The functions in the rows. Each is defined in its codec's file.
ParseCompressor parse_none, parse_lossless, parse_fp16, parse_bf16, parse_qsgd, parse_kbit,
    parse_terngrad, parse_sign, parse_eden, parse_ecuq, parse_lanes, parse_powersgd, parse_gradzip,
    parse_countsketch;
ParseSelector parse_topk, parse_randk, parse_threshold, parse_ema_threshold;
DecodeBody decode_fp32, decode_lossless, decode_fp16, decode_bf16, decode_qsgd, decode_kbit,
    decode_terngrad, decode_sign, decode_eden, decode_ecuq, decode_lanes, decode_countsketch;
ReadSelectedBody read_ecuq_runs;

namespace {

/// A format whose blocks have a value for every element.
constexpr FormatRow dense(int id, DecodeBody* decode) {
  return {.id = static_cast<BlockFormat>(id),
          .kind = FormatKind::dense,
          .decode = decode,
          .may_be_inside = true};
}
/// A dense format in which no bytes decode to a value that is infinite or NaN.
constexpr FormatRow finite(int id, DecodeBody* decode) {
  FormatRow row = dense(id, decode);
  row.is_finite = true;
  return row;
}
/// A format whose blocks are count sketches.
constexpr FormatRow sketch(int id, DecodeBody* decode) {
  FormatRow row = finite(id, decode);
  row.kind = FormatKind::sketch;
  row.may_be_inside = false;
  return row;
}
/// A format whose blocks have the indices of some elements and their values.
constexpr FormatRow selected(int id, ReadSelectedBody* read) {
  return {.id = static_cast<BlockFormat>(id),
          .kind = FormatKind::sparse,
          .read = read,
          .may_be_large = true};
}
/// A format of selected runs of levels: such a block may be the inner block of a sparse block.
constexpr FormatRow level_runs(int id, ReadSelectedBody* read) {
  FormatRow row = selected(id, read);
  row.may_be_inside = true;
  row.is_finite = true;
  return row;
}
/// Changes a row, so that its blocks may have more than part_elements_max elements.
constexpr FormatRow large(FormatRow row) {
  row.may_be_large = true;
  return row;
}
/// A format whose blocks are pieces of a matrix's factors.
constexpr FormatRow low_rank(int id) {
  return {.id = static_cast<BlockFormat>(id), .kind = FormatKind::low_rank, .may_be_large = true};
}

// The order of the rows is the order in help.
constexpr auto codec_table = std::to_array<CodecRow>({
    {.name = "none",
     .usage = "none",
     .about = "fp32, not compressed",
     .example = "none",
     .parse = parse_none,
     .formats = {dense(0, decode_fp32)}},
    {.name = "lossless",
     .usage = "lossless",
     .about = "fp32 without loss, a sixth fewer bytes: exponents are coded, zeros left out",
     .example = "lossless",
     .parse = parse_lossless,
     .formats = {dense(36, decode_lossless)}},
    {.name = "fp16",
     .usage = "fp16",
     .about = "half precision, |x| up to 65504",
     .example = "fp16",
     .parse = parse_fp16,
     .formats = {dense(1, decode_fp16), dense(37, decode_fp16)}},
    {.name = "qsgd",
     .usage = "qsgd:S[,bucket=512][,norm=max|l2]",
     .about =
         "S levels of each sign (127: 8 bits per value), rounded at random; unbiased without +ef",
     .example = "qsgd:127",
     .parse = parse_qsgd,
     .warms_up = true,
     .formats = {finite(2, decode_qsgd), finite(3, decode_qsgd)}},
    {.name = "bf16",
     .usage = "bf16",
     .about = "bfloat16: 8 bits of precision, the range of fp32",
     .example = "bf16",
     .parse = parse_bf16,
     .formats = {dense(4, decode_bf16), dense(38, decode_bf16)}},
    {.name = "kbit",
     .usage = "kbit:B[,scale=tensor|channel][,mode=symmetric|affine]",
     .about = "B bits per value, 2 to 8; one scale per tensor or row; unbiased without +ef",
     .example = "kbit:8",
     .parse = parse_kbit,
     .warms_up = true,
     .formats = {dense(5, decode_kbit), dense(8, decode_kbit)}},
    {.name = "terngrad",
     .usage = "terngrad[,clip=2.5]",
     .about = "-scale, 0 or scale; clips at 2.5 standard deviations; unbiased with clip=0 and "
              "without +ef",
     .example = "terngrad",
     .parse = parse_terngrad,
     .formats = {finite(6, decode_terngrad), finite(9, decode_terngrad),
                 finite(10, decode_terngrad)}},
    {.name = "sign",
     .usage = "sign",
     .about = "1 bit per value: its sign, times the mean magnitude; biased, so use sign+ef",
     .example = "sign",
     .parse = parse_sign,
     .formats = {finite(7, decode_sign)}},
    {.name = "eden",
     .usage = "eden:B",
     .about =
         "B bits per value, 0.05 to 4, after a random rotation of each block; unbiased without "
         "+ef",
     .example = "eden:2",
     .parse = parse_eden,
     .warms_up = true,
     .formats = {dense(26, decode_eden), dense(27, decode_eden), dense(34, decode_eden),
                 dense(35, decode_eden)}},
    {.name = "ecuq",
     .usage = "ecuq:BITS[,mode=dither|centroid]",
     .about = "BITS per value on average, 0.05 to 8; one step for all tensors; unbiased without "
              "+ef",
     .example = "ecuq:2",
     .parse = parse_ecuq,
     .warms_up = true,
     .formats = {finite(24, decode_ecuq), finite(25, decode_ecuq), large(finite(31, decode_ecuq)),
                 level_runs(32, read_ecuq_runs)}},
    {.name = "lanes",
     .usage = "lanes:B",
     .about = "B bits per value, 2 to 16; all clients share each tensor's step, so that codes add "
              "as integers; unbiased without +ef, but for the few values that it clips",
     .example = "lanes:8",
     .parse = parse_lanes,
     .formats = {finite(40, decode_lanes), finite(41, decode_lanes), dense(42, decode_lanes)}},
    {.name = "powersgd",
     .usage = "powersgd:R[@ROUND][,min_ratio=2]",
     .about = "each large matrix as a product of rank R; fp32 before ROUND; biased, so use +ef",
     .example = "powersgd:2",
     .parse = parse_powersgd,
     .warms_up = true,
     .formats = {low_rank(28)}},
    {.name = "gradzip",
     .usage = "gradzip:R[@ROUND][,min_ratio=2,projection=own]",
     .about = "each large matrix projected on R random directions; fp32 before ROUND; unbiased "
              "without +ef",
     .example = "gradzip:2",
     .parse = parse_gradzip,
     .warms_up = true,
     .formats = {low_rank(29)}},
    {.name = "countsketch",
     .usage = "countsketch:ROWSxCOLUMNS[,k=COLUMNS/8][,recovery=own]",
     .about =
         "a sketch of the k largest of 65,536 values; the server adds all clients' sketches and "
         "reads the sum, or with +ef reads each; biased",
     .example = "countsketch:5x4000",
     .parse = parse_countsketch,
     .formats = {sketch(30, decode_countsketch), sketch(39, decode_countsketch),
                 selected(16, read_sparse)}},
    {.name = "topk",
     .usage = "topk:F[,scope=global][+QUANTIZER]",
     .about = "the largest magnitudes: a fraction F of each tensor, or of all tensors together",
     .example = "topk:0.01",
     .parse_selector = parse_topk,
     .warms_up = true,
     .formats = {selected(16, read_sparse)}},
    {.name = "randk",
     .usage = "randk:F[+QUANTIZER]",
     .about = "a fraction F at random, without sending indices; unbiased without +ef",
     .example = "randk:0.01",
     .parse_selector = parse_randk,
     .warms_up = true,
     .formats = {selected(17, read_sparse)}},
    {.name = "threshold",
     .usage = "threshold:T[+QUANTIZER]",
     .about = "magnitudes above T",
     .example = "threshold:0.001",
     .parse_selector = parse_threshold,
     .formats = {selected(16, read_sparse)}},
    {.name = "ema-threshold",
     .usage = "ema-threshold:F[+QUANTIZER]",
     .about =
         "about a fraction F of each tensor, above a threshold that adapts from round to round",
     .example = "ema-threshold:0.01",
     .parse_selector = parse_ema_threshold,
     .warms_up = true,
     .formats = {selected(16, read_sparse)}},
});

/// Several codecs may write the same format. If an id has two meanings, this does not compile.
constexpr FormatTable make_format_table() {
  FormatTable table{};
  const auto add = [&table](const FormatRow& format) {
    FormatRow& row = table[static_cast<std::size_t>(format.id)];
    if (row.kind != FormatKind::unknown && row != format) throw "an id has two meanings";
    row = format;
  };
  // Any codec may write a large block in parts.
  add({.id = BlockFormat::parts, .kind = FormatKind::parts, .may_be_large = true});
  for (const CodecRow& codec : codec_table) {
    for (const FormatRow& format : codec.formats) add(format);
  }
  return table;
}

}  // namespace

constinit const FormatTable format_table = make_format_table();

std::span<const CodecRow> codec_rows() { return codec_table; }

Result<const CodecRow*> find_codec(const SpecParts& parts) {
  const auto row = std::ranges::find(codec_table, parts.name, &CodecRow::name);
  if (row != codec_table.end()) return &*row;
  if (parts.name == "ef" || parts.name == "dgc") {
    return wrong(parts.whole, parts.name,
                 fmt::format("{} must come once, at the end; it is for all rules", parts.name));
  }
  if (parts.name == delta_codec)
    return wrong(parts.whole, parts.name, "delta must come once, in front: delta+topk:0.01");
  std::string names;
  for (const CodecRow& r : codec_table) names += fmt::format(" {}", r.name);
  return wrong(parts.whole, parts.name,
               fmt::format("there is no such codec; choose one of:{}{}", names,
                           did_you_mean(parts.name, codec_table, &CodecRow::name)));
}

}  // namespace fl::codec
