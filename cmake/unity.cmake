# Unity builds: with MILLRACE_UNITY, several files are compiled as one unit, which takes a third of the time of a clean build.
# Meant for continuous integration and the first build; an edit of one file costs more than without. unity_groups.py forms the groups.
# Files with options of their own are left alone, and so is src/kernels: its code generation is part of its contract.
option(MILLRACE_UNITY "compile several files as one unit, for fast clean builds" OFF)
if(MILLRACE_UNITY)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# millrace_unity(TARGET FILE...)
function(millrace_unity target)
  if(NOT MILLRACE_UNITY OR NOT ARGN)
    return()
  endif()
  set(script ${PROJECT_SOURCE_DIR}/cmake/unity_groups.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script} ${ARGN})
  execute_process(COMMAND ${Python3_EXECUTABLE} ${script} ${ARGN} OUTPUT_VARIABLE groups COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" groups "${groups}")
  foreach(line ${groups})
    string(REGEX MATCH "^([0-9]+) (.*)$" matched "${line}")
    set_source_files_properties(${CMAKE_MATCH_2} PROPERTIES UNITY_GROUP "${target}_${CMAKE_MATCH_1}")
  endforeach()
  # GCC warns of a type of the anonymous namespace as a member only in files that are not the main one.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
