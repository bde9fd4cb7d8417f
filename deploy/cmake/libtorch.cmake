# SPDX-License-Identifier: Apache-2.0
# libtorch as imported targets, with FL_TORCH=ON:
#
#   fl::torch            libtorch_cpu and libc10: all that a CPU trainer needs
#   fl::torch_cuda       the same with libtorch_cuda and libc10_cuda, when FL_TORCH_HAS_CUDA is ON
#
# Looked for in FL_LIBTORCH, then in build/libtorch, where deploy/fetch-libtorch.sh puts one. Either
# may be a folder of unpacked wheels (with torch/ in it), the torch folder of one, or an unpacked
# libtorch archive. find_package(Torch) would want a whole CUDA toolkit, and its static MKL, for the
# same two libraries.
set(FL_TORCH_HAS_CUDA OFF)
if(NOT FL_TORCH)
  return()
endif()

set(root ${FL_LIBTORCH})
if(NOT root)
  set(root ${CMAKE_SOURCE_DIR}/build/libtorch)
endif()
if(EXISTS ${root}/torch/lib)
  string(APPEND root /torch)
endif()
if(NOT (EXISTS ${root}/lib/libtorch_cpu.so AND EXISTS ${root}/include/torch/csrc/api))
  message(FATAL_ERROR "No libtorch (lib/libtorch_cpu.so and include/) in ${root}. "
    "`./dev build` fetches one; -DFL_LIBTORCH=/path names one that you have; "
    "-DFL_TORCH=OFF builds without the libtorch trainer.")
endif()
if(EXISTS /usr/include/torch/torch.h)
  message(FATAL_ERROR "/usr/include/torch would be found before the headers in ${root}: "
    "remove the package libtorch-dev, or build with -DFL_TORCH=OFF.")
endif()

set(FL_TORCH_LIBRARIES ${root}/lib)  # For installed files.
# The release whose wheel has this library, as in "2.11.0".
foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS ${root}/include/${header})
    file(READ ${root}/include/${header} text)
    if(text MATCHES "define TORCH_VERSION[ \\\n]+\"([0-9.]+)")
      set(FL_TORCH_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
endforeach()

# Binaries find a libtorch inside the build folder relative to themselves; libtorch finds the
# libraries of the other wheels by a run path of its own.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

# After the system's headers (-idirafter), because the wheel brings its own, other versions of
# protobuf's and fmt's. Since 2.6 wheels have libstdc++'s new ABI, the compiler's default.
add_library(fl_torch_headers INTERFACE)
target_compile_options(fl_torch_headers INTERFACE
  "SHELL:-idirafter ${root}/include" "SHELL:-idirafter ${root}/include/torch/csrc/api/include")

function(fl_torch_library name)
  add_library(${name} SHARED IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES
    IMPORTED_LOCATION ${root}/lib/lib${name}.so IMPORTED_NO_SONAME OFF)
endfunction()

fl_torch_library(c10)
fl_torch_library(torch_cpu)
add_library(fl_torch INTERFACE)
target_link_libraries(fl_torch INTERFACE fl_torch_headers torch_cpu c10)
add_library(fl::torch ALIAS fl_torch)

# The CUDA half counts as there when all that it is linked with is there too.
if(EXISTS ${root}/lib/libtorch_cuda.so)
  execute_process(COMMAND ldd ${root}/lib/libtorch_cuda.so OUTPUT_VARIABLE libraries)
  if(libraries MATCHES "([^\n\t ]+) => not found")
    message(STATUS "libtorch: no CUDA, because ${CMAKE_MATCH_1} is missing")
  else()
    set(FL_TORCH_HAS_CUDA ON)
    fl_torch_library(c10_cuda)
    fl_torch_library(torch_cuda)
    add_library(fl_torch_cuda INTERFACE)
    # The CUDA headers of the wheels, which c10/cuda and ATen/cuda include.
    file(GLOB includes ${root}/../nvidia/*/include)
    target_include_directories(fl_torch_cuda SYSTEM INTERFACE ${includes})
    # Nothing refers to a symbol of libtorch_cuda: it registers its kernels when it is loaded.
    target_link_libraries(fl_torch_cuda INTERFACE
      fl_torch -Wl,--push-state,--no-as-needed torch_cuda c10_cuda -Wl,--pop-state)
    add_library(fl::torch_cuda ALIAS fl_torch_cuda)
  endif()
endif()
message(STATUS "libtorch: ${root} (CUDA: ${FL_TORCH_HAS_CUDA})")
