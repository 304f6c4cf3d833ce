# cmake -DFOLDER=DIR -DFILES="a.html;b.js" -DOUTPUT=FILE.cc -P embed.cmake: the files as one C++ source (page.h).
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml; charset=utf-8")

set(arrays "")
set(rows "")
set(index 0)
foreach(file ${FILES})
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "embed.cmake: no content type for ${file}")
  endif()
  set(path "/web/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ ${FOLDER}/${file} hex HEX)
  file(SHA256 ${FOLDER}/${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  string(LENGTH "${hex}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${hex}")
  # Lines of 32 bytes; each is a literal of its own, so that no escape runs into the next one.
  string(REGEX REPLACE "(................................................................................................................................)" "\\1\"\n    \"" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] =\n    \"${bytes}\";\n")
  string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", {kFile${index}, ${size}}, \"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT} "// Made by embed.cmake.
#include \"serve/web/page.h\"

namespace volley::serve {
namespace {

${arrays}
constexpr PageFile kFiles[] = {
${rows}};

}  // namespace

std::span<const PageFile> page_files() {
  return kFiles;
}

}  // namespace volley::serve
")
