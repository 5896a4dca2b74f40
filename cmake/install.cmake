# What `cmake --install` puts where, and how other projects find it: find_package(waveinfer) and pkg-config.
# Every path is relative to the file it stands in, so that an installed tree can be moved. Components:
#   waveinfer  the library with its header, and the files that find it
#   bundled    the same with the bundled libraries and their licences in place of the library; only where asked for.
#              With WAVEINFER_BUNDLED that is what waveinfer is; then and where there is none, asking fails and says so.
#   programs   the programs and their man pages
#   waveinfer_cuda  the CUDA backend, to lie beside either library; in no package, and only where there was a toolkit
# A bare `cmake --install` puts all but bundled in its place.
include(CMakePackageConfigHelpers)

add_library(waveinfer::waveinfer ALIAS waveinfer)
set(WI_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/waveinfer)
set(WI_PKGCONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/waveinferConfig.cmake.in
  ${PROJECT_BINARY_DIR}/waveinferConfig.cmake INSTALL_DESTINATION ${WI_CMAKE_DIR} NO_SET_AND_CHECK_MACRO
  PATH_VARS CMAKE_INSTALL_FULL_LIBDIR CMAKE_INSTALL_FULL_INCLUDEDIR)
# Until 1.0 a new minor version may break.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/waveinferConfigVersion.cmake COMPATIBILITY SameMinorVersion)

# For packagers whose library the loader finds by itself; a program that links it in another prefix needs the run path.
option(WAVEINFER_PC_RPATH "waveinfer.pc gives programs a run path to the library" ON)
set(WI_PC_RPATH "")
if(WAVEINFER_PC_RPATH)
  set(WI_PC_RPATH " -Wl,-rpath,\${libdir}")
endif()
# The prefix as seen from the .pc file; folders given as absolute paths stay as they are.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(WI_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /prefix/${WI_PKGCONFIG_DIR} /prefix)
  string(REGEX REPLACE "/$" "" WI_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE ${CMAKE_INSTALL_${folder}})
    set(WI_PC_${folder} ${CMAKE_INSTALL_${folder}})
  else()
    set(WI_PC_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/waveinfer.pc.in ${PROJECT_BINARY_DIR}/waveinfer.pc @ONLY)

# wi_install(COMPONENT TARGET [EXCLUDE_FROM_ALL])
function(wi_install component target)
  install(TARGETS ${target} EXPORT ${component}Targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} NAMELINK_COMPONENT ${component} ${ARGN})
  install(EXPORT ${component}Targets FILE waveinferTargets.cmake NAMESPACE waveinfer:: DESTINATION ${WI_CMAKE_DIR}
    COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_SOURCE_DIR}/include/waveinfer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/waveinferConfig.cmake ${PROJECT_BINARY_DIR}/waveinferConfigVersion.cmake
    DESTINATION ${WI_CMAKE_DIR} COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/waveinfer.pc DESTINATION ${WI_PKGCONFIG_DIR} COMPONENT ${component} ${ARGN})
endfunction()

wi_install(waveinfer waveinfer)
set(WI_PACKAGED waveinfer)
if(WI_BUNDLED AND NOT WAVEINFER_BUNDLED)
  set(WI_PACKAGED bundled)
  set_target_properties(waveinfer_bundled PROPERTIES EXPORT_NAME waveinfer)
  wi_install(bundled waveinfer_bundled EXCLUDE_FROM_ALL)
  set(excluded EXCLUDE_FROM_ALL)
elseif(PROJECT_IS_TOP_LEVEL)
  # Who asks for a component that is not there would get nothing, and be told nothing.
  if(WAVEINFER_BUNDLED)
    set(instead "It is the library of this build folder, component waveinfer")
  else()
    set(instead "This build folder has no bundled library, for ${WI_NOT_BUNDLED}")
  endif()
  install(CODE "message(FATAL_ERROR [==[${instead}]==])" COMPONENT bundled EXCLUDE_FROM_ALL)
endif()
if(WI_BUNDLED)
  install(FILES ${WI_STATIC_ARCHIVE} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${WI_PACKAGED} ${excluded})
  install(FILES ${WI_LICENSES} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT ${WI_PACKAGED} ${excluded})
endif()

# Beside the library, which opens it at run time.
if(TARGET waveinfer_cuda)
  install(TARGETS waveinfer_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT waveinfer_cuda)
endif()

# Installed programs find the library beside them, and need as little as it does; what they say to --help is
# their man page.
file(RELATIVE_PATH WI_LIBRARY_FROM_PROGRAM /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
set(man_pages)
foreach(program wi_ask wi_chat wi_logits wi_tokens)
  if(TARGET ${program})
    if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_BINDIR})
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${WI_LIBRARY_FROM_PROGRAM}")
    endif()
    if(WI_BUNDLED)
      target_link_options(${program} PRIVATE -static-libstdc++ -static-libgcc)
    endif()
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
    if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
      continue()
    endif()
    set(page ${PROJECT_BINARY_DIR}/man/${program}.1)
    add_custom_command(OUTPUT ${page} VERBATIM DEPENDS ${program} cmake/man_page.sh
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/man_page.sh ${page} ${PROJECT_VERSION} ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:${program}>
      COMMENT "Writing ${program}.1")
    list(APPEND man_pages ${page})
  endif()
endforeach()
if(man_pages)
  add_custom_target(man_pages ALL DEPENDS ${man_pages})
  install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT programs)
endif()

# Packages: `cpack` in the build folder makes a .tar.gz and a .deb of the bundled library and the programs; where
# there is no bundled library, of the other one. A project around this one has packages of its own.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};waveinfer;${WI_PACKAGED};/")
if(man_pages)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};waveinfer;programs;/")
endif()
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_VENDOR "waveinfer")
set(CPACK_PACKAGE_CONTACT "The waveinfer developers")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
string(TOLOWER "${CMAKE_PROJECT_NAME}-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# dpkg's own programs know of the machine that builds, and of libraries that are installed there. By Debian's names:
if(CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE ${CMAKE_SYSTEM_PROCESSOR})
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
  endif()
endif()
# What the .deb needs is asked of dpkg's own program, where that and what it is called with are installed.
find_program(WI_DPKG_SHLIBDEPS dpkg-shlibdeps)
find_program(WI_DPKG_QUERY dpkg-query)
find_program(WI_FILE file)
mark_as_advanced(WI_DPKG_SHLIBDEPS WI_DPKG_QUERY WI_FILE)
# mimalloc is opened at run time, if it is of version 2, and nothing links it that would tell.
if(WI_DPKG_QUERY AND WI_MIMALLOC_SONAME MATCHES "[.]so[.]2$" AND NOT CMAKE_CROSSCOMPILING)
  execute_process(COMMAND ${WI_DPKG_QUERY} -S ${WI_MIMALLOC_FILE} OUTPUT_VARIABLE owner ERROR_QUIET)
  if(owner MATCHES "^([^:, ]+)(:[^:, ]+)?: ")
    set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ${CMAKE_MATCH_1})
  endif()
endif()
if(WI_DPKG_SHLIBDEPS AND WI_FILE AND NOT CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libc6)
endif()
include(CPack)
