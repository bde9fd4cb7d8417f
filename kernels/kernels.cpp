// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include "kernels/isa_rows.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#ifdef FL_HAS_AVX2
#include <cpuid.h>
#endif

namespace fl {

namespace {

#ifdef FL_HAS_AVX2
bool cpu_has_avx2_and_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2");  // Also checks that the system saves ymm.
}

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
}

/// Since Intel's Ice Lake and AMD's Zen 4.
bool cpu_has_vbmi2() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2");
}

/// The AVX2 row, with AVX-512 versions of the functions that gain from them. Most others wait for
/// memory, or take as long with registers of twice the width.
Kernels make_avx512_row() {
  Kernels row = avx2_row;
  row.name = "avx512";
  row.gaussian = gaussian_avx512;
  row.quantize = quantize_avx512;
  row.dither = dither_avx512;
  row.undither = undither_avx512;
  row.dither_classes = dither_classes_avx512;
  row.find_at_least = find_at_least_avx512;
  if (cpu_has_vbmi2()) row.rans_decode = rans_decode_avx512;
  return row;
}
#endif

std::vector<const Kernels*> runnable_rows() {
  std::vector<const Kernels*> rows = {&scalar_row};
#ifdef FL_HAS_AVX2
  static const Kernels avx512_row = make_avx512_row();
  if (cpu_has_avx2_and_f16c()) {
    rows.push_back(&avx2_row);
    if (cpu_has_avx512()) rows.push_back(&avx512_row);
  }
#endif
  return rows;
}

const Kernels& choose() {
  const auto rows = all_kernels();
  const char* wanted = std::getenv("FL_KERNELS");
  if (wanted == nullptr || *wanted == '\0') return *rows.back();
  for (const Kernels* row : rows) {
    if (std::string_view(row->name) == wanted) return *row;
  }
  std::fprintf(stderr, "FL_KERNELS=%s: this machine has no such kernels; it has:", wanted);
  for (const Kernels* row : rows) std::fprintf(stderr, " %s", row->name);
  std::fputc('\n', stderr);
  std::_Exit(2);
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> row = &choose();
  return row;
}

}  // namespace

std::span<const Kernels* const> all_kernels() {
  static const std::vector<const Kernels*> rows = runnable_rows();
  return rows;
}

const Kernels& kernels() { return *chosen(); }

void force_kernels(const Kernels& row) { chosen() = &row; }

}  // namespace fl
