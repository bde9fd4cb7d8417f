# SPDX-License-Identifier: Apache-2.0
# Every third-party library, all Debian packages (deploy/install-deps.sh lists them).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
if(PROJECT_IS_TOP_LEVEL)
  find_package(doctest REQUIRED)
endif()

find_path(FL_TOMLPP_INCLUDE toml++/toml.h REQUIRED)
find_path(FL_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(FL_XXHASH_LIBRARY xxhash REQUIRED)
find_path(FL_CSV_INCLUDE csv.h REQUIRED)
find_library(FL_CSV_LIBRARY csv REQUIRED)
find_path(FL_TURBOJPEG_INCLUDE turbojpeg.h REQUIRED)
find_library(FL_TURBOJPEG_LIBRARY turbojpeg REQUIRED)
find_path(FL_UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(FL_UTF8PROC_LIBRARY utf8proc REQUIRED)

# Asio's and Beast's own functions are compiled once, here, rather than in each file that uses them.
add_library(fl_asio STATIC deploy/cmake/asio.cpp deploy/cmake/beast.cpp)
target_link_libraries(fl_asio PRIVATE $<BUILD_INTERFACE:fl_options> PUBLIC Boost::headers OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
target_compile_definitions(fl_asio PUBLIC
  BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION)

add_library(fl_xxhash INTERFACE)
if(CMAKE_SYSROOT)  # An installed copy has no such folder.
  target_include_directories(fl_xxhash SYSTEM INTERFACE $<BUILD_INTERFACE:${FL_XXHASH_INCLUDE}>)
else()
  target_include_directories(fl_xxhash SYSTEM INTERFACE ${FL_XXHASH_INCLUDE})
endif()
target_link_libraries(fl_xxhash INTERFACE ${FL_XXHASH_LIBRARY})
# If the library has them: functions that use the machine's widest registers, three times as fast.
include(CheckLibraryExists)
check_library_exists(${FL_XXHASH_LIBRARY} XXH3_128bits_update_dispatch "" FL_XXHASH_DISPATCHES)
if(FL_XXHASH_DISPATCHES AND EXISTS ${FL_XXHASH_INCLUDE}/xxh_x86dispatch.h)
  target_compile_definitions(fl_xxhash INTERFACE FL_XXHASH_DISPATCHES)
endif()

add_library(fl_toml INTERFACE)
target_include_directories(fl_toml SYSTEM INTERFACE ${FL_TOMLPP_INCLUDE})

# The libraries that the readers of data need (client/learn/data/readers).
add_library(fl_csv INTERFACE)
target_include_directories(fl_csv SYSTEM INTERFACE ${FL_CSV_INCLUDE})
target_link_libraries(fl_csv INTERFACE ${FL_CSV_LIBRARY})
add_library(fl_turbojpeg INTERFACE)
target_include_directories(fl_turbojpeg SYSTEM INTERFACE ${FL_TURBOJPEG_INCLUDE})
target_link_libraries(fl_turbojpeg INTERFACE ${FL_TURBOJPEG_LIBRARY})
add_library(fl_utf8proc INTERFACE)
target_include_directories(fl_utf8proc SYSTEM INTERFACE ${FL_UTF8PROC_INCLUDE})
target_link_libraries(fl_utf8proc INTERFACE ${FL_UTF8PROC_LIBRARY})
