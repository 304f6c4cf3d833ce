# cmake -DFOLDER=DIR -DFILES="a.html;b.js" -DOUTPUT=FILE.cc -P embed.cmake: the files as one C++ source (page.h). Text is
# also compressed; of vendor/ nothing but that is kept.
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml; charset=utf-8")
set(type_txt "text/plain; charset=utf-8")
set(type_woff2 "font/woff2")

# Defines kNAME of the generated source as the bytes of PATH, and VARIABLE as the expression for them.
function(embed_bytes path name variable)
  file(READ ${path} hex HEX)
  string(LENGTH "${hex}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${hex}")
  # Lines of 32 bytes; each is a literal of its own, so that no escape runs into the next one.
  string(REGEX REPLACE "(................................................................................................................................)" "\\1\"\n    \"" bytes "${bytes}")
  string(APPEND arrays "constexpr char ${name}[] =\n    \"${bytes}\";\n")
  set(arrays "${arrays}" PARENT_SCOPE)
  set(${variable} "{${name}, ${size}}" PARENT_SCOPE)
endfunction()

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
  file(SHA256 ${FOLDER}/${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  set(plain "{}")
  set(gzip "{}")
  if(NOT extension STREQUAL "woff2") # is compressed already
    set(packed ${OUTPUT}.gz)
    file(ARCHIVE_CREATE OUTPUT ${packed} PATHS ${FOLDER}/${file} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
    embed_bytes(${packed} kGzip${index} gzip)
    file(REMOVE ${packed})
  endif()
  if(extension STREQUAL "woff2" OR NOT file MATCHES "^vendor/")
    embed_bytes(${FOLDER}/${file} kFile${index} plain)
  endif()
  string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", ${plain}, ${gzip}, \"${hash}\"},\n")
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
