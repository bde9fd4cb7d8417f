// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/near_sums.hpp"

#include "client/learn/process/socket_line.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <stdexcept>

namespace fl::site {

namespace {

constexpr std::size_t line_bytes = 64;  // A cache line: ranks do not write into each other's.
constexpr std::size_t token_bytes = 32;
// For two ranks, whose floats are summed here too, and for more.
constexpr std::size_t slot_bytes_of_two = 256 << 10;
constexpr std::size_t slot_bytes_otherwise = 4 << 10;
constexpr int spins = 400;  // About 20 us. More would take the core from the rank's threads.
constexpr auto look = std::chrono::milliseconds(20);  // Between two looks at a rank's process.

std::size_t slot_bytes_of(int size) { return size == 2 ? slot_bytes_of_two : slot_bytes_otherwise; }

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* wait) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, wait,
                   nullptr, 0);
}

}  // namespace

/// The memory of a rank that the others read. A rank writes into one of its two slots while others
/// may still read the other one: when all have published a turn, all have read the turn before.
struct NearSums::Place {
  alignas(line_bytes) std::atomic<std::uint32_t> published;  // The rank's newest turn.
  std::atomic<std::uint32_t> waiting;                        // Ranks that sleep for it.
  std::atomic<std::uint32_t> has_left;
  std::atomic<std::int32_t> process;
  std::array<std::atomic<std::uint64_t>, 2> bytes;  // In each of the rank's slots.
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class NearSums::Memory {
 public:
  /// Null if the memory can't be mapped.
  static std::unique_ptr<Memory> of(int file, int size) {
    const std::size_t bytes = bytes_of(size);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return nullptr;
    return std::unique_ptr<Memory>(new Memory(static_cast<std::byte*>(at), size));
  }
  ~Memory() { ::munmap(at_, bytes_of(size_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static std::size_t bytes_of(int size) {
    return line_bytes + static_cast<std::size_t>(size) * (sizeof(Place) + 2 * slot_bytes_of(size));
  }
  [[nodiscard]] char* token() const { return reinterpret_cast<char*>(at_); }
  [[nodiscard]] Place& place(int rank) const {
    return *reinterpret_cast<Place*>(at_ + line_bytes +
                                     static_cast<std::size_t>(rank) * sizeof(Place));
  }
  [[nodiscard]] std::byte* slot(int rank, std::uint32_t turn) const {
    const std::size_t before = 2 * static_cast<std::size_t>(rank) + turn % 2;
    return at_ + line_bytes + static_cast<std::size_t>(size_) * sizeof(Place) +
           before * slot_bytes_of(size_);
  }

 private:
  Memory(std::byte* at, int size) : at_(at), size_(size) {}

  std::byte* at_;
  int size_;
};

NearSums::NearSums(std::unique_ptr<Memory> memory, int rank, int size)
    : memory_(std::move(memory)), rank_(rank), size_(size) {
  memory_->place(rank).process = ::getpid();
}

NearSums::~NearSums() {
  Place& mine = memory_->place(rank_);
  mine.has_left = 1;
  futex(mine.published, FUTEX_WAKE, INT_MAX, nullptr);
  for (const int process : processes_)
    if (process >= 0) ::close(process);
}

namespace {

constexpr const char* told_at = "near sums";

/// Where the others find the memory: a process, its file, and a token by which they know the file.
struct Told {
  long process = 0;
  int file = -1;
  std::array<char, token_bytes + 1> token{};

  [[nodiscard]] std::string text() const {
    return fmt::format("{} {} {}", process, file, token.data());
  }
  static Told parse(const std::string& text) {
    Told told;
    if (std::sscanf(text.c_str(), "%ld %d %32s", &told.process, &told.file, told.token.data()) != 3)
      told.file = -1;
    return told;
  }
};

Told make_token(int file) {
  Told told{.process = ::getpid(), .file = file, .token = {}};
  std::array<unsigned char, token_bytes / 2> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    told.file = -1;
  std::string hex;
  for (const unsigned char byte : random) hex += fmt::format("{:02x}", byte);
  std::ranges::copy(hex, told.token.begin());
  return told;
}

}  // namespace

std::unique_ptr<NearSums> NearSums::make(c10d::Store& store, int rank, int size,
                                         const Agree& agree) {
  if (size < 2) return nullptr;
  std::unique_ptr<Memory> memory;
  const auto bytes = static_cast<off_t>(Memory::bytes_of(size));
  Descriptor file(rank == 0 ? ::memfd_create("tributary-ranks", MFD_CLOEXEC) : -1);
  if (rank == 0) {
    // The room is taken now, because writing to memory that is not there would end the process.
    Told told;
    if (file.number() >= 0 && ::posix_fallocate(file.number(), 0, bytes) == 0) {
      memory = Memory::of(file.number(), size);
      told = make_token(file.number());
    }
    if (memory) std::ranges::copy(told.token, memory->token());
    store.set(told_at, told.text());
  } else {
    const Told told = Told::parse(store.get_to_str(told_at));
    const std::string path = fmt::format("/proc/{}/fd/{}", told.process, told.file);
    const Descriptor found(told.file < 0 ? -1 : ::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat status {};
    if (found.number() >= 0 && ::fstat(found.number(), &status) == 0 && status.st_size == bytes)
      memory = Memory::of(found.number(), size);
    // Where the ranks are in containers of their own, another process may have this number.
    if (memory && std::memcmp(memory->token(), told.token.data(), told.token.size()) != 0)
      memory.reset();
  }
  std::unique_ptr<NearSums> sums;
  if (memory) sums.reset(new NearSums(std::move(memory), rank, size));
  if (agree(sums ? 1 : 0) != size) return nullptr;
  if (agree(sums->watch_others() ? 1 : 0) != size) return nullptr;
  return sums;
}

bool NearSums::watch_others() {
  for (int rank = 0; rank < size_; ++rank) {
    const auto process = memory_->place(rank).process.load();
    processes_.push_back(rank == rank_ ? -1
                                       : static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (rank != rank_ && processes_.back() < 0) return false;
  }
  return true;
}

bool NearSums::takes(const torch::Tensor& values) const {
  if (values.nbytes() > slot_bytes_of(size_)) return false;
  const torch::ScalarType type = values.scalar_type();
  if (c10::isIntegralType(type, /*includeBool=*/false)) return true;
  return size_ == 2 && (type == torch::kFloat32 || type == torch::kFloat64);
}

void NearSums::sum(torch::Tensor& values, std::chrono::milliseconds timeout, const Check& check) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const std::uint32_t turn = ++turn_;
  const std::size_t bytes = values.nbytes();
  Place& mine = memory_->place(rank_);
  std::memcpy(memory_->slot(rank_, turn), values.const_data_ptr(), bytes);
  mine.bytes[turn % 2] = bytes;
  mine.published = turn;
  if (mine.waiting > 0) futex(mine.published, FUTEX_WAKE, INT_MAX, nullptr);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) await(rank, turn, until, check);
    if (const std::uint64_t its = memory_->place(rank).bytes[turn % 2]; its != bytes)
      throw std::runtime_error(fmt::format("rank {} sums {} bytes, this one {}", rank, its, bytes));
    const torch::Tensor addend =
        torch::from_blob(memory_->slot(rank, turn), values.sizes(), values.options());
    if (rank == 0)
      values.copy_(addend);
    else
      values.add_(addend);
  }
}

void NearSums::await(int rank, std::uint32_t turn, std::chrono::steady_clock::time_point until,
                     const Check& check) {
  Place& its = memory_->place(rank);
  // The other rank may be one turn ahead: then it waits for this one.
  const auto is_there = [&] { return static_cast<std::int32_t>(its.published - turn) >= 0; };
  for (int i = 0; i < spins && !is_there(); ++i) __builtin_ia32_pause();
  while (!is_there()) {
    check();
    if (its.has_left != 0) throw std::runtime_error(fmt::format("rank {} has left", rank));
    pollfd process{
        .fd = processes_[static_cast<std::size_t>(rank)], .events = POLLIN, .revents = 0};
    if (::poll(&process, 1, 0) > 0)
      throw std::runtime_error(fmt::format("the process of rank {} has ended", rank));
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error(fmt::format("rank {} did not come in time", rank));
    const std::uint32_t seen = its.published;
    ++its.waiting;
    const timespec wait{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(look).count()};
    if (static_cast<std::int32_t>(seen - turn) < 0) futex(its.published, FUTEX_WAIT, seen, &wait);
    --its.waiting;
  }
}

}  // namespace fl::site
