// The files of the web page (web/), which the build puts into the program: cmake/embed_web.cmake.
//
// Thread safety: constant.
#pragma once

#include <span>

#include "http/static_files.h"

namespace millrace {

std::span<const http::StaticFile> web_files();

}  // namespace millrace
