// SPDX-License-Identifier: Apache-2.0
// Runs the kernel bodies for products of a matrix with a few vectors on a CPU, and compares them
// with the host's functions, bit for bit.
#include "tests/kernels/host_launches.hpp"

#include <doctest/doctest.h>

using namespace fl;
using namespace fl::twins;

TEST_CASE("products of matrices by blocks equal those of every row") {
  for (const MatrixSizes shape :
       {MatrixSizes{1, 1, 1}, MatrixSizes{2, 31, 3}, MatrixSizes{5, 1024, 2},
        MatrixSizes{7, 1025, 4}, MatrixSizes{3, 2500, 1}, MatrixSizes{40, 33, 9}}) {
    CAPTURE(shape.rows);
    CAPTURE(shape.cols);
    const auto matrix = values(shape.rows * shape.cols, 1);
    const auto right = values(shape.rank * shape.cols, 2);
    std::vector<float> left(shape.rank * shape.rows);
    std::vector<float> back(right.size());
    multiply(matrix.data(), shape, right.data(), left.data(), plain());
    multiply_transposed(matrix.data(), shape, left.data(), back.data(), plain());
    for (const Kernels* row : all_kernels()) {
      std::vector<float> out(left.size(), 7.0f);
      multiply(matrix.data(), shape, right.data(), out.data(), *row);
      CHECK(same_bits(out, left));
      out.assign(back.size(), 7.0f);
      multiply_transposed(matrix.data(), shape, left.data(), out.data(), *row);
      CHECK(same_bits(out, back));
    }
    for (const unsigned blocks : {1u, 3u, 64u}) {
      CAPTURE(blocks);
      std::vector<float> out(left.size(), 7.0f);
      multiply_by_blocks(matrix.data(), shape, right.data(), out.data(), blocks);
      CHECK(same_bits(out, left));
      out.assign(back.size(), 7.0f);
      multiply_transposed_by_blocks(matrix.data(), shape, left.data(), out.data(), blocks);
      CHECK(same_bits(out, back));
    }
  }
}
