# cpack -G DEB: a Debian package of what cmake --install installs, with a service, its user and its settings (deploy/debian).
# Its dependencies are those of the program's shared libraries, found by dpkg-shlibdeps. scripts/package runs it.
set(MILLRACE_PACKAGE OFF CACHE BOOL "install the files of the Debian package too, for the prefix /usr")
set(MILLRACE_PACKAGE_VERSION ${PROJECT_VERSION} CACHE STRING "version of the Debian package")
set(MILLRACE_PACKAGE_MAINTAINER "Millrace contributors <contributors@millrace.invalid>" CACHE STRING "maintainer of the Debian package")
if(NOT MILLRACE_PACKAGE)
  return()
endif()

set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
install(FILES ${debian}/millrace.service DESTINATION /lib/systemd/system)
install(FILES ${debian}/millrace.default DESTINATION /etc/default RENAME millrace)
install(FILES ${debian}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # of SOURCE_DATE_EPOCH, where it is set
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/package/changelog CONTENT "millrace (@MILLRACE_PACKAGE_VERSION@) unstable; urgency=medium

  * The changes are in the project's CHANGELOG.md.

 -- @MILLRACE_PACKAGE_MAINTAINER@  @date@
" @ONLY)
execute_process(COMMAND gzip -9nkf ${CMAKE_BINARY_DIR}/package/changelog COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${CMAKE_BINARY_DIR}/package/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PACKAGE_VERSION ${MILLRACE_PACKAGE_VERSION})
set(CPACK_PACKAGE_CONTACT ${MILLRACE_PACKAGE_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")  # for hubs and media by https
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "ffmpeg, libucx0")    # for videos; for tensors between hosts by UCX
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${debian}/postinst ${debian}/prerm ${debian}/postrm ${debian}/conffiles)
# CPack puts a space before each line, and a dot into empty ones.
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "server for multimodal language models, on CPUs
Millrace serves open language models behind an OpenAI-compatible API: text,
pictures, audio and speech. It runs on CPUs with AMX, AVX-512 or AVX2, takes
Hugging Face directories and GGUF files, and pulls models by name.

The package has a service, millrace.service, that is not enabled by itself,
and a small demo model.")
include(CPack)
