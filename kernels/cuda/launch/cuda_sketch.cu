#include "kernels/cuda/cuda_sketch.hpp"

#include "kernels/cuda/bodies/sketch_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void read_kernel(const SketchBlock* sketches, const float* cells, float* estimates) {
  read_sketches(WideBlock{}, sketches, cells, estimates);
}

}  // namespace

int read_sketches(const SketchBlock* sketches, std::size_t count, const float* cells,
                  float* estimates, CUstream_st* stream) {
  return start(read_kernel, static_cast<unsigned>(count * blocks_a_sketch), WideBlock::threads, 0,
               stream, sketches, cells, estimates);
}

}  // namespace fl::cuda
