#include "src/host_stream.h"

#include "src/error.h"
#include "src/host_call.h"

namespace wi {

void HostWriter::write(const void* data, size_t bytes) {
  const HostCall host;
  const int32_t result = writer_.write(writer_.user, data, bytes);
  if (result != 0) throw_error(WI_E_IO, concat("wi_writer.write returned ", result), result);
}

void HostReader::read(uint64_t offset, void* to, size_t bytes) {
  const HostCall host;
  const int32_t result = reader_.read(reader_.user, offset, to, bytes);
  if (result != 0)
    throw_error(WI_E_IO, concat("wi_reader.read of ", bytes, " bytes at ", offset, " returned ", result),
                result);
}

}  // namespace wi
