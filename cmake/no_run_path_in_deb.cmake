# CPack runs this before it packs what it has installed: in a .deb, waveinfer.pc gives programs no run path.
if(CPACK_GENERATOR STREQUAL "DEB")
  file(GLOB_RECURSE files ${CPACK_TEMPORARY_DIRECTORY}/waveinfer.pc)
  foreach(file ${files})
    file(READ ${file} text)
    string(REPLACE " -Wl,-rpath,\${libdir}" "" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endif()
