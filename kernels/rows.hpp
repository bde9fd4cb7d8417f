// The rows of the table, for kernels.cpp. Other rows send the ends of a run that fill no vector
// through the scalar row.
#pragma once

#include "kernels/kernels.hpp"

namespace fl {

extern const Kernels scalar_row;
#ifdef FL_HAS_AVX2
extern const Kernels avx2_row;  // Runs only where the CPU has AVX2 and F16C.
#endif

}  // namespace fl
