# A libwaveinfer.so that needs nothing but the C library: the same objects, linked with static libraries in
# place of shared ones, with run-time dispatch of our own in place of libhwy's; and a libwaveinfer.a of the same
# objects. Every build folder whose system has the static libraries, from packages that say their licences, has both,
# in bundled/lib, as the targets waveinfer_bundled and waveinfer_static; with WAVEINFER_BUNDLED that shared library is
# the only one, in lib.
set(WI_BUNDLED OFF)

# Sets WI_STATIC_LIBRARIES and WI_LICENSED_FILES, all that the licences are asked for of, or why there is no bundled
# library to WI_NOT_BUNDLED.
function(wi_find_static_libraries)
  set(WI_NOT_BUNDLED "" PARENT_SCOPE)
  set(libraries)
  set(wanted PCRE2/pcre2-8 UTF8PROC/utf8proc XXHASH/xxhash)
  if(URING_FOUND)
    list(APPEND wanted URING/uring)
  endif()
  foreach(want ${wanted})
    string(REPLACE "/" ";" want ${want})
    list(GET want 0 package)
    list(GET want 1 name)
    set(file ${CMAKE_STATIC_LIBRARY_PREFIX}${name}${CMAKE_STATIC_LIBRARY_SUFFIX})
    find_library(WI_STATIC_${package} NAMES ${file} HINTS ${${package}_LIBDIR} ${${package}_LIBRARY_DIRS})
    mark_as_advanced(WI_STATIC_${package})
    if(NOT WI_STATIC_${package})
      set(WI_NOT_BUNDLED "there is no ${file}" PARENT_SCOPE)
      return()
    endif()
    list(APPEND libraries ${WI_STATIC_${package}})
  endforeach()

  # Whether they are position-independent shows in linking all of them into a shared library.
  if(NOT WI_STATIC_LIBRARIES_LINKED STREQUAL "${libraries}")
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/wi_static_libraries.so)
    execute_process(RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said
      COMMAND ${CMAKE_CXX_COMPILER} -shared -static-libstdc++ -static-libgcc -o ${probe}
        -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/waveinfer.map -Wl,--whole-archive ${libraries}
        -Wl,--no-whole-archive)
    file(REMOVE ${probe})
    if(failed)
      set(WI_NOT_BUNDLED "the static libraries do not link: ${said}" PARENT_SCOPE)
      return()
    endif()
    set(WI_STATIC_LIBRARIES_LINKED "${libraries}" CACHE INTERNAL "")
  endif()

  # Nothing leaves the house without its licences, which are the packages': what was built by hand or came with another
  # distribution has none here, and that is better known now than in the midst of the build.
  set(licensed ${libraries})
  foreach(header hwy/highway.h nlohmann/json.hpp)
    string(MAKE_C_IDENTIFIER WI_HEADER_${header} found)
    find_file(${found} ${header} HINTS ${HWY_INCLUDE_DIRS})
    mark_as_advanced(${found})
    if(NOT ${found})
      set(WI_NOT_BUNDLED "there is no ${header}" PARENT_SCOPE)
      return()
    endif()
    list(APPEND licensed ${${found}})
  endforeach()
  if(NOT WI_LICENSES_FOUND STREQUAL "${CMAKE_CXX_COMPILER};${licensed}")
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/wi_licenses)
    execute_process(RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said ERROR_STRIP_TRAILING_WHITESPACE
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/licenses.sh ${probe} "${WI_SYSROOT}" ${CMAKE_CXX_COMPILER} ${licensed})
    file(REMOVE ${probe})
    if(NOT failed STREQUAL 0)
      set(WI_NOT_BUNDLED "the licences of what is inside are not known: ${said}" PARENT_SCOPE)
      return()
    endif()
    set(WI_LICENSES_FOUND "${CMAKE_CXX_COMPILER};${licensed}" CACHE INTERNAL "")
  endif()
  set(WI_STATIC_LIBRARIES ${libraries} PARENT_SCOPE)
  set(WI_LICENSED_FILES ${licensed} PARENT_SCOPE)
endfunction()

if(WAVEINFER_SANITIZE)
  set(WI_NOT_BUNDLED "it is built with sanitizers")
elseif(NOT PROJECT_IS_TOP_LEVEL AND NOT WAVEINFER_BUNDLED)
  set(WI_NOT_BUNDLED "another project has this one in it, and did not ask for it by WAVEINFER_BUNDLED")
elseif(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(WI_NOT_BUNDLED "it is made on Linux only")
else()
  wi_find_static_libraries()
endif()
if(WI_NOT_BUNDLED)
  if(WAVEINFER_BUNDLED)
    message(FATAL_ERROR "No bundled library: ${WI_NOT_BUNDLED}")
  endif()
  message(STATUS "Bundled library: not built, for ${WI_NOT_BUNDLED}")
  return()
endif()
set(WI_BUNDLED ON)

# What a bundled library has instead of libhwy. As an object, which the linker takes before it looks for the same
# functions in the archives.
add_library(wi_own_targets OBJECT ${PROJECT_SOURCE_DIR}/kernels/cpu/bundled/targets.cpp)
target_link_libraries(wi_own_targets PRIVATE wi_kernels)
set(WI_BUNDLED_OBJECTS $<TARGET_OBJECTS:wi_own_targets>)

# The archives themselves: as CMake's targets they would bring the shared libraries along.
get_property(components GLOBAL PROPERTY WI_COMPONENTS)
list(APPEND components wi_base)
set(component_files)
foreach(component ${components})
  list(APPEND component_files $<TARGET_FILE:${component}>)
endforeach()
set(WI_BUNDLED_ARCHIVES -Wl,--start-group ${component_files} ${WI_STATIC_LIBRARIES} -Wl,--end-group)

if(WAVEINFER_BUNDLED)
  add_library(waveinfer_bundled ALIAS waveinfer)
  set(bundled waveinfer)
  set(WI_BUNDLED_FOLDER ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
else()
  wi_shared_library(waveinfer_bundled)
  set(bundled waveinfer_bundled)
  set(WI_BUNDLED_FOLDER ${PROJECT_BINARY_DIR}/bundled/lib)
  set_target_properties(waveinfer_bundled PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${WI_BUNDLED_FOLDER})
endif()
target_sources(${bundled} PRIVATE ${WI_BUNDLED_OBJECTS})
target_link_libraries(${bundled} PRIVATE ${WI_BUNDLED_ARCHIVES})
target_link_options(${bundled} PRIVATE -static-libstdc++ -static-libgcc "LINKER:--gc-sections")
add_dependencies(${bundled} ${components})

# The same objects as one archive of one object in which all names but the header's are local: nothing of it
# meets a host's own copy of a library. It is C++: who links it in C adds -lstdc++ -lm.
set(WI_STATIC_ARCHIVE ${WI_BUNDLED_FOLDER}/${CMAKE_STATIC_LIBRARY_PREFIX}waveinfer${CMAKE_STATIC_LIBRARY_SUFFIX})
add_custom_command(OUTPUT ${WI_STATIC_ARCHIVE} VERBATIM COMMAND_EXPAND_LISTS
  COMMAND ${PROJECT_SOURCE_DIR}/cmake/static_library.sh ${WI_STATIC_ARCHIVE} ${PROJECT_SOURCE_DIR}/src/waveinfer.map
    ${CMAKE_CXX_COMPILER} ${CMAKE_OBJCOPY} ${CMAKE_AR} $<TARGET_OBJECTS:wi_capi> ${WI_BUNDLED_OBJECTS} ${WI_BUNDLED_ARCHIVES}
  DEPENDS cmake/static_library.sh src/waveinfer.map wi_capi $<TARGET_OBJECTS:wi_capi> ${WI_BUNDLED_OBJECTS} ${components} ${component_files}
  COMMENT "Linking static library ${WI_STATIC_ARCHIVE}")

# The licences of all that is inside.
set(WI_LICENSES ${WI_BUNDLED_FOLDER}/LICENSES)
add_custom_command(OUTPUT ${WI_LICENSES} VERBATIM
  COMMAND ${PROJECT_SOURCE_DIR}/cmake/licenses.sh ${WI_LICENSES} "${WI_SYSROOT}" ${CMAKE_CXX_COMPILER} ${WI_LICENSED_FILES}
  DEPENDS cmake/licenses.sh
  COMMENT "Collecting licences")
add_custom_target(waveinfer_static ALL DEPENDS ${WI_STATIC_ARCHIVE} ${WI_LICENSES})
# Files among a command's dependencies are enough for Ninja only: to make they are other makefiles'.
add_dependencies(waveinfer_static wi_capi wi_own_targets ${components})
