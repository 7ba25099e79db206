# Writes OUTPUT, a .cc that defines millrace::web_files(): every file of the web page, as it is and compressed by gzip, with its
# content type and a digest for its ETag. FILES are paths below SOURCE_DIR; index.html is "/", any other PATH is /web/PATH.
#   cmake -DSOURCE_DIR=web -DFILES="index.html;app.js" -DOUTPUT=web_files.cc -P embed_web.cmake
cmake_minimum_required(VERSION 3.25)
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

# The bytes of FILE as a C++ array NAME.
function(append_bytes file name)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "constexpr unsigned char ${name}[] = {\n${hex}};\n")
  set(arrays "${arrays}" PARENT_SCOPE)
endfunction()

set(arrays "")
set(rows "")
set(number 0)
get_filename_component(folder ${OUTPUT} DIRECTORY)
foreach(file ${FILES})
  set(source ${SOURCE_DIR}/${file})
  string(REGEX REPLACE ".*\\." "" ending ${file})
  if(NOT DEFINED type_${ending})
    message(FATAL_ERROR "${source} ends in '.${ending}'; wanted html, css, js or svg")
  endif()
  set(packed ${folder}/${number}.gz)
  # A fixed time: the same sources make the same program.
  file(ARCHIVE_CREATE OUTPUT ${packed} PATHS ${source} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9 MTIME "1970-01-01")
  append_bytes(${source} kPlain${number})
  append_bytes(${packed} kGzip${number})
  file(REMOVE ${packed})
  file(SHA256 ${source} digest)
  string(SUBSTRING ${digest} 0 24 tag)
  set(path "/web/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  string(APPEND rows "    {\"${path}\", \"${type_${ending}}\", \"${tag}\", text(kPlain${number}), text(kGzip${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()

file(WRITE ${OUTPUT}.new "// Written by cmake/embed_web.cmake.
#include \"app/web_files.h\"

namespace millrace {
namespace {

template <std::size_t N>
std::string_view text(const unsigned char (&bytes)[N]) {
  return {reinterpret_cast<const char*>(bytes), N};
}

${arrays}
}  // namespace

std::span<const http::StaticFile> web_files() {
  static const http::StaticFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace millrace
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
