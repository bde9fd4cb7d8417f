// SPDX-License-Identifier: Apache-2.0
// A disk that passes every call on to another one. A test's disk overrides the calls that it
// changes.
#pragma once

#include "shared/base/io/file.hpp"

namespace fl::test {

class ForwardingFiles : public Files {
 public:
  using Path = std::filesystem::path;
  explicit ForwardingFiles(Files& disk) : disk_(disk) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenMode mode) override {
    return disk_.open(path, mode);
  }
  Result<void> rename(const Path& from, const Path& to) override { return disk_.rename(from, to); }
  Result<void> remove(const Path& path) override { return disk_.remove(path); }
  bool exists(const Path& path) override { return disk_.exists(path); }
  Result<std::vector<std::string>> list(const Path& folder) override { return disk_.list(folder); }
  Result<void> make_folder(const Path& folder) override { return disk_.make_folder(folder); }
  Result<void> sync_folder(const Path& folder) override { return disk_.sync_folder(folder); }

 protected:
  Files& disk_;
};

}  // namespace fl::test
