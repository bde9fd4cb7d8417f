// SPDX-License-Identifier: Apache-2.0
// fashion-mnist and idx:DIR, each with :test: the four files of MNIST in a folder.
#include "client/learn/data/idx.hpp"
#include "client/learn/data/readers/readers.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view datasets_folder = "/usr/share/datasets";
constexpr std::string_view fashion_mnist = "fashion-mnist";
constexpr std::string_view fashion_mnist_package = "dataset-fashion-mnist";

struct Source {
  fs::path folder;
  bool test = false;
  std::string_view package;  // The Debian package with this data; empty for a user's own folder.
};

Result<fs::path> find_file(const Source& source, std::string_view kind) {
  const fs::path plain = source.folder / fmt::format("{}-{}", source.test ? "t10k" : "train", kind);
  const fs::path gzipped = plain.string() + ".gz";
  std::error_code ignored;  // A file that can't be accessed counts as missing.
  if (fs::exists(plain, ignored)) return plain;
  if (fs::exists(gzipped, ignored)) return gzipped;
  std::string advice;
  if (!source.package.empty()) {
    advice =
        fmt::format("; install the Debian package {}, or set FL_DATA to a folder that contains {}/",
                    source.package, source.folder.filename().string());
  }
  return Error(Errc::not_found, fmt::format("found neither {} nor {}.gz{}", plain.string(),
                                            plain.filename().string(), advice));
}

Result<DataSet> read_files(const Source& source, const DataRequest& request) {
  FL_TRY(const fs::path images, find_file(source, "images-idx3-ubyte"));
  if (request.to_predict) return read_idx_images(images, request.memory_bytes);
  FL_TRY(const fs::path labels, find_file(source, "labels-idx1-ubyte"));
  return read_idx(images, labels, request.memory_bytes);
}

}  // namespace

Result<DataSet> read_fashion_mnist(const DataRequest& request) {
  if (request.text != fashion_mnist && request.argument != "test")
    return wrong_data(request, "say fashion-mnist, or fashion-mnist:test for the test set");
  const char* root = std::getenv("FL_DATA");
  return read_files(
      {.folder =
           fs::path(root != nullptr ? std::string_view(root) : datasets_folder) / fashion_mnist,
       .test = request.argument == "test",
       .package = fashion_mnist_package},
      request);
}

Result<DataSet> read_idx_folder(const DataRequest& request) {
  constexpr std::string_view test_suffix = ":test";
  std::string_view folder = request.argument;
  const bool test = folder.ends_with(test_suffix);
  if (test) folder.remove_suffix(test_suffix.size());
  if (folder.empty()) return wrong_data(request, "say idx:DIR, or idx:DIR:test for the test set");
  return read_files({.folder = folder, .test = test, .package = {}}, request);
}

}  // namespace fl
