-- libwaveinfer for LuaJIT: waveinfer.h itself is the declarations, so that nothing can drift; calls throw their error.
--   WAVEINFER_LIBRARY, WAVEINFER_HEADER   where they are; else the system's library, and the header of this checkout
local ffi = require "ffi"

local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"

-- What the C compiler would see: no comments, nothing for C++, no preprocessor.
local function declarations(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  text = text:gsub("/%*.-%*/", " "):gsub("#ifdef __cplusplus.-#endif", "")
  return ("\n" .. text):gsub("\n%s*#[^\n]*", "\n"):gsub("WI_API%s", "")
end

ffi.cdef((declarations(os.getenv "WAVEINFER_HEADER" or here .. "../../include/waveinfer.h")))
local lib = ffi.load(os.getenv "WAVEINFER_LIBRARY" or "libwaveinfer.so.2")
assert(lib.wi_abi_version() == 2, "libwaveinfer is of another ABI version")

local M = { lib = lib }

-- A struct that says its own size; what is not in fields is zero, the default. It keeps no string or array alive.
function M.new(kind, fields)
  local struct = ffi.new(kind, fields or {})
  struct.struct_size = ffi.sizeof(kind)
  return struct
end

-- Calls a function whose last parameter is a wi_error, which is added. A failure is thrown as a table.
function M.call(name, ...)
  local err = M.new "wi_error"
  local count, values = select("#", ...), { ... }
  values[count + 1] = err
  if lib[name](unpack(values, 1, count + 1)) ~= lib.WI_OK then
    error({ code = err.code, status = ffi.string(lib.wi_status_name(err.code)), message = ffi.string(err.message) }, 0)
  end
end

-- The same for one that makes a handle, "wi_session", its last parameter but one. It is released when it is garbage,
-- in any order: a handle keeps what it was made from.
function M.make(kind, name, ...)
  local out = ffi.new(kind .. "*[1]")
  local count, values = select("#", ...), { ... }
  values[count + 1] = out
  M.call(name, unpack(values, 1, count + 1))
  return ffi.gc(out[0], lib[kind .. "_release"])
end

jit.off(M.call, true) -- calls back into Lua, for progress

return M
