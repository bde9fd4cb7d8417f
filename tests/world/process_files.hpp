// The disk as one process sees it until it dies: every operation of a dead process fails and
// changes nothing. The process dies when told to, or in place of a given change: between any two
// writes. One thread.
#pragma once

#include "tests/support/mem_files.hpp"

#include <functional>
#include <memory>

namespace fl::test {

class ProcessFiles final : public Files {
 public:
  /// `on_death` is called once, from within the operation that kills, or from die().
  ProcessFiles(MemFiles& disk, std::function<void()> on_death);

  void die();
  /// Dies instead of the n-th change from now (1 is the next); 0 takes it back.
  void die_at(std::uint64_t n);
  [[nodiscard]] bool is_dead() const { return life_->is_dead; }

  /// Told before a file goes, and of what is put in place by rename.
  /// Called before a name goes: by a removal or a renaming.
  std::function<void(const std::filesystem::path&)> before_remove;
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
    std::uint64_t changes_left = 0;  // 0: no end is planned.
    std::function<void()> on_death;

    void end();
    [[nodiscard]] Result<void> look() const;
    [[nodiscard]] Result<void> change();
  };
  class Handle;

  MemFiles& disk_;
  std::shared_ptr<Life> life_;
};

/// A file's bytes, without meeting a fault that is meant for somebody else; empty when it is not
/// there.
[[nodiscard]] std::string peek(MemFiles& disk, const std::filesystem::path& path);

}  // namespace fl::test
