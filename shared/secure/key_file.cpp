// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/key_file.hpp"

#include "shared/base/io/secret_file.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/secure/member_list.hpp"

#include <openssl/crypto.h>

#include <string>

namespace fl::secure {

namespace {

constexpr std::string_view prefix = "tributary-key-1 ";

}  // namespace

Result<Secret> read_key_file(Files& files, const std::filesystem::path& path) {
  FL_TRY(std::string text, read_secret_file(files, path));
  const bool has_prefix = text.starts_with(prefix);
  auto key = parse_key_text(has_prefix ? std::string_view(text).substr(prefix.size()) : "");
  OPENSSL_cleanse(text.data(), text.size());
  if (!has_prefix || !key)
    return Error(Errc::corrupt, path.string() + " is not a key that 'fl-client site-key' has made");
  const Secret secret{Bytes(*key)};
  OPENSSL_cleanse(key->data(), key->size());
  return secret;
}

Result<Secret> make_key_file(Files& files, const std::filesystem::path& path) {
  FL_TRY(const Secret secret, Secret::draw());
  FL_CHECK(expect_no_file(path));
  FL_TRY(const auto file, files.open(path, OpenMode::fresh));
  std::string line = std::string(prefix) + to_hex(secret.bytes()) + "\n";
  const auto written = file->write_at(0, bytes_of(line));
  OPENSSL_cleanse(line.data(), line.size());
  FL_CHECK(written);
  FL_CHECK(file->sync());
  const auto folder = path.parent_path();
  FL_CHECK(files.sync_folder(folder.empty() ? "." : folder));
  return secret;
}

}  // namespace fl::secure
