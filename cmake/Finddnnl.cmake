# oneDNN by its header and library. The package's own configuration file asks for the OpenCL headers as
# well, where the library was built with a GPU runtime (Debian's), and nothing here needs those.
find_path(dnnl_INCLUDE_DIR NAMES dnnl.hpp oneapi/dnnl/dnnl.hpp)
find_library(dnnl_LIBRARY NAMES dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR)
mark_as_advanced(dnnl_INCLUDE_DIR dnnl_LIBRARY)
if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${dnnl_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
