// SPDX-License-Identifier: Apache-2.0
// Tables as spreadsheets, R, pandas and databases write them.
#include "tests/client/learn/csv_table.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {
namespace {

// The file has the rows 1.5, 2, y = 0 and -3, 40, y = 1.
void expect_numbers(std::string_view text, std::string_view options = "target=y") {
  CAPTURE(text);
  const DataSet set = Table(text).read(options);
  CHECK(values_of(set) == Values{1.5, 2, -3, 40});
  CHECK(set.targets == Values{0, 1});
}

// The first field of a table, and what the error says about it.
struct Advised {
  std::string field;
  std::string words;
};

void expect_advice(const std::vector<Advised>& all, const std::string& more = "") {
  for (const Advised& refused : all) {
    Table("a;y\n" + refused.field + ";1\n")
        .expect("target=y,sep=semicolon" + more, 2, {"column \"a\"", refused.words});
  }
}

}  // namespace

TEST_CASE("csv: the words for a missing value are those of pandas, in any case, and missing=") {
  for (const std::string word : {"N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "None", "<NA>", "NULL",
                                 "-nan", "-NaN", "1.#IND", "-1.#QNAN", "\" NA\"", "NONE"}) {
    CAPTURE(word);
    const Table table("a,b,y\n" + word + ",2,3\n4,5,6\n");
    const Values values = values_of(table.read("target=y"));
    CHECK(is_missing_all({values[0]}));
    CHECK(values[2] == 4);
  }
  const Table table("a,b,y\n.,-,3\n-999,5,6\n");
  CHECK(is_missing_all({values_of(table.read("target=y,missing=.+-+-999"))[2]}));
  table.expect("target=y", 2, {"\".\" is not a number", "missing=."});
  table.expect("target=y,missing=.", 2, {"\"-\" is not a number", "missing=-"});
  Table("a,y\n1,None\n").expect("target=y", 2, {"the target is missing"});
}

TEST_CASE("csv: true and false are 1 and 0, and words where a schema says so") {
  const DataSet set = Table("a,b,y\nTrue,FALSE,true\nfalse,TRUE,False\n").read("target=y");
  CHECK(values_of(set) == Values{1, 0, 0, 1});
  CHECK(set.labels == std::vector<std::uint32_t>{1, 0});
  const Table words("a,y\nTrue,1\nFalse,0\n");
  words.with_schema(R"({"columns": {"a": ["True", "False"]}})");
  CHECK(values_of(words.read("target=y,schema=" + words.schema)) == Values{1, 0, 0, 1});
}

TEST_CASE("csv: a number too small for fp64 is 0, and one too large is refused") {
  const std::string long_zero = "0." + std::string(400, '0') + "1";
  const DataSet set =
      Table("a,b,y\n1e-400,-1e-9999,0\n" + long_zero + ",5e-1,1\n").read("target=y");
  CHECK(values_of(set) == Values{0, 0, 0, 0.5});
  for (const std::string large : {"1e400", "-1e400", "1e39"})
    Table("a,y\n" + large + ",1\n")
        .expect("target=y", 2, {"column \"a\"", "is too large", "3.4e38"});
}

TEST_CASE("csv: a first column without a name holds the names of the rows") {
  expect_numbers("\"\",\"a\",\"b\",\"y\"\n\"1\",1.5,2,0\n\"x\",-3,40,1\n");
  expect_numbers(",a,b,y\n0,1.5,2,0\n1,-3,40,1\n");
  // As write.table() of R has it: a name less than fields.
  expect_numbers("\"a\",\"b\",\"y\"\n\"1\",1.5,2,0\n\"2\",-3,40,1\n");
  Table("a,b,y\n1,2,3\n4,5,6,7\n").expect("target=y", 3, {"4 fields", "the first line has 3"});
  Table("a,b,y\n1,2,3,\n").expect("target=y", 2, {"remove the separator at the end of the line"});
}

TEST_CASE("csv: another column without a name must be empty") {
  expect_numbers("a,b,y,\n1.5,2,0,\n-3,40,1,\n");
  expect_numbers("a,,b,y,,\n1.5,,2,0,,\n-3,,40,1,,\n");
  Table("a,,y\n1,2,3\n").expect("target=y", 2, {"column 2 has no name", "\"2\"", "index=False"});
}

TEST_CASE("csv: a first line sep= names the separator, as Excel has it") {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    for (const std::string line : {"sep=;", "\"sep=;\"", "\xef\xbb\xbfsep=;"}) {
      const std::string text = line + end + "a;b;y" + end + "1.5;2;0" + end + "-3;40;1" + end;
      expect_numbers(text);
      expect_numbers(text, "target=y,sep=semicolon");
    }
  }
  expect_numbers("sep=\t\na\tb\ty\n1.5\t2\t0\n-3\t40\t1\n");
  Table("sep=;\na;y\nx;2\n").expect("target=y", 3, {"\"x\""});
  Table("sep=;\n").expect("target=y", 2, {"empty"});
  Table("sep=;\na;y\n").expect("target=y,sep=comma", 2, {"no column \"y\""});
}

TEST_CASE("csv: decimal commas and marks between thousands are read where an option says so") {
  expect_numbers("a;b;y\n1,5;2,0;0\n-3;4e1;1\n", "target=y,sep=semicolon,decimal=comma");
  expect_numbers("a,b,y\n\"1,5\",2,0\n-3,40,1\n", "target=y,decimal=comma");
  const std::string wide = "target=y,sep=semicolon,thousands=";
  CHECK(values_of(Table("a;b;y\n1,234,567.5;-12,345;0\n").read(wide + "comma")) ==
        Values{1234567.5, -12345});
  CHECK(values_of(Table("a;b;y\n1.234.567,5;12.345;0\n").read(wide + "dot,decimal=comma")) ==
        Values{1234567.5, 12345});
  CHECK(values_of(Table("a;b;y\n1 234;12\xc2\xa0"
                        "345;0\n")
                      .read(wide + "space")) == Values{1234, 12345});
  CHECK(values_of(Table("a;b;y\n1'234;999;0\n").read(wide + "apostrophe")) == Values{1234, 999});
  for (const std::string wrong : {"1,23", "12,34,567", "1234,567", ",123", "1.5,000", "1,2345"})
    Table("a;y\n" + wrong + ";1\n").expect(wide + "comma", 2, {"is not a number"});
}

TEST_CASE("csv: an error about a word says which notation it looks like") {
  expect_advice({{"3,14", "needs decimal=comma in --data"},
                 {"1,234", "needs decimal=comma or thousands=comma in --data"},
                 {"1.234,5", "needs decimal=comma,thousands=dot in --data"},
                 {"1.234.567", "needs decimal=comma,thousands=dot in --data"},
                 {"1 234", "needs thousands=space in --data"},
                 {"12%", "percent or currency sign"},
                 {"$12.50", "percent or currency sign"},
                 {"12,50 \xe2\x82\xac", "percent or currency sign"},
                 {"1.5D+03", "the exponent"},
                 {"\xe2\x88\x92"
                  "1.5",
                  "minus"},
                 {"2024-01-16", "a date or a time"},
                 {"16.01.2024 12:30", "a date or a time"},
                 {"\\N", "missing=\\N"},
                 {"#DIV/0!", "missing=#DIV/0!"},
                 {"NaT", "missing=NaT"},
                 {"-inf", "\"-inf\" is no finite number; if it stands for a missing value"},
                 {"unkown", "missing=unkown"},
                 {"0x1F", "schema=FILE"}});
  expect_advice({{"1.5", "needs no decimal= and no thousands= in --data"},
                 {"1 234,5", "needs decimal=comma,thousands=space"}},
                ",decimal=comma");
}

TEST_CASE("csv: a first line that lacks a column says which separator it may have") {
  Table("a;b;y\n1;2;3\n").expect("target=y", 1, {"no column \"y\"", "add sep=semicolon"});
  Table("a\tb\ty\n1\t2\t3\n").expect("target=y", 1, {"add sep=tab"});
  Table("a,b,y\n1,2,3\n").expect("target=y,sep=tab", 1, {"add sep=comma"});
  // As R's write.csv2() writes it.
  Table("\"\";\"a\";\"y\"\n\"1\";1,5;0\n")
      .expect("target=y", 1, {"a quote stands", "add sep=semicolon"});
  Table("# made by X\na,b,y\n1,2,3\n").expect("target=y", 1, {"remove the lines of comments"});
}

TEST_CASE("csv: options of the notation that are wrong are refused") {
  for (const Advised& refused : std::vector<Advised>{
           {"decimal=dot", "decimal=dot: must be point or comma"},
           {"thousands=dots", "must be none, comma, dot, space or apostrophe"},
           {"thousands=dot", "decimal=point and thousands=dot are the same character"},
           {"decimal=comma,thousands=comma", "are the same character"},
           {"missing=a++b", "empty name"}}) {
    expect_no_data("csv:x.csv,target=y," + refused.field, Errc::invalid_input, {refused.words});
  }
}

}  // namespace fl::test
