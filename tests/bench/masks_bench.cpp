// SPDX-License-Identifier: Apache-2.0
// What masks cost a member: the words of one update are masked as in a round of n members, and the
// same number of bytes is made by bare AES-256-CTR. One thread. Prints a table.
//
//   masks_bench [PARAMETERS]     by default 10,000,000, in lanes of 8 bits for a single member
#include "client/secure/seat.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace fl::bench {
namespace {

constexpr int level_bits = 8;
constexpr std::size_t piece_bytes = 16384;  // The cipher's best case: all lies in the first cache.

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds that AES-256-CTR needs for so many bytes.
double bare_seconds(std::uint64_t bytes) {
  const std::vector<unsigned char> key(32, 7);
  const std::vector<unsigned char> zeros(piece_bytes);
  std::vector<unsigned char> out(piece_bytes);
  EVP_CIPHER_CTX* const cipher = EVP_CIPHER_CTX_new();
  EVP_EncryptInit_ex2(cipher, EVP_aes_256_ctr(), key.data(), zeros.data(), nullptr);
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
    int length = 0;
    EVP_EncryptUpdate(cipher, out.data(), &length, zeros.data(), static_cast<int>(piece_bytes));
  }
  const double seconds = seconds_since(start);
  EVP_CIPHER_CTX_free(cipher);
  return seconds;
}

void measure(std::uint64_t parameters, std::uint32_t members) {
  client::Masks masks;  // A pair's with each other member, and its own.
  for (std::uint32_t i = 0; i < members; ++i)
    masks.add(secure::Secret::draw().value(), client::Masks::Way::add);
  const auto lanes = static_cast<std::uint64_t>(64 / (level_bits + std::bit_width(members - 1)));
  std::vector<std::uint64_t> words((parameters + lanes - 1) / lanes, 1);
  const auto start = std::chrono::steady_clock::now();
  masks.apply(0, words);
  const double seconds = seconds_since(start);
  const std::uint64_t bytes = words.size() * sizeof(std::uint64_t);
  const double bare = bare_seconds(bytes * members);
  fmt::print("| {} | {:.1f} | {:.3f} | {:.2f} | {:.2f} |\n", members,
             static_cast<double>(bytes) / 1e6, seconds,
             static_cast<double>(bytes * members) / seconds / 1e9, bare / seconds);
}

}  // namespace
}  // namespace fl::bench

int main(int argc, char** argv) {
  const std::uint64_t parameters = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  fmt::print("{} parameters\n\n", parameters);
  fmt::print("| members | MB of words | s for a member | GB/s of masks | of bare AES-256-CTR |\n");
  fmt::print("|---|---|---|---|---|\n");
  for (const std::uint32_t members : {3u, 8u, 32u, 100u}) fl::bench::measure(parameters, members);
}
