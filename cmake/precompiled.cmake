# Precompiled headers: the standard library's and third parties' headers that most units include. None of the project's own
# is among them, so that an edit of one rebuilds only what includes it; precompiled_format.h is fmt's with a declaration
# that its version 9 lacks, precompiled_json.h nlohmann's with the functions that src/base compiles for all.
#
# Two sets, one for the libraries and one for the test programs, which differ in options and add gtest and nlohmann/json.
# A unit with code generation options of its own (src/kernels) is compiled without.
if(MILLRACE_FUZZ OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(precompile_default OFF)
else()
  set(precompile_default ON)
endif()
option(MILLRACE_PCH "precompile the headers that most units include (GCC)" ${precompile_default})

if(MILLRACE_PCH)
  # GCC collects its garbage whenever that has doubled, from 128 MB on, and walks through the precompiled headers each time.
  add_compile_options(--param=ggc-min-heapsize=600000)
  if(CCACHE)
    add_compile_options(-fpch-preprocess)
  endif()
  set(millrace_common_headers ${CMAKE_CURRENT_LIST_DIR}/precompiled_format.h ${CMAKE_CURRENT_LIST_DIR}/precompiled_json.h <algorithm> <atomic> <chrono> <cstdint> <cstring> <deque> <functional> <map> <memory>
      <mutex> <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/empty.cc CONTENT "// A target wants a source.\n")
  function(millrace_precompiled_set name)
    add_library(${name} STATIC ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
    target_link_libraries(${name} PRIVATE fmt::fmt spdlog::spdlog Threads::Threads)
    target_precompile_headers(${name} PRIVATE ${millrace_common_headers} ${ARGN})
    if(CCACHE)
      set_property(TARGET ${name} PROPERTY CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/with_checksum ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
  endfunction()
  millrace_precompiled_set(millrace_pch)
  if(MILLRACE_TESTS)
    millrace_precompiled_set(millrace_test_pch <fstream> <filesystem> <random> <sstream> <gtest/gtest.h>)
    target_link_libraries(millrace_test_pch PRIVATE GTest::gtest)
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(millrace_test_pch PRIVATE -Og)
    endif()
  endif()
endif()

function(millrace_precompile target)
  if(MILLRACE_PCH)
    target_precompile_headers(${target} REUSE_FROM millrace_pch)
  endif()
endfunction()

function(millrace_precompile_tests target)
  if(MILLRACE_PCH)
    target_precompile_headers(${target} REUSE_FROM millrace_test_pch)
  endif()
endfunction()
