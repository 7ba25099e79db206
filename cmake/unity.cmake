# Unity builds: with MILLRACE_UNITY, several files are compiled as one unit, which takes a third of the time of a clean build.
# Meant for continuous integration and the first build; an edit of one file costs more than without. unity_groups.py forms the groups.
# Files with SKIP_UNITY_BUILD_INCLUSION are left alone, and so is src/kernels: its code generation is part of its contract.
#
# The units are written here and not by CMake's UNITY_BUILD, whose #include lines have the path of the checkout: __FILE__ of
# a CHECK has it then too, and a compiler cache misses every unit in a checkout that lies elsewhere.
option(MILLRACE_UNITY "compile several files as one unit, for fast clean builds" OFF)
if(MILLRACE_UNITY)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# millrace_unity(TARGET FILE...): FILEs are sources of the target. Properties that keep a file apart are set before the call.
function(millrace_unity target)
  set(files)
  foreach(file ${ARGN})
    get_source_file_property(apart ${file} SKIP_UNITY_BUILD_INCLUSION)
    if(NOT apart)
      list(APPEND files ${file})
    endif()
  endforeach()
  if(NOT MILLRACE_UNITY OR NOT files)
    return()
  endif()
  set(script ${PROJECT_SOURCE_DIR}/cmake/unity_groups.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script} ${files})
  execute_process(COMMAND ${Python3_EXECUTABLE} ${script} ${files} OUTPUT_VARIABLE groups COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" groups "${groups}")
  set(numbers)
  foreach(line ${groups})
    string(REGEX MATCH "^([0-9]+) (.*)$" matched "${line}")
    set(number ${CMAKE_MATCH_1})
    file(RELATIVE_PATH included ${PROJECT_SOURCE_DIR} ${CMAKE_MATCH_2})
    string(APPEND unit_${number} "#include \"${included}\"\n")
    list(APPEND numbers ${number})
  endforeach()
  list(REMOVE_DUPLICATES numbers)
  foreach(number ${numbers})
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}_${number}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${unit_${number}}" @ONLY)
    target_sources(${target} PRIVATE ${unit})
  endforeach()
  set_source_files_properties(${files} PROPERTIES HEADER_FILE_ONLY ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  # GCC warns of a type of the anonymous namespace as a member only in files that are not the main one.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
endfunction()
