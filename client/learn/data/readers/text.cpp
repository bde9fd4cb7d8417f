// SPDX-License-Identifier: Apache-2.0
// text:FILE and text:DIR: documents as bytes, cut into pieces. Piece k of a document has the bytes
// from k * (text_piece_bytes - 1) on, so that neighbours share one byte.
#include "client/learn/data/gzip_reader.hpp"
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/bad_files.hpp"
#include "client/learn/data/readers/file_list.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/storage_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <vector>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kept_bytes_of_piece = 2 + 4;  // The length and the group of a piece.
constexpr std::size_t check_piece_bytes = 64 << 10;
constexpr std::string_view text_usage = "text:FILE or text:DIR";

Result<std::vector<ListedFile>> find_documents(const fs::path& path) {
  std::error_code failed;
  const auto status = fs::status(path, failed);
  if (status.type() == fs::file_type::not_found)
    return Error(Errc::not_found, fmt::format("no file or folder {}", path.string()));
  if (status.type() != fs::file_type::directory)
    return std::vector<ListedFile>{{.path = path, .name = path.filename().string()}};
  return list_files(path);
}

/// Reads a document to its end, because pieces of one that ends badly must not be kept.
Result<void> check_document(const ListedFile& document) {
  FL_TRY(GzipReader file, GzipReader::open(document.path));
  std::array<std::uint8_t, check_piece_bytes> piece;
  for (std::size_t got = piece.size(); got == piece.size();) {
    FL_TRY(got, file.read_some(piece));
  }
  return {};
}

class TextPieces {
 public:
  /// `group`: "file", "folder" or "".
  TextPieces(std::uint64_t memory_bytes, std::string_view group)
      : group_(group), writer_(memory_bytes), kept_(KeptBytes::beside(memory_bytes)) {
    set_.kind = DataSet::Kind::text;
    set_.shape = {text_piece_bytes};
  }

  Result<void> add(const ListedFile& document) {
    FL_TRY(GzipReader file, GzipReader::open(document.path));
    FL_TRY(std::size_t filled, file.read_some(piece_));
    while (filled >= 2) {
      FL_CHECK(add_piece(document, filled));
      if (filled < piece_.size()) break;
      piece_[0] = piece_.back();
      FL_TRY(const std::size_t more, file.read_some(std::span(piece_).subspan(1)));
      filled = 1 + more;
    }
    return {};
  }

  Result<DataSet> finish() {
    FL_TRY(set_.inputs, writer_.finish());
    groups_.finish(set_);
    return std::move(set_);
  }

 private:
  Result<void> add_piece(const ListedFile& document, std::size_t filled) {
    if (set_.lengths.size() == examples_max) {
      return Error(Errc::too_large,
                   fmt::format("{}: more than {} pieces of {} bytes", document.path.string(),
                               examples_max, text_piece_bytes));
    }
    FL_CHECK(kept_.add(kept_bytes_of_piece));
    std::fill(piece_.begin() + static_cast<std::ptrdiff_t>(filled), piece_.end(), std::uint8_t{0});
    set_.lengths.push_back(static_cast<std::uint16_t>(filled));
    if (!group_.empty()) FL_CHECK(groups_.add(group_of(document)));
    return writer_.append(std::as_bytes(std::span(piece_)));
  }
  [[nodiscard]] std::string group_of(const ListedFile& document) const {
    return normal_form(group_ == "file" ? document.name : folder_of(document));
  }

  std::string_view group_;
  StorageWriter writer_;
  KeptBytes kept_;
  GroupNames groups_;
  DataSet set_;
  std::array<std::uint8_t, text_piece_bytes> piece_{};
};

/// Only --skip-bad-files needs to know beforehand whether a document is bad. Without it a bad one
/// is an error in the end, and those behind it are only checked.
Result<void> add_document(TextPieces& pieces, const ListedFile& document, BadFiles& bad) {
  const bool is_checked = bad.is_skipping() || bad.count() > 0;
  auto read = is_checked ? check_document(document) : pieces.add(document);
  if (read) return bad.is_skipping() ? pieces.add(document) : success();
  // The storage of the pieces may have failed instead of the document.
  const auto checked = is_checked ? read : check_document(document);
  if (checked) return read;
  bad.add(checked.error());
  return {};
}

}  // namespace

Result<DataSet> read_text(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, text_usage));
  FL_CHECK(options.finish());
  if (!request.group.empty() && request.group != "file" && request.group != "folder") {
    return wrong_data(request,
                      fmt::format("by:{}: texts are divided by:file or by:folder", request.group));
  }
  FL_TRY(const auto documents, find_documents(options.path()));
  TextPieces pieces(request.memory_bytes, request.group);
  BadFiles bad(request.skip_bad_files);
  for (const ListedFile& document : documents) FL_CHECK(add_document(pieces, document, bad));
  FL_CHECK(bad.finish(options.path(), documents.size()));
  FL_TRY(DataSet set, pieces.finish());
  if (!set.lengths.empty()) return set;
  return Error(Errc::corrupt,
               fmt::format("{}: there is no file with at least 2 bytes", options.path()));
}

}  // namespace fl
