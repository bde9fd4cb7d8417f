// SPDX-License-Identifier: Apache-2.0
#include "server/versions/npz_writer.hpp"

#include <fmt/format.h>

#include <concepts>
#include <limits>

namespace fl::server {

namespace {

constexpr std::uint16_t zip_version = 45;       // The first version with ZIP64.
constexpr std::uint16_t made_on_unix = 3 << 8;  // Makes the mode below count.
constexpr std::uint16_t names_are_utf8 = 1 << 11;
/// 1 January 1980, so that the same model gives the same bytes.
constexpr std::uint16_t first_day = 1 << 5 | 1;
constexpr std::uint16_t see_zip64_16 = 0xffff;
constexpr std::uint32_t see_zip64 = 0xffffffff;
constexpr std::uint16_t zip64_field = 1;

/// Little-endian, like all numbers in a zip.
template <std::unsigned_integral T>
void put_number(std::string& out, T number) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i));
}

void put16(std::string& out, std::uint16_t number) { put_number(out, number); }
void put32(std::string& out, std::uint32_t number) { put_number(out, number); }
void put64(std::string& out, std::uint64_t number) { put_number(out, number); }

/// The fields that local header and directory have in common: from the version to the lengths of
/// the sizes.
void put_common(std::string& out, std::uint32_t crc) {
  put16(out, zip_version);
  put16(out, names_are_utf8);
  put16(out, 0);  // The method: stored, without compression.
  put16(out, 0);  // The time of day.
  put16(out, first_day);
  put32(out, crc);
  put32(out, see_zip64);
  put32(out, see_zip64);
}

std::string npy_header(std::span<const std::int64_t> shape) {
  std::string sizes;
  for (const std::int64_t size : shape) sizes += fmt::format("{}, ", size);
  if (shape.size() == 1) sizes.pop_back();  // "(3,)"
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes);
  constexpr std::size_t head_bytes = 10;
  constexpr std::size_t alignment = 64;
  const std::size_t used = head_bytes + text.size() + 1;
  text.append((alignment - used % alignment) % alignment, ' ');
  text += '\n';
  FL_ASSERT(text.size() <= std::numeric_limits<std::uint16_t>::max());
  std::string out = "\x93NUMPY\x01";
  out += '\0';
  put16(out, static_cast<std::uint16_t>(text.size()));
  return out + text;
}

}  // namespace

std::string NpzWriter::local_header(const Entry& entry) {
  std::string out;
  put32(out, 0x04034b50);
  put_common(out, entry.crc);
  put16(out, static_cast<std::uint16_t>(entry.name.size()));
  put16(out, 20);  // The length of the field below.
  out += entry.name;
  put16(out, zip64_field);
  put16(out, 16);
  put64(out, entry.bytes);
  put64(out, entry.bytes);
  return out;
}

std::string NpzWriter::directory_entry(const Entry& entry) {
  std::string out;
  put32(out, 0x02014b50);
  put16(out, made_on_unix | zip_version);
  put_common(out, entry.crc);
  put16(out, static_cast<std::uint16_t>(entry.name.size()));
  put16(out, 28);  // The length of the field below.
  put16(out, 0);   // No comment.
  put16(out, 0);   // The number of the first disk.
  put16(out, 0);
  put32(out, 0100600u << 16);  // The mode of a file that its owner may read and write.
  put32(out, see_zip64);
  out += entry.name;
  put16(out, zip64_field);
  put16(out, 24);
  put64(out, entry.bytes);
  put64(out, entry.bytes);
  put64(out, entry.offset);
  return out;
}

Result<void> NpzWriter::put(Bytes bytes) {
  FL_CHECK(file_->write_at(end_, bytes));
  end_ += bytes.size();
  writeback_.reached(*file_, end_);
  return {};
}

Result<void> NpzWriter::begin(std::string_view name, std::span<const std::int64_t> shape) {
  FL_CHECK(end_entry());
  entries_.push_back({fmt::format("{}.npy", name), end_, 0, 0});
  is_open_ = true;
  values_left_ = 1;
  for (const std::int64_t size : shape) values_left_ *= static_cast<std::uint64_t>(size);
  crc_.reset();
  FL_CHECK(put(bytes_of(local_header(entries_.back()))));
  const std::string header = npy_header(shape);
  entries_.back().bytes = header.size();
  crc_.process_bytes(header.data(), header.size());
  return put(bytes_of(header));
}

Result<void> NpzWriter::append(std::span<const float> values) {
  FL_ASSERT(is_open_ && values.size() <= values_left_);
  values_left_ -= values.size();
  const Bytes bytes = std::as_bytes(values);
  entries_.back().bytes += bytes.size();
  crc_.process_bytes(bytes.data(), bytes.size());
  return put(bytes);
}

/// Ends an entry: size and checksum are known now, and go into the header before the values.
Result<void> NpzWriter::end_entry() {
  if (!is_open_) return {};
  FL_ASSERT(values_left_ == 0);
  is_open_ = false;
  entries_.back().crc = crc_.checksum();
  return file_->write_at(entries_.back().offset, bytes_of(local_header(entries_.back())));
}

Result<void> NpzWriter::finish() {
  FL_CHECK(end_entry());
  const std::uint64_t directory = end_;
  for (const Entry& entry : entries_) FL_CHECK(put(bytes_of(directory_entry(entry))));
  const std::uint64_t directory_end = end_;
  std::string out;
  put32(out, 0x06064b50);  // The record at the end of the directory, with 64 bits.
  put64(out, 44);          // The number of bytes that follow in this record.
  put16(out, made_on_unix | zip_version);
  put16(out, zip_version);
  put32(out, 0);
  put32(out, 0);
  put64(out, entries_.size());
  put64(out, entries_.size());
  put64(out, directory_end - directory);
  put64(out, directory);
  put32(out, 0x07064b50);  // The locator of that record.
  put32(out, 0);
  put64(out, directory_end);
  put32(out, 1);           // The number of disks.
  put32(out, 0x06054b50);  // The end record for readers without ZIP64.
  put16(out, 0);
  put16(out, 0);
  put16(out, see_zip64_16);
  put16(out, see_zip64_16);
  put32(out, see_zip64);
  put32(out, see_zip64);
  put16(out, 0);
  FL_CHECK(put(bytes_of(out)));
  return file_->truncate(end_);
}

}  // namespace fl::server
