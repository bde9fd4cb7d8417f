# SPDX-License-Identifier: Apache-2.0
# Writes OUT, the C++ file that knows the commit of SOURCE, if it is not right already:
#   cmake -DSOURCE=… -DVERSION=… -DOUT=… -P commit.cmake
set(text ${VERSION})
# A source in somebody else's repository (a copy in another project) has no commit of its own.
if(EXISTS ${SOURCE}/.git)
  set(ENV{GIT_OPTIONAL_LOCKS} 0)  # Never waits for a lock of the user's own git.
  # Uses no tag's name: "abc1234", or "abc1234+" with changes.
  execute_process(COMMAND git -C ${SOURCE} describe --always --exclude=* --dirty=+ --abbrev=7
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    string(APPEND text " (${commit})")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Written at each build by deploy/cmake/commit.cmake.
#include "shared/base/version.hpp"

const char* const fl::software_version_and_commit = "@text@";
]])
