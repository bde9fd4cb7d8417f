// SPDX-License-Identifier: Apache-2.0
// text:PATH and tokens:PATH: documents as sequences of tokens, cut into pieces. Piece k of a
// document has the tokens from k * piece on, and one more, which it shares with the next.
#include "client/learn/data/gzip_reader.hpp"
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/bad_files.hpp"
#include "client/learn/data/readers/file_list.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/log.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/params/model_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kept_bytes_of_piece = sizeof(TextPiece) + 4;  // And its group.
constexpr std::size_t read_bytes = 64 << 10;                          // At once: whole tokens.
/// A file of 32-bit tokens that is read as 16-bit ones has their upper halves at odd places.
constexpr std::uint32_t upper_half_max = model_size_max >> 16;
constexpr std::uint64_t told_apart_min = 16;  // Tokens from which on that is no chance.

Result<std::vector<ListedFile>> find_documents(const fs::path& path) {
  std::error_code failed;
  const auto status = fs::status(path, failed);
  if (status.type() == fs::file_type::not_found)
    return Error(Errc::not_found, fmt::format("no file or folder {}", path.string()));
  if (status.type() != fs::file_type::directory)
    return std::vector<ListedFile>{{.path = path, .name = path.filename().string()}};
  return list_files(path);
}

/// A document's tokens, as far as they are read.
struct Tokens {
  std::uint64_t count = 0;
  std::uint32_t largest = 0;
  std::uint32_t largest_odd = 0;  // At places 1, 3, 5, ...

  void add(std::span<const std::byte> bytes, std::uint32_t token_bytes) {
    for (std::size_t place = 0; place < bytes.size() / token_bytes; ++place) {
      const std::uint32_t token = token_at(bytes, place, token_bytes);
      largest = std::max(largest, token);
      if (count++ % 2 == 1) largest_odd = std::max(largest_odd, token);
    }
  }
};

class TextReader {
 public:
  /// `group`: "file", "folder" or "".
  TextReader(const DataRequest& request, std::uint32_t token_bytes, std::uint32_t piece)
      : group_(request.group),
        piece_(piece),
        writer_(request.memory_bytes),
        kept_(KeptBytes::beside(request.memory_bytes)),
        bad_(request.skip_bad_files) {
    set_.kind = DataSet::Kind::text;
    set_.shape = {std::int64_t{piece} + 1};
    set_.token_bytes = token_bytes;
  }

  /// Errors: those of the storage; a document that is bad is noted.
  Result<void> add(const ListedFile& document) {
    const std::uint64_t begin = writer_.bytes() / set_.token_bytes;
    auto file = GzipReader::open(document.path);
    if (!file) return note(file.error());
    Tokens tokens;
    for (std::size_t got = bytes_.size(); got == bytes_.size();) {
      const auto read = file->read_some(bytes_);
      if (!read) return note(read.error());
      got = *read;
      if (got % set_.token_bytes != 0) return note(no_tokens(*file));
      const auto fresh = std::as_bytes(std::span<const std::uint8_t>(bytes_).first(got));
      if (set_.token_bytes == 1) {
        tokens.count += got;
      } else {
        tokens.add(fresh, set_.token_bytes);
        digest_.update(fresh);
      }
      FL_CHECK(writer_.append(fresh));
    }
    if (const auto fault = fault_of(tokens); !fault.empty()) return note(file->corrupt(fault));
    largest_ = std::max(largest_, tokens.largest);
    return add_pieces(document, begin, tokens.count);
  }

  /// All that was read. `path`: of the folder or file.
  Result<DataSet> finish(const std::string& path, std::size_t documents) {
    FL_CHECK(bad_.finish(path, documents));
    if (set_.pieces.empty()) {
      return Error(Errc::corrupt, fmt::format("{}: there is no file with at least 2 {}", path,
                                              set_.token_bytes == 1 ? "bytes" : "tokens"));
    }
    FL_TRY(set_.inputs, writer_.finish());
    groups_.finish(set_);
    if (set_.token_bytes > 1) set_.vocabulary = largest_ + 1;
    return std::move(set_);
  }
  /// The digest of all tokens that are numbers, one document behind the other.
  [[nodiscard]] Digest digest() const { return digest_.digest(); }

 private:
  Result<void> note(Error error) {
    bad_.add(std::move(error));
    return {};
  }
  [[nodiscard]] Error no_tokens(const GzipReader& file) const {
    return file.corrupt(fmt::format("its {} bytes are no whole number of {}-bit tokens",
                                    file.offset(), 8 * set_.token_bytes));
  }
  [[nodiscard]] std::string fault_of(const Tokens& tokens) const {
    if (tokens.largest >= model_size_max) {
      return fmt::format("token {} is beyond {}: these look like 16-bit tokens, for bits=16",
                         tokens.largest, model_size_max - 1);
    }
    const bool looks_wide = set_.token_bytes == 2 && tokens.count >= told_apart_min &&
                            tokens.count % 2 == 0 && tokens.largest_odd < upper_half_max &&
                            tokens.largest > tokens.largest_odd;
    if (!looks_wide) return "";
    return fmt::format(
        "every second token is at most {}: these look like 32-bit tokens, for bits=32",
        tokens.largest_odd);
  }

  Result<void> add_pieces(const ListedFile& document, std::uint64_t begin, std::uint64_t tokens) {
    for (std::uint64_t at = 0; at + 1 < tokens; at += piece_) {
      if (set_.pieces.size() == examples_max) {
        return Error(Errc::too_large, fmt::format("{}: more than {} pieces of {} tokens",
                                                  document.path.string(), examples_max, piece_));
      }
      FL_CHECK(kept_.add(kept_bytes_of_piece));
      const auto length = std::min<std::uint64_t>(std::uint64_t{piece_} + 1, tokens - at);
      set_.pieces.push_back({begin + at, static_cast<std::uint32_t>(length)});
      if (!group_.empty()) FL_CHECK(groups_.add(group_of(document)));
    }
    return {};
  }
  [[nodiscard]] std::string group_of(const ListedFile& document) const {
    return normal_form(group_ == "file" ? document.name : folder_of(document));
  }

  std::string_view group_;
  std::uint32_t piece_;
  StorageWriter writer_;
  KeptBytes kept_;
  BadFiles bad_;
  GroupNames groups_;
  Hasher digest_;
  std::uint32_t largest_ = 0;
  DataSet set_;
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(read_bytes);
};

/// The number of piece=, or of what takes its place. Errors: invalid_input.
Result<std::uint32_t> piece_of(const DataRequest& request, const std::string& text) {
  if (text.empty()) return piece_tokens_default;
  const auto tokens = number_in<std::uint32_t>(text);
  if (tokens && *tokens >= 1 && *tokens <= piece_tokens_max) return *tokens;
  return wrong_data(request,
                    fmt::format("piece={} is no number from 1 to {}", text, piece_tokens_max));
}

Result<std::uint32_t> token_bytes_of(const DataRequest& request, const std::string& bits) {
  if (bits.empty() || bits == "16") return 2U;
  if (bits == "32") return 4U;
  return wrong_data(request, fmt::format("bits={} is neither 16 nor 32", bits));
}

Result<void> check_group(const DataRequest& request) {
  if (request.group.empty() || request.group == "file" || request.group == "folder") return {};
  return wrong_data(request,
                    fmt::format("by:{}: texts are divided by:file or by:folder", request.group));
}

struct ReadText {
  DataSet set;
  Digest digest;  // TextReader::digest().
};

Result<ReadText> read_documents(const DataRequest& request, const std::string& path,
                                std::uint32_t token_bytes, const std::string& piece_text) {
  FL_TRY(const std::uint32_t piece, piece_of(request, piece_text));
  FL_CHECK(check_group(request));
  FL_TRY(const auto documents, find_documents(path));
  TextReader reader(request, token_bytes, piece);
  for (const ListedFile& document : documents) FL_CHECK(reader.add(document));
  FL_TRY(DataSet set, reader.finish(path, documents.size()));
  return ReadText{.set = std::move(set), .digest = reader.digest()};
}

}  // namespace

Result<DataSet> read_text(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, "text:FILE or text:DIR"));
  const std::string piece = options.text("piece");
  FL_CHECK(options.finish());
  FL_TRY(ReadText read, read_documents(request, options.path(), 1, piece));
  return std::move(read.set);
}

Result<DataSet> read_tokens(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, "tokens:FILE or tokens:DIR"));
  const std::string bits = options.text("bits");
  const std::string piece = options.text("piece");
  const std::string digest = options.text("digest");
  FL_CHECK(options.finish());
  FL_TRY(const std::uint32_t token_bytes, token_bytes_of(request, bits));
  if (!digest.empty() && request.skip_bad_files)
    return wrong_data(request,
                      "digest= is that of all files: it does not go with --skip-bad-files");
  if (!digest.empty() && !Digest::parse_hex(digest))
    return wrong_data(request, fmt::format("digest={} is not 32 hexadecimal digits", digest));
  FL_TRY(ReadText read, read_documents(request, options.path(), token_bytes, piece));
  const std::uint64_t tokens = read.set.inputs.bytes().size() / token_bytes;
  log_info("{}: {} tokens to {}, digest {}", options.path(), tokens, read.set.vocabulary - 1,
           read.digest.hex());
  if (!digest.empty() && read.digest.hex() != digest) {
    return Error(Errc::corrupt, fmt::format("{}: its tokens have the digest {}, not {}",
                                            options.path(), read.digest.hex(), digest));
  }
  return std::move(read.set);
}

}  // namespace fl
