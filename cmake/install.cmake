# cmake --install: the program, its manual page, the pipelines and the demo model. MILLRACE_PACKAGE: cmake/package.cmake.
include(GNUInstallDirs)
install(TARGETS millrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY pipelines models DESTINATION ${CMAKE_INSTALL_DATADIR}/millrace)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The page is made of --help, by the program that was built. Not from a sanitizer's or a fuzzer's build: nobody installs those.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT MILLRACE_SANITIZE AND NOT MILLRACE_FUZZ)
  set(man_page ${CMAKE_BINARY_DIR}/millrace.1)
  add_custom_command(OUTPUT ${man_page} DEPENDS millrace ${PROJECT_SOURCE_DIR}/tools/make_man.py
                     COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/make_man.py $<TARGET_FILE:millrace> ${man_page})
  add_custom_target(man_page ALL DEPENDS ${man_page})
  if(MILLRACE_PACKAGE)  # Debian compresses it
    add_custom_command(OUTPUT ${man_page}.gz DEPENDS ${man_page} COMMAND gzip -9nkf ${man_page})
    add_custom_target(man_page_gz ALL DEPENDS ${man_page}.gz)
    set(man_page ${man_page}.gz)
  endif()
  install(FILES ${man_page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
else()
  message(STATUS "millrace.1 is not made: it needs python3 and a program that runs here")
endif()
