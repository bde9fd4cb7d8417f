// SPDX-License-Identifier: Apache-2.0
// TensorFolder: the private folder in which a client and its trainer program exchange tensors: in
// memory where that has room. Its name follows from the client's state folder. The program holds a
// lock in it as long as it lives, so that any program of this user can tell, and remove, what one
// that was killed has left. Any thread, one at a time.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>

namespace fl {

class TensorFolder {
 public:
  /// Makes an empty folder with mode 0700 under `memory`, or in `state` if that can't be. Errors:
  /// those of making a folder.
  [[nodiscard]] static Result<TensorFolder> make(const std::filesystem::path& state,
                                                 const std::filesystem::path& memory = "/dev/shm");
  /// Removes from `memory` what programs of this user that were killed have left there.
  static void remove_left(const std::filesystem::path& memory = "/dev/shm");
  /// Removes the folders and what is in them.
  ~TensorFolder();
  TensorFolder(TensorFolder&& other) noexcept;
  TensorFolder& operator=(TensorFolder&&) = delete;
  TensorFolder(const TensorFolder&) = delete;
  TensorFolder& operator=(const TensorFolder&) = delete;

  /// Where small files lie: the socket.
  [[nodiscard]] const std::filesystem::path& path() const { return small_; }
  /// Where tensors lie. The same, unless make_room() found too little memory.
  [[nodiscard]] const std::filesystem::path& tensors() const { return large_; }
  /// Decides where tensors lie, if all together they take up to so many bytes.
  [[nodiscard]] Result<void> make_room(std::uint64_t bytes);

 private:
  TensorFolder(std::filesystem::path small, std::filesystem::path on_disk, Descriptor lock);

  Descriptor lock_;  // None if the folder is not in memory.
  std::filesystem::path small_;
  std::filesystem::path on_disk_;
  std::filesystem::path large_;
};

}  // namespace fl
