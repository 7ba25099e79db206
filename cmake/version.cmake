# Writes OUTPUT, a .cc that defines millrace::kVersion, unless it holds the version already: `git describe` of SOURCE_DIR,
# or FALLBACK where there is no git history, as in a tarball.
#   cmake -DSOURCE_DIR=... -DFALLBACK=... -DOUTPUT=... -P version.cmake
cmake_minimum_required(VERSION 3.25)
set(version ${FALLBACK})
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --show-prefix WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE prefix
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  # A prefix: the sources lie in a folder of somebody else's repository.
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT} describe --tags --match "v[0-9]*" --dirty WORKING_DIRECTORY ${SOURCE_DIR}
                    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE untagged ERROR_QUIET)
    if(untagged)
      execute_process(COMMAND ${GIT} describe --always --dirty WORKING_DIRECTORY ${SOURCE_DIR}
                      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
      if(NOT failed)
        set(version "${FALLBACK}-g${commit}")
      endif()
    else()
      string(REGEX REPLACE "^v" "" version "${described}")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// Written by cmake/version.cmake.
#include \"app/commands.h\"

namespace millrace {
const char* const kVersion = \"@version@\";
}  // namespace millrace
" @ONLY)
