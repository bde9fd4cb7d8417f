// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/drawn_rights.hpp"

#include "shared/codec/blocks/low_rank_block.hpp"

namespace fl::codec {

DrawnRights::Values DrawnRights::get(std::uint64_t key, std::uint32_t rank, std::uint64_t cols) {
  std::shared_ptr<Drawn> drawn;
  {
    const MutexLock lock(mutex_);
    std::weak_ptr<Drawn>& known = known_[{key, rank, cols}];
    drawn = known.lock();
    if (!drawn) {
      known = drawn = std::make_shared<Drawn>();
      ++draws_;
    }
    last_ = drawn;
    std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
  }
  std::call_once(drawn->once, [&] { drawn->values = drawn_right(key, rank, cols); });
  return {drawn, &drawn->values};
}

std::size_t DrawnRights::draws() const {
  const MutexLock lock(mutex_);
  return draws_;
}

}  // namespace fl::codec
