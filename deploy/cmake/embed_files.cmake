# SPDX-License-Identifier: Apache-2.0
# cmake -DFOLDER=… -DFILES=a.js,b.css -DOUT=….cpp -P embed_files.cmake: writes the table of
# server/admin/web_files.hpp. Bytes stand as numbers: so the source needs nothing of the compiler.
# In HTML the comment "<!-- modulepreloads -->" becomes a link for each script of FILES that the page
# does not name itself, so that a browser loads all scripts together.
string(REPLACE "," ";" files "${FILES}")
set(arrays)
set(rows)
set(number 0)
foreach(name IN LISTS files)
  if(name MATCHES "\\.html$")
    file(READ ${FOLDER}/${name} text)
    set(links)
    foreach(script IN LISTS files)
      if(script MATCHES "\\.js$" AND NOT text MATCHES "\"${script}\"")
        list(APPEND links "<link rel=\"modulepreload\" href=\"${script}\">")
      endif()
    endforeach()
    list(JOIN links "\n  " links)
    string(REPLACE "<!-- modulepreloads -->" "${links}" text "${text}")
    string(HEX "${text}" hex)
    string(SHA256 digest "${text}")
  else()
    file(READ ${FOLDER}/${name} hex HEX)
    file(SHA256 ${FOLDER}/${name} digest)
  endif()
  string(SUBSTRING ${digest} 0 32 tag)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  if(name MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(name MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(name MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    message(FATAL_ERROR "${name}: what type of content is it? Name it in embed_files.cmake")
  endif()
  string(APPEND arrays "constexpr unsigned char file_${number}[] = {\n${bytes}};\n")
  string(APPEND rows
    "    {\"/${name}\", \"${type}\", \"\\\"${tag}\\\"\", text_of(file_${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Made by deploy/cmake/embed_files.cmake of server/admin/web.
#include \"server/admin/web_files.hpp\"

#include <cstddef>

namespace fl::server {
namespace {
${arrays}
template <std::size_t size>
std::string_view text_of(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}
const WebFile files[] = {
${rows}};
}  // namespace

std::span<const WebFile> web_files() { return files; }

}  // namespace fl::server
")
