// SPDX-License-Identifier: Apache-2.0
#include "tests/world/process_files.hpp"

#include <utility>

namespace fl::test {

namespace fs = std::filesystem;

namespace {

Error dead() { return {Errc::io, "the process is dead"}; }

}  // namespace

void ProcessFiles::Life::end() {
  if (is_dead) return;
  is_dead = true;
  if (on_death) on_death();
}

Result<void> ProcessFiles::Life::look() const {
  if (is_dead) return dead();
  return {};
}

Result<void> ProcessFiles::Life::change() {
  if (changes_left > 0 && --changes_left == 0) end();
  return look();
}

class ProcessFiles::Handle final : public File {
 public:
  Handle(std::unique_ptr<File> file, std::shared_ptr<Life> life)
      : file_(std::move(file)), life_(std::move(life)) {}

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    FL_CHECK(life_->look());
    return file_->read_at(offset, out);
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    FL_CHECK(life_->change());
    return file_->write_at(offset, bytes);
  }
  Result<void> truncate(std::uint64_t bytes) override {
    FL_CHECK(life_->change());
    return file_->truncate(bytes);
  }
  Result<void> reserve(std::uint64_t bytes) override {
    FL_CHECK(life_->change());
    return file_->reserve(bytes);
  }
  Result<std::uint64_t> size() override {
    FL_CHECK(life_->look());
    return file_->size();
  }
  Result<void> sync() override {
    FL_CHECK(life_->change());
    return file_->sync();
  }
  void start_writeback(std::uint64_t, std::uint64_t) override {}

 private:
  std::unique_ptr<File> file_;
  std::shared_ptr<Life> life_;
};

ProcessFiles::ProcessFiles(MemFiles& disk, std::function<void()> on_death)
    : disk_(disk), life_(std::make_shared<Life>()) {
  life_->on_death = std::move(on_death);
}

void ProcessFiles::die() { life_->end(); }
void ProcessFiles::die_at(std::uint64_t n) { life_->changes_left = n; }

Result<std::unique_ptr<File>> ProcessFiles::open(const fs::path& path, OpenMode mode) {
  const bool only_reads = mode == OpenMode::read || mode == OpenMode::update;
  FL_CHECK(only_reads ? life_->look() : life_->change());
  FL_TRY(auto file, disk_.open(path, mode));
  return std::unique_ptr<File>(std::make_unique<Handle>(std::move(file), life_));
}

Result<void> ProcessFiles::rename(const fs::path& from, const fs::path& to) {
  FL_CHECK(life_->change());
  if (before_remove) before_remove(from);
  FL_CHECK(disk_.rename(from, to));
  if (after_rename) after_rename(to);
  return {};
}

Result<void> ProcessFiles::remove(const fs::path& path) {
  FL_CHECK(life_->change());
  if (before_remove) before_remove(path);
  return disk_.remove(path);
}

bool ProcessFiles::exists(const fs::path& path) { return !life_->is_dead && disk_.exists(path); }

Result<std::vector<std::string>> ProcessFiles::list(const fs::path& folder) {
  FL_CHECK(life_->look());
  return disk_.list(folder);
}

Result<void> ProcessFiles::make_folder(const fs::path& folder) {
  FL_CHECK(life_->change());
  return disk_.make_folder(folder);
}

Result<void> ProcessFiles::sync_folder(const fs::path& folder) {
  FL_CHECK(life_->change());
  return disk_.sync_folder(folder);
}

std::string peek(MemFiles& disk, const fs::path& path) {
  if (!disk.exists(path)) return {};
  if (auto text = disk.read_all(path)) return std::move(*text);
  auto text = disk.read_all(path);
  if (!text) return {};
  disk.fail_at(1);  // The first read met a fault that was meant for the process: plan it again.
  return std::move(*text);
}

}  // namespace fl::test
