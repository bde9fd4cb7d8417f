// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mem_files.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace fl::test {

namespace fs = std::filesystem;

namespace {

std::string key_of(const fs::path& path) {
  std::string key = path.lexically_normal().string();
  if (key.size() > 1 && key.back() == '/') key.pop_back();
  return key;
}

std::string folder_of(const std::string& key) { return fs::path(key).parent_path().string(); }

void put(std::string& content, std::uint64_t offset, std::string_view bytes) {
  if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size());
  content.replace(offset, bytes.size(), bytes);
}

/// The changes that survive one crash: all, none, or each with probability 1/2.
class Survival {
 public:
  explicit Survival(std::uint64_t seed) : random_(seed), mood_(random_() % 4) {}
  bool operator()() {
    const bool coin = random_() & 1;
    return mood_ == 0 ? false : mood_ == 1 ? true : coin;
  }

 private:
  std::mt19937_64 random_;
  std::uint64_t mood_;
};

}  // namespace

/// `unsynced` leads from `synced` to `current`, except after a failed sync: what it lost is only in
/// `current`.
struct MemFiles::Node {
  struct Change {
    std::optional<std::uint64_t> new_size;  // A truncation (or growth); otherwise a write.
    std::uint64_t offset = 0;
    std::string bytes;
  };
  std::string current;
  std::string synced;
  std::vector<Change> unsynced;

  static void apply(const Change& change, std::string& content) {
    if (change.new_size) {
      content.resize(*change.new_size);
    } else {
      put(content, change.offset, change.bytes);
    }
  }

  void sync() {
    for (const Change& change : unsynced) apply(change, synced);
    unsynced.clear();
  }

  void crash(Survival& survives) {
    for (const Change& change : unsynced) {
      if (change.new_size) {
        if (survives()) apply(change, synced);
        continue;
      }
      std::string_view rest = change.bytes;
      for (std::uint64_t at = change.offset; !rest.empty();) {
        const auto part = std::min<std::uint64_t>(page_bytes - at % page_bytes, rest.size());
        if (survives()) put(synced, at, rest.substr(0, part));
        at += part;
        rest.remove_prefix(part);
      }
    }
    unsynced.clear();
    current = synced;
  }
};

void MemFiles::NameChange::apply(Names& names) const {
  const auto old = names.find(from);
  if (old != names.end() && old->second == node) names.erase(old);
  if (!to.empty()) names[to] = node;
}

bool MemFiles::NameChange::touches(const std::string& folder) const {
  return (!from.empty() && folder_of(from) == folder) || (!to.empty() && folder_of(to) == folder);
}

class MemFiles::Handle final : public File {
 public:
  Handle(MemFiles& disk, std::shared_ptr<Node> node, std::string path, bool writable)
      : disk_(disk),
        node_(std::move(node)),
        path_(std::move(path)),
        writable_(writable),
        generation_(disk.generation_),
        open_files_(disk.open_files_) {
    ++*open_files_;
  }
  ~Handle() override { --*open_files_; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    const std::lock_guard lock(disk_.mutex_);
    FL_CHECK(begin(Kind::look, "read "));
    if (offset >= node_->current.size()) return std::size_t{0};
    const std::size_t count = std::min<std::size_t>(out.size(), node_->current.size() - offset);
    std::memcpy(out.data(), node_->current.data() + offset, count);
    return count;
  }

  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    const std::lock_guard lock(disk_.mutex_);
    if (!writable_) return Error(Errc::io, "write " + path_ + ": opened to read");
    if (auto begun = begin(Kind::change, "write "); !begun) {
      if (works()) FL_CHECK(disk_.write(*node_, path_, offset, bytes.first(bytes.size() / 2)));
      return begun;
    }
    return disk_.write(*node_, path_, offset, bytes);
  }

  Result<void> truncate(std::uint64_t bytes) override {
    const std::lock_guard lock(disk_.mutex_);
    FL_CHECK(begin(Kind::change, "truncate "));
    if (!writable_) return Error(Errc::io, "truncate " + path_ + ": opened to read");
    disk_.resize(*node_, bytes);
    return {};
  }

  Result<std::uint64_t> size() override {
    const std::lock_guard lock(disk_.mutex_);
    FL_CHECK(begin(Kind::look, "stat "));
    return std::uint64_t{node_->current.size()};
  }

  Result<void> sync() override {
    const std::lock_guard lock(disk_.mutex_);
    if (auto begun = begin(Kind::sync, "sync "); !begun) {
      if (works() && disk_.fault_ == Fault::sync_lost) node_->unsynced.clear();
      return begun;
    }
    node_->sync();
    return {};
  }

  void start_writeback(std::uint64_t, std::uint64_t) override {}

 private:
  /// Whether a failed call failed because of an injected fault. Then it may have had an effect.
  [[nodiscard]] bool works() const {
    return !disk_.power_is_off_ && generation_ == disk_.generation_;
  }

  Result<void> begin(Kind kind, const char* verb) {
    if (generation_ != disk_.generation_) {
      return Error(Errc::io, verb + path_ + ": opened before a crash or a kill");
    }
    return disk_.begin(kind, verb + path_);
  }

  MemFiles& disk_;
  std::shared_ptr<Node> node_;
  std::string path_;
  bool writable_;
  std::uint64_t generation_;
  std::shared_ptr<std::atomic<int>> open_files_;
};

void MemFiles::fail_at(std::uint64_t n, Fault fault) {
  const std::lock_guard lock(mutex_);
  fail_countdown_ = n;
  fault_ = fault;
}

void MemFiles::cut_power_at(std::uint64_t n) {
  const std::lock_guard lock(mutex_);
  cut_countdown_ = n;
}

void MemFiles::space_limit(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  space_ = bytes;
}

void MemFiles::crash(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  Survival survives(seed);
  std::set<Node*> nodes;  // Every file that may still have a name after the crash.
  for (const auto& [path, node] : durable_names_) nodes.insert(node.get());
  for (const NameChange& change : changes_) nodes.insert(change.node.get());
  // In the order of names, not of addresses, so that the result depends on the seed alone.
  for (const Names* names : {&durable_names_, &names_}) {
    for (const auto& [path, node] : *names) {
      if (nodes.erase(node.get()) > 0) node->crash(survives);
    }
  }
  for (const NameChange& change : changes_) {
    if (nodes.erase(change.node.get()) > 0) change.node->crash(survives);
  }
  for (const NameChange& change : changes_) {
    if (survives()) change.apply(durable_names_);
  }
  changes_.clear();
  names_ = durable_names_;
  forget_handles_and_faults();
}

void MemFiles::kill() {
  const std::lock_guard lock(mutex_);
  forget_handles_and_faults();
}

MemFiles::Operations MemFiles::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

std::uint64_t MemFiles::bytes_used() const {
  const std::lock_guard lock(mutex_);
  return used();
}

Result<std::unique_ptr<File>> MemFiles::open(const fs::path& path, OpenMode mode) {
  const std::lock_guard lock(mutex_);
  const std::string key = key_of(path);
  const auto found = names_.find(key);
  const bool is_fresh = mode == OpenMode::fresh;
  const bool may_make = mode == OpenMode::create || mode == OpenMode::truncate || is_fresh;
  const bool makes = may_make && (found == names_.end() || is_fresh);
  FL_CHECK(begin(makes || mode == OpenMode::truncate ? Kind::change : Kind::look, "open " + key));
  if (*open_files_ >= files_limit_) return Error(Errc::unavailable, "open " + key + ": too many");
  if (found == names_.end() && (!may_make || !folders_.contains(folder_of(key)))) {
    return Error(Errc::not_found, "open " + key + ": no such file or folder");
  }
  if (makes && found != names_.end()) change_name({key, "", found->second});
  if (makes) change_name({"", key, std::make_shared<Node>()});
  const std::shared_ptr<Node> node = names_.at(key);
  if (mode == OpenMode::truncate && !node->current.empty()) resize(*node, 0);
  return std::unique_ptr<File>(std::make_unique<Handle>(*this, node, key, mode != OpenMode::read));
}

Result<void> MemFiles::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  FL_CHECK(begin(Kind::change, "rename " + key_of(from)));
  const auto found = names_.find(key_of(from));
  if (found == names_.end() || !folders_.contains(folder_of(key_of(to)))) {
    return Error(Errc::not_found, "rename " + key_of(from) + " to " + key_of(to) + ": not there");
  }
  change_name({key_of(from), key_of(to), found->second});
  return {};
}

Result<void> MemFiles::remove(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  FL_CHECK(begin(Kind::change, "remove " + key_of(path)));
  const auto found = names_.find(key_of(path));
  if (found != names_.end()) change_name({key_of(path), "", found->second});
  return {};
}

bool MemFiles::exists(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  return names_.contains(key_of(path)) || folders_.contains(key_of(path));
}

Result<std::vector<std::string>> MemFiles::list(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  FL_CHECK(begin(Kind::look, "list " + key_of(folder)));
  if (!folders_.contains(key_of(folder))) {
    return Error(Errc::not_found, "list " + key_of(folder) + ": no such folder");
  }
  std::vector<std::string> names;
  for (const auto& [path, node] : names_) {
    if (folder_of(path) == key_of(folder)) names.push_back(fs::path(path).filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> MemFiles::make_folder(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  FL_CHECK(begin(Kind::change, "make folder " + key_of(folder)));
  for (std::string key = key_of(folder); !folders_.contains(key); key = folder_of(key)) {
    if (names_.contains(key)) {
      return Error(Errc::io, "make folder " + key + ": a file has that name");
    }
    folders_.insert(key);
  }
  return {};
}

Result<void> MemFiles::sync_folder(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  FL_CHECK(begin(Kind::change, "sync folder " + key_of(folder)));
  if (!folders_.contains(key_of(folder))) {
    return Error(Errc::not_found, "sync folder " + key_of(folder) + ": no such folder");
  }
  std::erase_if(changes_, [&](const NameChange& change) {
    if (!change.touches(key_of(folder))) return false;
    change.apply(durable_names_);
    return true;
  });
  return {};
}

Result<void> MemFiles::begin(Kind kind, const std::string& what) {
  if (power_is_off_) return Error(Errc::io, what + ": the power is off");
  ++operations_.all;
  if (kind != Kind::look) ++operations_.changes;
  if (kind == Kind::sync) ++operations_.syncs;
  if (kind != Kind::look && cut_countdown_ > 0 && --cut_countdown_ == 0) {
    power_is_off_ = true;
    return Error(Errc::io, what + ": the power went off");
  }
  const bool counts = fault_ == Fault::io || kind == Kind::sync;
  if (counts && fail_countdown_ > 0 && --fail_countdown_ == 0) {
    return Error(Errc::io, what + ": a fault was injected");
  }
  return {};
}

Result<void> MemFiles::write(Node& node, const std::string& path, std::uint64_t offset,
                             Bytes bytes) {
  const std::uint64_t room = space_ - std::min(space_, used());
  const std::uint64_t end_max =
      node.current.size() + std::min(room, no_limit - node.current.size());
  const std::uint64_t may_be_written = is_copying_ ? room : end_max - std::min(end_max, offset);
  const std::uint64_t fits = std::min<std::uint64_t>(bytes.size(), may_be_written);
  if (fits > 0) {
    const std::string text(text_of(bytes.first(fits)));
    put(node.current, offset, text);
    node.unsynced.push_back({{}, offset, text});
  }
  if (fits < bytes.size()) return Error(Errc::no_space, "write " + path + ": the disk is full");
  return {};
}

void MemFiles::resize(Node& node, std::uint64_t bytes) {
  node.current.resize(bytes);
  node.unsynced.push_back({bytes, 0, {}});
}

void MemFiles::change_name(NameChange change) {
  change.apply(names_);
  changes_.push_back(std::move(change));
}

void MemFiles::forget_handles_and_faults() {
  fail_countdown_ = cut_countdown_ = 0;
  power_is_off_ = false;
  ++generation_;
}

std::uint64_t MemFiles::used() const {
  std::uint64_t bytes = 0;
  for (const auto& [path, node] : names_) bytes += node->current.size();
  return bytes;
}

}  // namespace fl::test
