// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/data.hpp"
#include "client/learn/data/readers/readers.hpp"
#include "tests/client/learn/idx_files.hpp"
#include "tests/support/image_data.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace fl::test;

// 40 training images of one pixel, whose value is the image's number, and 5 test images.
struct Folder {
  TemporaryFolder folder;
  fl::LearnOptions options;

  Folder() {
    std::string pixels;
    std::string labels;
    for (int i = 0; i < 40; ++i) {
      pixels += static_cast<char>(i);
      labels += static_cast<char>(i % 10);
    }
    write_plain(folder.path() / "train-images-idx3-ubyte", idx_images(40, 1, 1, pixels));
    write_gzipped(folder.path() / "train-labels-idx1-ubyte.gz", idx_labels(40, labels));
    write_gzipped(folder.path() / "t10k-images-idx3-ubyte.gz", idx_images(5, 1, 1, "abcde"));
    write_plain(folder.path() / "t10k-labels-idx1-ubyte",
                idx_labels(5, std::string_view("\0\1\2\3\4", 5)));
    options.data = "idx:" + folder.path().string();
  }

  void expect(fl::Errc code, std::string_view words) const {
    const auto data = fl::load_local_data(options);
    REQUIRE(data.has_error());
    CAPTURE(data.error().message());
    CHECK(data.error().code() == code);
    CHECK(data.error().message().find(words) != std::string::npos);
  }
};

}  // namespace

TEST_CASE("over all shards, each example is exactly once in a training or a held-out part") {
  Folder f;
  f.options.shards = 4;
  f.options.holdout = 0.25;
  std::vector<std::uint8_t> seen;
  for (std::uint32_t shard = 0; shard < 4; ++shard) {
    f.options.shard = shard;
    const auto data = fl::load_local_data(f.options).value();
    CHECK(data.train.size() == 8);  // A quarter of 10, rounded down, is held out.
    CHECK(data.holdout.size() == 2);
    for (const auto* part : {&data.train, &data.holdout}) {
      const auto pixels = pixels_of(*data.all, *part);
      for (std::size_t i = 0; i < part->size(); ++i)
        CHECK(data.all->labels[(*part)[i]] == pixels[i] % 10);
      seen.insert(seen.end(), pixels.begin(), pixels.end());
    }
    CHECK(fl::load_local_data(f.options)->holdout == data.holdout);
  }
  std::ranges::sort(seen);
  CHECK(seen.size() == 40);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
}

// The clients of one process share a data set. Each has the examples that it would read itself.
TEST_CASE("divided data equal the shards that clients read") {
  Folder f;
  f.options.shards = 3;
  f.options.holdout = 0.3;
  f.options.partition = "labels:4";
  const auto divided = fl::load_divided_data(f.options).value();
  REQUIRE(divided.size() == 3);
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    f.options.shard = shard;
    const auto alone = fl::load_local_data(f.options).value();
    CHECK(divided[shard].train == alone.train);
    CHECK(divided[shard].holdout == alone.holdout);
    CHECK(pixels_of(*divided[shard].all) == pixels_of(*alone.all));
    CHECK(divided[shard].all->labels == alone.all->labels);
  }
}

TEST_CASE("an evaluate-only client holds out the whole set") {
  Folder f;
  f.options.evaluate_only = true;
  f.options.shards = 4;
  CHECK(fl::load_local_data(f.options)->holdout.size() == 40);
  f.options.data += ":test";
  const auto data = fl::load_local_data(f.options).value();
  CHECK(pixels_of(*data.all, data.holdout) == std::vector<std::uint8_t>{'a', 'b', 'c', 'd', 'e'});
  CHECK(data.train.size() == 0);
}

TEST_CASE("holdout 0 holds nothing out") {
  Folder f;
  f.options.holdout = 0;
  CHECK(fl::load_local_data(f.options)->train.size() == 40);
  CHECK(fl::load_local_data(f.options)->holdout.size() == 0);
}

TEST_CASE("errors for wrong options name the option") {
  using fl::Errc;
  Folder f;
  SUBCASE("holdout") {
    for (const double holdout : {-0.1, 1.0, std::nan("")}) {
      f.options.holdout = holdout;
      f.expect(Errc::invalid_input, "holdout");
    }
  }
  SUBCASE("shard") {
    f.options.shard = f.options.shards = 3;
    f.expect(Errc::invalid_input, "shard 4 of 3");
  }
  SUBCASE("more shards than examples") {
    f.options.shards = 41;
    f.expect(Errc::invalid_input, "41 parties");
  }
  SUBCASE("partition") {
    f.options.partition = "quantity:3";
    f.expect(Errc::invalid_input, "quantity:3");
  }
  SUBCASE("data") {
    for (const std::string data : {"cifar", ":test", "IDX:x"}) {
      f.options.data = data;
      f.expect(Errc::invalid_input, "unknown data \"" + data + "\"");
      for (const fl::ReaderRow& row : fl::reader_table()) f.expect(Errc::invalid_input, row.usage);
    }
    f.options.data = "fashion-mnistt";
    f.expect(Errc::invalid_input, "; did you mean fashion-mnist?");
    for (const std::string data :
         {"idx:", "idx", "idx::test", "fashion-mnist:", "fashion-mnist:train"}) {
      f.options.data = data;
      f.expect(Errc::invalid_input, "data \"" + data + "\": say ");
    }
  }
  SUBCASE("a natural division of data without columns") {
    f.options.partition = "by:site";
    f.expect(Errc::invalid_input, "nothing that by:site could name; data with groups are npz");
  }
  SUBCASE("a folder without the files") {
    std::filesystem::remove(f.folder.path() / "train-images-idx3-ubyte");
    f.expect(Errc::not_found, "train-images-idx3-ubyte");
  }
  SUBCASE("Fashion-MNIST that is not installed") {
    setenv("FL_DATA", f.folder.path().c_str(), 1);
    f.options.data = "fashion-mnist";
    f.expect(Errc::not_found, "install the Debian package dataset-fashion-mnist");
    unsetenv("FL_DATA");
  }
}

TEST_CASE("FL_DATA names another folder for the data sets") {
  Folder f;
  std::filesystem::create_directory_symlink(f.folder.path(), f.folder.path() / "fashion-mnist");
  setenv("FL_DATA", f.folder.path().c_str(), 1);
  f.options.data = "fashion-mnist:test";
  f.options.evaluate_only = true;
  CHECK(fl::load_local_data(f.options)->holdout.size() == 5);
  unsetenv("FL_DATA");
}

// Each site is a client, and its column is no input of the model.
TEST_CASE("a table is divided by one of its columns") {
  const TemporaryFolder folder;
  std::string text = "site,a,y\n";
  for (int i = 0; i < 30; ++i) text += fmt::format("site-{},{},{}\n", i % 3, i, i % 3);
  write_plain(folder / "table.csv", text);
  fl::LearnOptions options{.model = "",
                           .data = fmt::format("csv:{},target=y", (folder / "table.csv").string()),
                           .partition = "by:site",
                           .shards = 3,
                           .holdout = 0.2};
  const auto divided = fl::load_divided_data(options).value();
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    options.shard = shard;
    const auto data = fl::load_local_data(options).value();
    CHECK(data.train == divided[shard].train);
    CHECK(data.train.size() == 8);
    CHECK(data.holdout.size() == 2);
    CHECK(data.all->shape == std::vector<std::int64_t>{1});
    for (const std::uint32_t example : data.train) CHECK(data.all->labels[example] == shard);
  }
  options.shards = 4;
  const auto refused = fl::load_local_data(options);
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().find("4 parties can't share 3 groups") != std::string::npos);
}
