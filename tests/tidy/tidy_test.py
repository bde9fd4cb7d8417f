#!/usr/bin/env python3
"""The house rules that a program can check: who includes whom, how long and large things are, banned
constructs, and that documents and comments name only what exists.

    tests/tidy/tidy_test.py            every rule, on the repository and on fixtures that break it
    tests/tidy/tidy_test.py --write    writes what is made from something else: the table of
                                       docs/design/includes.md and, where FL_BIN names the folder of
                                       the built programs, docs/guide/flags.md

Tables: includes.txt, exceptions.txt, classes.txt, foreign.txt, unused.txt. Without FL_BIN the rules about flags are skipped.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "mutate"))

import classes
import comments
import constructs
import definitions
import documents
import faults
import includes
import kinds
import programs
import sizes
import unused
from classes_test import Classes  # Its tests run with those of this file.
from exceptions import Exceptions
from exceptions import TABLE as EXCEPTIONS
from source import ROOT, SPDX, Finding, Tree, code_only, comments_only

BIN = Path(os.environ["FL_BIN"]).resolve() if os.environ.get("FL_BIN") else None
IS_BUILT = BIN is not None and all((BIN / name).exists() for name in programs.PROGRAMS)
NOT_BUILT = "FL_BIN names no folder with the built programs: FLAGS AND SUB-COMMANDS ARE NOT CHECKED"


class Repository(unittest.TestCase):
    """Every rule on the source tree that this file is in."""

    @classmethod
    def setUpClass(cls):
        cls.tree = Tree.of_repository()
        cls.exceptions = Exceptions(cls.tree.texts[EXCEPTIONS])
        cls.foreign = documents.Foreign(cls.tree.texts[documents.FOREIGN])

    def none(self, findings):
        if findings:
            self.fail("\n" + "\n".join(str(finding) for finding in findings))

    def test_includes(self):
        table = includes.Table(self.tree.texts[includes.TABLE])
        self.none(includes.check(self.tree, table))
        self.none(includes.check_document(self.tree.texts[includes.DOCUMENT], table))

    def test_sizes_and_constructs(self):
        self.none(
            sizes.check(self.tree, self.exceptions)
            + constructs.check(self.tree, self.exceptions)
            + self.exceptions.stale()
        )

    def test_classes(self):
        self.none(classes.check(self.tree))

    def test_comments_name_their_noun(self):
        self.none(comments.check(self.tree))

    def test_every_function_of_a_header_is_called(self):
        self.none(unused.check(self.tree))

    def test_the_page_on_adding_things_fits_the_code(self):
        self.none(kinds.check(self.tree))

    def test_no_two_headers_define_one_type(self):
        self.none(definitions.check(self.tree))

    def test_rooms_have_namespaces_of_their_own(self):
        self.none(definitions.check_rooms(self.tree))

    def test_licence(self):
        self.none(constructs.check_licence(self.tree))

    def test_the_list_of_faults_fits_the_code(self):
        self.none([Finding(faults.LIST, *found) for found in faults.check_faults(self.tree.texts)])

    def test_what_documents_and_comments_name(self):
        findings = documents.check_files(self.tree, self.foreign)
        findings += documents.check_tests(self.tree, self.foreign)
        findings += documents.check_links(self.tree)
        findings += documents.check_threats(self.tree)
        findings += documents.check_site(self.tree)
        findings += documents.check_index(self.tree)
        usage = subprocess.run([ROOT / "dev"], capture_output=True, text=True, check=True).stdout
        commands = programs.dev_commands(usage)
        self.assertIn("build", commands)
        for path in documents.documents(self.tree):
            findings += documents.check_dev(path, self.tree.texts[path], commands)
        if IS_BUILT:
            helps = programs.read_help(BIN)
            findings += documents.check_commands(self.tree, programs.flags_of(helps), self.foreign)
            findings += programs.check_document(self.tree.texts.get(programs.DOCUMENT, ""), helps)
            findings += self.foreign.stale()
        self.none(findings)
        if not IS_BUILT:
            self.skipTest(NOT_BUILT)


def what(findings):
    return [finding.what for finding in findings]


class Includes(unittest.TestCase):
    TABLE = "server/a: server/b\nserver/b:\nclient:\napart: server client\n<sqlite3.h>: server/b\n"
    GOOD = {
        "server/a/x.cpp": '#include "server/b/y.hpp"\n',
        "server/b/y.hpp": "",
        "client/z.cpp": "",
    }

    def one(self, words, table, texts):
        findings = includes.check(Tree(self.GOOD | texts), includes.Table(table))
        self.assertEqual(len(findings), 1, findings)
        self.assertIn(words, str(findings[0]))

    def test_what_the_table_allows_is_right(self):
        self.assertEqual(includes.check(Tree(self.GOOD), includes.Table(self.TABLE)), [])

    def test_an_include_upwards_is_found_with_its_line(self):
        upwards = {"server/b/y.hpp": '#pragma once\n#include "server/a/x.cpp"\n'}
        self.one("server/b/y.hpp:2: server/b may not include server/a", self.TABLE, upwards)

    def test_server_and_client_stay_apart_whatever_the_table_allows(self):
        allows = self.TABLE.replace("client:", "client: server/b")
        crossing = {"client/z.cpp": '#include "server/b/y.hpp"\n'}
        findings = includes.check(Tree(self.GOOD | crossing), includes.Table(allows))
        self.assertIn("never include each other", str(findings[0]))

    def test_a_permission_that_nothing_uses_is_found(self):
        self.one("server/a includes nothing of server/b", self.TABLE, {"server/a/x.cpp": ""})

    def test_a_header_of_few_is_found_elsewhere(self):
        with_sqlite = self.GOOD["server/a/x.cpp"] + "#include <sqlite3.h>\n"
        self.one(
            "x.cpp:2: <sqlite3.h> is for server/b only", self.TABLE, {"server/a/x.cpp": with_sqlite}
        )

    def test_a_missing_file_and_a_missing_line_are_found(self):
        gone = self.GOOD["server/a/x.cpp"] + '#include "server/b/gone.hpp"\n'
        self.one("no file server/b/gone.hpp", self.TABLE, {"server/a/x.cpp": gone})
        self.one("has no line", self.TABLE, {"shared/new/file.cpp": ""})
        self.one("server/c: there is no such folder", self.TABLE + "server/c:\n", {})

    def test_a_circle_is_found_unless_it_is_marked(self):
        both = {"server/b/y.hpp": '#include "server/a/x.cpp"\n'}
        circle = self.TABLE.replace("server/b:\n", "server/b: server/a\n")
        self.one("a circle: server/a -> server/b -> server/a", circle, both)
        marked = circle.replace("server/b: server/a", "server/b: !server/a")
        self.assertEqual(includes.check(Tree(self.GOOD | both), includes.Table(marked)), [])

    def test_the_document_must_have_the_table(self):
        table = includes.Table(self.TABLE)
        document = f"# Map\n{includes.BEGIN}\n{includes.END}\nmore\n"
        self.assertIn("--write", what(includes.check_document(document, table))[0])
        written = includes.written(document, table)
        self.assertIn("| `server/a` | `server/b` |", written)
        self.assertEqual(includes.check_document(written, table), [])
        self.assertIn("no place", what(includes.check_document("# Map\n", table))[0])


class Sizes(unittest.TestCase):
    FILE = """\
#define FL_BLOCK(x) \\
  do {              \\
    use(x);         \\
  } while (false)

namespace fl {

/// A { in a comment, and "}" in a text.
struct Point {
  int x = 0;
  std::array<int, 2> more = {1, 2};
  int sum() const {
    return x + '{';
  }
};

template <class T>
Point::Point(std::vector<T> parts) : a_{parts.size()}, b_(1) {
  const auto each = [&](int part) {
    if (part > 0) {
      use("{");
    }
  };
  each(1);
}

constexpr Row rows[] = {
    {"one", [] { return 1; }},
};

enum class Kind { one, two };

bool operator==(const Point& a, Point b = {}) {
  struct Local {
    int y;
  };
  return true;
}

}  // namespace fl

extern "C" int flc_version() {
  return 1;
}
"""

    def test_functions_are_found_with_their_lines(self):
        found = list(sizes.functions(self.FILE))
        expected = [
            ("sum", 12, 14),
            ("Point::Point", 17, 25),
            ("operator==", 33, 38),
            ("flc_version", 42, 44),
        ]
        self.assertEqual(found, expected)

    def test_comments_and_texts_are_told_from_code(self):
        text = 'a = "// no"; // yes\nb = R"(/* no)" /* yes\nyes */ c = \'"\';  // yes\n'
        self.assertNotIn("yes", code_only(text))
        self.assertNotIn("no", code_only(text))
        self.assertEqual(code_only(text).count("\n"), text.count("\n"))
        comments = comments_only("x.cpp", text)
        self.assertEqual(comments.count("yes"), 4)
        self.assertNotIn("no", comments)
        python = '"""yes"""\nx = "# no"  # yes\n'
        self.assertEqual(comments_only("x.py", python).count("yes"), 2)
        self.assertNotIn("no", comments_only("x.py", python))

    def test_a_long_function_and_a_long_file_need_an_exception(self):
        body = "void f() {\n" + "  g();\n" * 70 + "}\n"
        tree = Tree({"server/x.cpp": body, "tests/y.cpp": "\n" * 600, "client/z.cpp": "\n" * 501})
        found = sizes.check(tree, Exceptions(""))
        self.assertEqual(
            [str(finding) for finding in found],
            [
                "client/z.cpp:1: the file has 501 lines, more than 500",
                "server/x.cpp:1: f() has 72 lines, more than 70",
            ],
        )
        agreed = Exceptions("server/x.cpp f 72: as agreed\nclient/z.cpp 501: so\n")
        self.assertEqual(sizes.check(tree, agreed) + agreed.stale(), [])
        grown = Exceptions("server/x.cpp f 71: as agreed\nclient/z.cpp 501: so\n")
        self.assertEqual(what(sizes.check(tree, grown)), ["f() has 72 lines, more than 71"])

    def test_a_stale_exception_and_one_without_reason_are_found(self):
        table = Exceptions("server/x.cpp f 72: as agreed\nserver/y.cpp 600\n")
        self.assertEqual(sizes.check(Tree({"server/x.cpp": "void f() {}\n"}), table), [])
        self.assertEqual(
            what(table.stale()),
            ["write PATH [NAME] NUMBER: why", "server/x.cpp f: is not needed any more"],
        )


class Constructs(unittest.TestCase):
    def lines(self, code, path="server/x.cpp"):
        findings = constructs.check(Tree({path: code}), Exceptions(""))
        return [(finding.line, finding.what.split(":")[0]) for finding in findings]

    def test_doubtful_co_awaits_are_found(self):
        braces, captures = (
            "a statement with co_await has braces",
            "a statement with co_await has captures",
        )
        for code, expected in (
            ("co_await send(Header{1});", braces),
            ("co_await send({1, 2});", braces),
            ("use({.a = 1}, co_await next());", braces),
            ("co_await\n    run([&] { go(); });", captures),
            ("co_return co_await run([this](int x) { return x; });", captures),
            ("if (co_await run([=] { go(); })) {", captures),
        ):
            code = f"void f() {{\n  {code}\n}}\n"
            self.assertIn(expected, [name for _, name in self.lines(code)], code)

    def test_the_line_is_the_one_of_the_braces(self):
        self.assertEqual(
            self.lines("void f() {\n  co_await send(\n      Header{});\n}\n"),
            [(3, "a statement with co_await has braces")],
        )

    def test_right_co_awaits_are_not_found(self):
        for code in (
            "co_await run([] { go(); });",
            "[[maybe_unused]] auto sent = co_await send(header);",
            "const auto [ec, bytes] = co_await read(buffer, as_result);",
            "co_await tasks[i](x);",
            "if (co_await run()) {\n  }",
            "const Header header{1};\n  co_await send(header);",
            "auto work = [&] { go(); };\n  co_await run(work);",
            'co_await send("{x}");  // As {this} is.',
        ):
            self.assertEqual(self.lines(f"void f() {{\n  {code}\n}}\n"), [], code)
        self.assertEqual(self.lines("Task f() { co_await g(); }\n"), [])

    def test_banned_words_are_found(self):
        self.assertEqual(self.lines("co_spawn(io, f(), net::detached);\n"), [(1, "detached")])
        self.assertEqual(
            self.lines("// None is detached.\n#include <boost/asio/detached.hpp>\n"), []
        )
        self.assertEqual(self.lines("using namespace fl;\n"), [(1, "using namespace")])
        self.assertEqual(self.lines("using namespace fl;\n", "tests/x_test.cpp"), [])
        self.assertEqual(self.lines("using namespace std::chrono_literals;\n"), [])
        self.assertEqual(self.lines("int x;  // " + "TO" + "DO later\n"), [(1, "TO" + "DO")])

    def test_locks_that_do_not_say_what_they_guard_are_found(self):
        text = "#include <mutex>\nstd::mutex a_;\nstd::mutex& b();\nstd::shared_mutex c_;\n"
        expected = [(2, "std"), (4, "std")]
        self.assertEqual(self.lines(text, "server/x.hpp"), expected)
        self.assertEqual(self.lines(text, "client/x.hpp"), expected)
        self.assertEqual(self.lines(text, "tests/x.hpp"), [])
        self.assertEqual(self.lines(text, constructs.MUTEX), [])
        agreed = Exceptions("server/x.hpp std-mutex 2: why\n")
        self.assertEqual(constructs.check(Tree({"server/x.hpp": text}), agreed), [])

    def test_all_have_the_licence_line_or_none(self):
        line = f"// {SPDX}\n"
        licence = {"LICENSE": "Apache-2.0"}
        self.assertEqual(what(constructs.check_licence(Tree({}))), ["names no licence"])
        none = Tree(licence | {"server/a.cpp": "x\n", "tests/b.py": "x\n"})
        self.assertEqual(constructs.check_licence(none), [])
        one = Tree(licence | {"server/a.cpp": line, "tests/b.py": "x\n"})
        self.assertEqual([f.path for f in constructs.check_licence(one)], ["tests/b.py"])
        other = Tree(
            licence | {"server/a.cpp": line, "shared/b.cpp": line.replace("Apache-2.0", "MIT")}
        )
        self.assertEqual([f.path for f in constructs.check_licence(other)], ["shared/b.cpp"])
        python = f"#!/usr/bin/env python3\n# {SPDX}\n"
        self.assertEqual(
            constructs.check_licence(Tree(licence | {"server/a.cpp": line, "x.py": python})), []
        )


class Definitions(unittest.TestCase):
    ROWS = "#pragma once\nnamespace fl {\nclass Store;\nstruct Row {\n  struct Key { int id = 0; };\n};\n}\n"

    def found(self, text, path="server/b.hpp"):
        findings = definitions.check(Tree({"server/a.hpp": self.ROWS, path: text}))
        return [(finding.line, finding.what) for finding in findings]

    def test_a_second_type_of_a_name_is_found_with_its_line(self):
        for twin in (
            "struct Row { int x; };",
            "class Row final : public Base<int> {\n};",
            "enum class Row : std::uint8_t { a, b };",
            "template <class T>\nclass [[nodiscard]] Row {\n};",
        ):
            line = 2 if twin.startswith("template") else 1
            expected = [(line + 1, "fl::Row is defined in server/a.hpp, too")]
            self.assertEqual(self.found(f"namespace fl {{\n{twin}\n}}\n"), expected, twin)
        nested = "namespace x { class Row {}; }\nnamespace fl {\ninline int f() { return 1; }\nunion Row {};\n}\n"
        self.assertEqual([line for line, _ in self.found(nested)], [4])

    def test_other_names_namespaces_and_uses_are_right(self):
        for text in (
            "namespace fl { class Row; enum class Kind; struct Key {}; class Store {}; }\n",
            "namespace fl::x { struct Row {}; }\nnamespace fl { class A { struct Row {}; }; }\n",
            "namespace fl { inline struct Row f(struct Row x) { return x; } }\n",
            "namespace fl { template <class Row> struct Of {}; template <> struct Of<int> {}; }\n",
            "// namespace fl { struct Row {}; }\n",
        ):
            self.assertEqual(self.found(text), [], text)
        self.assertEqual(self.found("namespace fl { struct Row {}; }\n", "server/b.cpp"), [])

    def test_a_file_in_the_namespace_of_another_room_is_found(self):
        for path, space, is_right in (
            ("server/round/a.hpp", "fl::server", True),
            ("server/round/a.hpp", "fl::server::detail", True),
            ("server/round/a.hpp", "fl", False),
            ("server/round/a.cpp", "fl::client", False),
            ("client/site/a.cpp", "fl::site", True),
            ("client/site/a.cpp", "fl::client", False),
            ("client/agent/a.cpp", "fl::client", True),
            ("client/learn/a.cpp", "fl", True),
            ("kernels/cuda/a.cu", "fl::cuda", True),
        ):
            text = f"\nnamespace {space} {{\nvoid f();\n}}\n"
            found = definitions.check_rooms(Tree({path: text}))
            self.assertEqual([finding.line for finding in found], [] if is_right else [2], path)


class Comments(unittest.TestCase):
    def found(self, path, text):
        return [finding.line for finding in comments.check(Tree({path: text}))]

    def test_openings_without_a_noun_are_found(self):
        text = (
            "// SPDX-License-Identifier: Apache-2.0\n// Who asks.\n"
            "int a;  // Of the whole file.\n/* The same, faster. */\n"
            "/// Reads it.\n///\n/// So many rows at once.\nint b;  // 0: Its default.\n"
        )
        self.assertEqual(self.found("shared/a.hpp", text), [2, 3, 4, 7])
        self.assertEqual(self.found("tests/a.py", 'def f():\n    """Its name."""\n'), [2])
        self.assertEqual(self.found("tests/a.py", "x = 1  # Of the run.\n"), [1])
        self.assertEqual(self.found("deploy/a.sh", "x=1 # So many.\n# The same.\n"), [1, 2])
        self.assertEqual(self.found("proto/a.proto", "bytes x = 1;  // Its digest.\n"), [1])

    def test_a_sentence_may_go_on_with_these_words(self):
        text = (
            "// Reads the file, and stores\n// Its name: \"Who\".\n"
            "int a;  // The digest of what was read.\n        // Its bytes are gone.\n"
            "// Whole files only. Itself unchanged.\nauto s = \"// The same\";\n"
        )
        self.assertEqual(self.found("shared/a.hpp", text), [])


class Unused(unittest.TestCase):
    HEADER = (
        "class A {\n public:\n"
        "  [[nodiscard]] int called() const { return made(); }\n"
        "  [[nodiscard]] int inner() const { return 1; }\n"
        "  void outer(int x,\n             int y);\n"
        "};\n"
    )
    SOURCE = "void A::outer(int x, int y) {\n  called();\n}\n"

    def found(self, texts=None, table=""):
        files = {"shared/a.hpp": self.HEADER, "shared/a.cpp": self.SOURCE}
        findings = unused.check(Tree(files | (texts or {}) | {unused.TABLE: table}))
        return [(finding.line, finding.what) for finding in findings]

    def test_what_nothing_calls_is_found_with_its_line(self):
        expected = [(4, "nothing calls inner()"), (5, "nothing calls outer()")]
        self.assertEqual(self.found(), expected)
        said = {"shared/b.cpp": '// inner()\nconst char* x = "outer()";\n'}
        self.assertEqual(self.found(said), expected)

    def test_a_call_and_an_entry_of_a_table_are_uses(self):
        used = {"server/b.cpp": "void run(A& a) {\n  a.inner();\n}\nauto row = &A::outer;\n"}
        self.assertEqual(self.found(used), [])

    def test_tests_alone_are_no_reason(self):
        calls = {"tests/a_test.cpp": "CHECK(a.inner() == 1);\n a.outer(1, 2);\n"}
        self.assertEqual([what for _, what in self.found(calls)][0], "only tests call inner()")

    def test_exceptions_have_a_reason_and_are_needed(self):
        table = "shared/a.hpp inner: why\nshared/a.hpp out*: why\n"
        self.assertEqual(self.found(table=table), [])
        self.assertIn((3, "shared/a.hpp called: is not needed any more"),
                      self.found(table=table + "shared/a.hpp called: why\n"))
        self.assertIn((1, "write PATH NAME: why"), self.found(table="shared/a.hpp inner\n"))


class Documents(unittest.TestCase):
    FILES = {
        "server/round/engine.cpp": "",
        "server/round/engine.hpp": "",
        "tests/server/spool_test.cpp": "",
        "kernels/cuda/level_body.hpp": "",
        "docs/guide/run.md": "## Two `words`, here\n",
    }

    def names(self, text, path="README.md", foreign=""):
        findings = documents.check_files(
            Tree(self.FILES | {path: text}), documents.Foreign(foreign)
        )
        return [(finding.line, finding.what) for finding in findings]

    def test_a_file_that_is_gone_is_found(self):
        gone = [(2, "names round/gone.cpp, which does not exist")]
        self.assertEqual(self.names("See\n`round/gone.cpp`.\n"), gone)
        self.assertEqual(self.names("\n// As in round/gone.cpp.\n", "server/x.cpp"), gone)
        self.assertEqual(self.names('\nx = "gone.cpp"\n', "tests/x.py"), [])
        self.assertEqual(self.names("# As gone.cpp.\n", "tests/x.sh")[0][0], 1)
        self.assertEqual(self.names("`server/gone/`\n")[0][0], 1)

    def test_a_file_may_be_named_in_several_ways(self):
        for text in (
            "`server/round/engine.cpp`, round/engine.hpp, engine.cpp:12",
            "`server/round/engine.{hpp,cpp}` and `server/round/engine`",
            "`kernels/cuda/*_body.hpp`, `kernels/cuda/NAME_body.hpp`",
            "`server/round/`, server/round.",
            "https://example.org/server/gone.cpp",
            "server/client",
        ):
            expected = (
                [(1, "names server/client, which does not exist")]
                if text == "server/client"
                else []
            )
            self.assertEqual(self.names(text), expected)

    def test_what_is_foreign_is_listed_and_used(self):
        self.assertEqual(self.names("`mine.py`", foreign="mine.py\n"), [])
        foreign = documents.Foreign("mine.py\n")
        self.assertEqual(what(foreign.stale()), ["mine.py: nothing names it any more"])

    def test_a_test_that_is_gone_is_found(self):
        tree = Tree(self.FILES | {"a.md": "`spool_test`, `process_spool`, `gone_test`"})
        findings = documents.check_tests(tree, documents.Foreign(""))
        self.assertEqual(what(findings), ["names no test: gone_test"])

    def test_a_threat_whose_test_is_gone_is_found(self):
        rows = [
            'a | b | `tests/x_test.cpp` "it holds, also a long title"; `tests/x_test.cpp` |',
            'a | b | `tests/x_test.cpp` "it held"; `tests/gone.py` "test_it" |',
            "a | b | none |",
            "a | b | |",
        ]
        code = 'TEST_CASE(\n    "it holds, "\n    "also a long title") {'
        tree = Tree({"tests/x_test.cpp": code, documents.THREATS: "\n".join(rows)})
        self.assertEqual(
            what(documents.check_threats(tree)),
            [
                "tests/x_test.cpp has no test 'it held'",
                "tests/gone.py has no test 'test_it'",
                "names no test",
            ],
        )

    def test_a_page_that_the_site_leaves_out_is_found(self):
        nav = "nav:\n  - Start:\n      - What it is: index.md\n      - B: docs/b.md\n      - C: docs/c.md\n"
        texts = {"docs/a.md": "", "docs/b.md": "", "client/README.md": "", documents.SITE: nav}
        self.assertEqual(
            what(documents.check_site(Tree(texts))),
            ["leaves out docs/a.md", "names docs/c.md, which does not exist"],
        )

    def test_a_page_that_the_list_of_all_pages_leaves_out_is_found(self):
        texts = {"docs/a.md": "", "docs/guide/b.md": "", documents.INDEX: "[b](guide/b.md)"}
        self.assertEqual(what(documents.check_index(Tree(texts))), ["leaves out docs/a.md"])

    def test_a_link_that_leads_nowhere_is_found(self):
        text = "[a](run.md#two-words-here) [b](run.md#gone) [c](../gone.md) `[d](no.md)`"
        tree = Tree(self.FILES | {"docs/guide/a.md": text})
        self.assertEqual(
            what(documents.check_links(tree)),
            [
                "links to docs/guide/run.md#gone: no such heading",
                "links to ../gone.md, which does not exist",
            ],
        )

    PROGRAMS = {
        "fl-server": {"": {"--rounds"}, "enroll": {"--name"}},
        "fl-client": {"": {"--data"}},
    }

    def commands(self, text, foreign=""):
        tree = Tree({"README.md": text})
        return what(documents.check_commands(tree, self.PROGRAMS, documents.Foreign(foreign)))

    def test_flags_and_sub_commands_that_are_gone_are_found(self):
        self.assertEqual(self.commands("`--gone`"), ["--gone is no flag of any program"])
        self.assertEqual(
            self.commands("`fl-client --rounds 3`"), ["--rounds is no flag of fl-client"]
        )
        self.assertEqual(
            self.commands("```\nbuild/bin/fl-server enrol --name x\n```"),
            ["fl-server has no sub-command enrol"],
        )
        self.assertEqual(
            self.commands("```\nfl-client \\\n    --name x\n```"),
            ["--name is no flag of fl-client"],
        )

    def test_right_commands_are_not_found(self):
        self.assertEqual(self.commands("`--rounds`, `fl-server enroll --name x --rounds 3`"), [])
        self.assertEqual(self.commands("A --dash in prose, fl-server gone in prose."), [])
        self.assertEqual(self.commands("`curl --silent`", foreign="--silent\n"), [])

    def test_flags_of_scripts_are_known(self):
        scripts = {
            "examples/x.py": 'add("--models")\n',
            "examples/x.sh": "  --clients)\n",
            "README.md": "`--models`, `--clients`, `--gone`",
        }
        found = documents.check_commands(Tree(scripts), self.PROGRAMS, documents.Foreign(""))
        self.assertEqual(what(found), ["--gone is no flag of any program"])

    def test_a_command_of_dev_that_is_gone_is_found(self):
        usage = "look after:\n  ./dev build           x\n  ./dev asan|tsan [ARGUMENT…]\n"
        self.assertEqual(programs.dev_commands(usage), {"build", "asan", "tsan"})
        found = documents.check_dev(
            "README.md", "`./dev tsan`, ./dev gone", programs.dev_commands(usage)
        )
        self.assertEqual(what(found), ["./dev has no command gone"])


class Programs(unittest.TestCase):
    HELP = """\
Runs.
Usage: x [OPTIONS]

Options:
  --state TEXT=fl-state       Folder
  --a-long-name TEXT=with-a-default
                              One | two
  --clients UINT:UINT in [1 - 10]=10
                              How many
  --admin TEXT=127.0.0.1:8080 HOST:PORT

Subcommands:
  queue                       Queues
  codecs                      Lists
"""

    def test_sub_commands_and_flags_are_read(self):
        self.assertEqual(programs.sub_commands(self.HELP), ["queue", "codecs"])
        self.assertEqual(
            programs.flags_of({"x": {"": self.HELP}}),
            {"x": {"": {"--state", "--a-long-name", "--clients", "--admin"}}},
        )

    def test_the_reference_has_a_row_for_each_flag(self):
        text = programs.as_markdown({"x": {"": self.HELP, "queue": "Queues.\n"}})
        for line in (
            "## x",
            "### x queue",
            "Usage: x [OPTIONS]",
            "| `--state TEXT=fl-state` | Folder |",
            "| `--a-long-name TEXT=with-a-default` | One \\| two |",
            "| `--clients UINT:UINT in [1 - 10]=10` | How many |",
            "| `--admin TEXT=127.0.0.1:8080` | HOST:PORT |",
            "| `codecs` | Lists |",
        ):
            self.assertIn(line, text.splitlines())

    def test_a_stale_reference_of_flags_is_found(self):
        helps = {"fl-sim": {"": self.HELP}}
        right = programs.as_markdown(helps)
        self.assertEqual(programs.check_document(right, helps), [])
        for old, new in (
            ("--state", "--folder"),
            ("Folder", "A folder"),
            ("=fl-state      ", "=other-state   "),
            ("  codecs                      Lists\n", ""),
        ):
            self.assertIn(old, self.HELP)
            changed = {"fl-sim": {"": self.HELP.replace(old, new)}}
            self.assertIn("./dev docs", what(programs.check_document(right, changed))[0], old)
        self.assertTrue(programs.check_document(right, helps | {"fl-x": {"": self.HELP}}))

    def test_another_release_of_cli11_makes_no_difference(self):
        helps = {"fl-sim": {"": self.HELP}}
        other = self.HELP.replace("Options:", "OPTIONS:").replace("=fl-state ", " [fl-state]")
        other = other.replace("in [1 - 10]=10", "in [1 - 10] [10]")
        right = programs.as_markdown(helps)
        self.assertEqual(programs.check_document(right, {"fl-sim": {"": other}}), [])


class Faults(unittest.TestCase):
    TEXTS = {
        "server/x.cpp": "if (a) b();\nif (c) d();\n",
        "tests/CMakeLists.txt": "fl_test(x_test SOURCES x_test.cpp)",
        "tests/x_test.cpp": 'TEST_CASE("a round ends") {}',
    }

    def wrong(self, fault):
        texts = self.TEXTS | {faults.LIST: fault}
        return [said for _, said in faults.check_faults(texts)]

    def test_a_fault_that_fits_is_right(self):
        right = "@ server/x.cpp | x_test a round*; x_test\n: b is lost\n- if (a) b();\n+ if (a) d();\n"
        self.assertEqual(self.wrong(right), [])

    def test_a_fault_that_fits_no_more_is_found(self):
        begin = "@ server/x.cpp | x_test\n: b is lost\n"
        self.assertIn("occurs 0 times", self.wrong(begin + "- if (z)\n+ if (y)\n")[0])
        self.assertIn("occurs 2 times", self.wrong(begin + "- if (\n+ while (\n")[0])
        gone = "@ server/gone.cpp | gone_test a gone case\n: b is lost\n- if (a)\n+ if (b)\n"
        self.assertEqual(len(self.wrong(gone)), 3)


class Kinds(unittest.TestCase):
    PAGE = (
        "# Adding\n\n| kind | example | lists | uses |\n|---|---|---|---|\n"
        "| [a codec](#a-codec) | `k-bit` | `shared/k_bit.cpp`, `shared/table.cpp` | "
        "`server/x.cpp` |\n"
        "| [a client](#a-client) | | | |\n\n## A codec\n\n## A client\n"
    )
    GOOD = {
        kinds.PAGE: PAGE,
        "shared/k_bit.cpp": "// Its own file.\n",
        "shared/table.cpp": 'Row rows[] = {{"kbit", make_k_bit}};\n',
        "server/x.cpp": "if (codec == KBit) return;  // KBit only.\n",
        "server/y.cpp": "int rank_bits = 1;  // Not of k-bit.\n",
        "tests/k_bit_test.cpp": 'parse("k-bit");\n',
    }

    def found(self, texts):
        return what(kinds.check(Tree(self.GOOD | texts)))

    def test_a_page_that_fits_is_right(self):
        self.assertEqual(self.found({}), [])

    def test_another_file_that_must_know_the_example_is_found(self):
        self.assertEqual(
            self.found({"server/y.cpp": 'if (name == "k-bit") return;\n'}),
            ["a codec: server/y.cpp names k-bit, and is not in the row"],
        )

    def test_a_file_that_need_not_be_touched_any_more_is_found(self):
        self.assertEqual(
            self.found({"server/x.cpp": "return;  // As KBit does.\n"}),
            ["a codec: server/x.cpp does not name k-bit"],
        )
        gone = {path: text for path, text in self.GOOD.items() if path != "server/x.cpp"}
        self.assertEqual(len(kinds.check(Tree(gone))), 1)

    def test_a_section_without_a_row_and_a_row_without_a_section_are_found(self):
        self.assertEqual(
            self.found({kinds.PAGE: self.PAGE.replace("## A client", "## A server")}),
            ["a server: the table has no row for it", "a client: there is no section on it"],
        )
        self.assertIn("there is no table of kinds", self.found({kinds.PAGE: "# Adding\n"}))

    def test_an_exact_name_is_found_only_as_it_stands(self):
        page = self.PAGE.replace("`k-bit`", "`wire::KBit`")
        page = page.replace(", `shared/table.cpp`", "")
        named = {"server/x.cpp": "wire::KBit k;\n", "server/y.cpp": "wire::KBits k;\n"}
        self.assertEqual(
            self.found({kinds.PAGE: page} | named),
            ["a codec: shared/k_bit.cpp does not name wire::KBit"],
        )


def write():
    tree = Tree.of_repository()
    table = includes.Table(tree.texts[includes.TABLE])
    text = includes.written(tree.texts[includes.DOCUMENT], table)
    if text is None:
        sys.exit(
            f"{includes.DOCUMENT} has no place for the table: {includes.BEGIN} and {includes.END}"
        )
    made = {includes.DOCUMENT: text}
    if IS_BUILT:
        made[programs.DOCUMENT] = programs.as_markdown(programs.read_help(BIN))
    for path, text in made.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        unittest.main()
