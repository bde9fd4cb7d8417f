// SPDX-License-Identifier: Apache-2.0
// The disk as one process sees it. The process dies on die(), or instead of the n-th change of the
// disk, so a test can kill it between any two writes. After that every operation fails and changes
// nothing. One thread.
#pragma once

#include "tests/support/mem_files.hpp"

#include <functional>
#include <memory>

namespace fl::test {

class ProcessFiles final : public Files {
 public:
  /// `on_death` is called once: inside the operation at which the process dies, or inside die().
  ProcessFiles(MemFiles& disk, std::function<void()> on_death);

  void die();
  /// The process dies instead of the n-th change from now (1 is the next). 0 cancels this.
  void die_at(std::uint64_t n);
  [[nodiscard]] bool is_dead() const { return life_->is_dead; }

  /// Called before a name disappears, by remove() or as the source of rename().
  std::function<void(const std::filesystem::path&)> before_remove;
  /// Called with the target after each rename().
  std::function<void(const std::filesystem::path&)> after_rename;

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  bool exists(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& folder) override;
  Result<void> make_folder(const std::filesystem::path& folder) override;
  Result<void> sync_folder(const std::filesystem::path& folder) override;

 private:
  struct Life {
    bool is_dead = false;
    std::uint64_t changes_left = 0;  // 0: no death is planned.
    std::function<void()> on_death;

    void end();
    [[nodiscard]] Result<void> look() const;
    [[nodiscard]] Result<void> change();
  };
  class Handle;

  MemFiles& disk_;
  std::shared_ptr<Life> life_;
};

/// Reads a file for the test. A planned fault that this read triggers is planned again for the
/// process. Returns an empty string if there is no such file.
[[nodiscard]] std::string peek(MemFiles& disk, const std::filesystem::path& path);

}  // namespace fl::test
