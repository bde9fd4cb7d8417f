# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target, as the interface library fl_options.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# -O3 gains nothing in coroutines and protobuf, and costs minutes; kernels/ asks for it itself.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# The builds of the sanitizers and of ./dev check (RelWithDebInfo). With -O1 a file that uses Asio takes two to three times as
# long as without; only the arithmetic (fl_hot) asks for more.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -g1")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(FL_CCACHE ccache)
if(FL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FL_CCACHE})
endif()

add_library(fl_options INTERFACE)
target_compile_features(fl_options INTERFACE cxx_std_20)
target_include_directories(fl_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(fl_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow>
  # Gives the same bits on every machine: the compiler may not fuse a multiplication and an
  # addition.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # A char has a sign on x86, and none on ARM64.
  target_compile_options(fl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsigned-char>)
endif()
# Makes it harder to use a bug of ours with a peer's bytes: canaries on the stack, programs at
# random addresses, tables of functions that are read-only once the program runs.
# tests/process/hardened_test.py looks for these in the programs.
include(CheckPIESupported)
check_pie_supported()
target_compile_options(fl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
target_link_options(fl_options INTERFACE LINKER:-z,relro,-z,now)
# Adds the C library's checks of lengths, which work in optimized code only.
set(fortify)
if(NOT FL_SANITIZE)
  set(fortify $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=3>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside libstdc++ and Asio headers, where nothing is wrong.
  target_compile_options(fl_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized -Wno-restrict
      -Wno-mismatched-new-delete>)
  # GCC collects its garbage from 128 MiB on, which takes a tenth of its time; most of our files
  # need less than 1.5 GB without.
  target_compile_options(fl_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1500000>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Checks what shared/base/async/mutex.hpp lets locks say.
  target_compile_options(fl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>)
endif()
if(FL_WERROR)
  target_compile_options(fl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(FL_SANITIZE)
  target_compile_options(fl_options INTERFACE
    -fsanitize=${FL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  target_link_options(fl_options INTERFACE -fsanitize=${FL_SANITIZE})
  target_compile_definitions(fl_options INTERFACE FL_SANITIZED)
  if(FL_SANITIZE MATCHES "undefined")
    # AddressSanitizer finds these faults too, or x86 allows them, and with these checks the tests
    # take a third longer. fl_hot, which reads hostile bytes, has them; and ./dev asan.
    set(costly null,alignment,vptr,object-size,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
    if(NOT FL_SANITIZE_COSTLY)
      target_compile_options(fl_options INTERFACE -fno-sanitize=${costly})
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # clang 14 can't put this check's prologue before a coroutine.
      target_compile_options(fl_options INTERFACE -fno-sanitize=function)
    endif()
  endif()
endif()
if(FL_FUZZ)
  # The measurements that guide libFuzzer; and libstdc++'s own checks of every index.
  target_compile_options(fl_options INTERFACE -fsanitize=fuzzer-no-link)
  target_compile_definitions(fl_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # An unnamed namespace in an included .cpp file is no mistake there.
  target_compile_options(fl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# For targets with loops over parameters or bytes from outside: worth optimizing in every build.
add_library(fl_hot INTERFACE)
set(hot_level -O2)
if(FL_SANITIZE)
  set(hot_level -O1)
endif()
target_compile_options(fl_hot INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Release>>>:${hot_level}>)
if(FL_SANITIZE MATCHES "undefined")
  # Lists each check by its name: CMake would drop a second -fsanitize=undefined as a repetition.
  target_compile_options(fl_hot INTERFACE -fsanitize=${costly})
endif()

# fl_library(NAME [WAITS] SOURCES … LIBS …): a static library with our options. WAITS: the library
# mostly waits for sockets, the disk or people, and work that grows with the model is done
# elsewhere; -O2 would compile it a fifth longer for nothing (./dev bench).
function(fl_library name)
  cmake_parse_arguments(arg "WAITS" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  # Outside of this build its users set their own options, except for these.
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:fl_options> ${arg_LIBS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} INTERFACE $<INSTALL_INTERFACE:-ffp-contract=off>)
  target_compile_options(${name} PRIVATE ${fortify})
  if(arg_WAITS)
    target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  endif()
endfunction()

# The targets that ./dev builds: the programs; for its tests those that run under the sanitizers
# (under ThreadSanitizer: programs with more than one thread), and the others, which the release
# build runs.
add_custom_target(programs)
add_custom_target(fast_tests)
add_custom_target(threaded_tests)
add_custom_target(release_tests)

# fl_test(NAME [OPTIMIZED] SOURCES … LIBS … LABELS …): a doctest program, run by CTest as one test.
# Labels: fast, the default, is run under the sanitizers; threads, by ThreadSanitizer in ./dev test
# too; release, by the release build: what is other code when optimized, or takes too long
# otherwise. Without sanitizers ctest runs them all. A suite named "statistics" is run by the release
# build only: many repetitions of what other cases do.
function(fl_test name)
  cmake_parse_arguments(arg "OPTIMIZED" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(CMAKE_CROSSCOMPILING)  # An emulator takes ten times as long, or more.
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE fl_options fl_doctest_main ${arg_LIBS})
  if(NOT fl_hot IN_LIST arg_LIBS)
    # Optimizing most tests takes longer than it saves, and above -O1 all.
    set(level -O0)
    if(arg_OPTIMIZED AND NOT FL_SANITIZE)
      set(level -O1)
    endif()
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
  endif()
  if(fast IN_LIST arg_LABELS)
    add_dependencies(fast_tests ${name})
  endif()
  if(threads IN_LIST arg_LABELS)
    add_dependencies(threaded_tests ${name})
  endif()
  if(release IN_LIST arg_LABELS)
    add_dependencies(release_tests ${name})
  endif()
  set(arguments)
  if(CMAKE_CROSSCOMPILING OR NOT CMAKE_BUILD_TYPE STREQUAL "Release")
    set(arguments --test-suite-exclude=statistics)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arguments})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()
