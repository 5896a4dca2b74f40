# What `cmake --install` puts where, and how other projects find it: find_package(waveinfer) and pkg-config.
# Every path is relative to the file it stands in, so that an installed tree can be moved.
include(CMakePackageConfigHelpers)

add_library(waveinfer::waveinfer ALIAS waveinfer)
set(WI_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/waveinfer)
set(WI_PKGCONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS waveinfer EXPORT waveinferTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT waveinfer
        NAMELINK_COMPONENT waveinfer)
install(FILES ${CMAKE_SOURCE_DIR}/include/waveinfer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT waveinfer)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT waveinfer)
install(EXPORT waveinferTargets NAMESPACE waveinfer:: DESTINATION ${WI_CMAKE_DIR} COMPONENT waveinfer)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/waveinferConfig.cmake.in
  ${CMAKE_BINARY_DIR}/waveinferConfig.cmake INSTALL_DESTINATION ${WI_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
# Until 1.0 a new minor version may break.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/waveinferConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/waveinferConfig.cmake ${CMAKE_BINARY_DIR}/waveinferConfigVersion.cmake
        DESTINATION ${WI_CMAKE_DIR} COMPONENT waveinfer)

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
configure_file(${CMAKE_SOURCE_DIR}/cmake/waveinfer.pc.in ${CMAKE_BINARY_DIR}/waveinfer.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/waveinfer.pc DESTINATION ${WI_PKGCONFIG_DIR} COMPONENT waveinfer)

# Installed programs find the library beside them.
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_BINDIR})
  file(RELATIVE_PATH WI_LIBRARY_FROM_PROGRAM /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
  foreach(program wi_ask wi_logits wi_tokens)
    if(TARGET ${program})
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${WI_LIBRARY_FROM_PROGRAM}")
    endif()
  endforeach()
endif()
