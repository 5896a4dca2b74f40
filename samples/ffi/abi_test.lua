-- What LuaJIT makes of waveinfer.h, held against the manifest of the ABI: luajit abi_test.lua MANIFEST
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local ffi = require "ffi"
local wi = require "waveinfer"

local lines = 0
local function same(line, is, wanted)
  assert(is == tonumber(wanted), line .. ": it is " .. tostring(is))
  lines = lines + 1
end

-- A number comes as one of Lua's, whatever its size: what writing it changes is its size then.
local function size_of(of, field)
  local struct, size = ffi.new(of), 0
  ffi.fill(struct, ffi.sizeof(of), 0xff)
  if type(struct[field]) == "cdata" then return ffi.sizeof(struct[field]) end
  struct[field] = 0
  for i = 0, ffi.sizeof(of) - 1 do
    if ffi.cast("uint8_t*", struct)[i] == 0 then size = size + 1 end
  end
  return size
end

for line in io.lines(arg[1]) do
  local struct, size = line:match "^struct (%S+) size (%d+)"
  if struct then same(line, ffi.sizeof(struct), size) end
  local of, field, offset, bytes = line:match "^field ([%w_]+)%.(%S+) offset (%d+) size (%d+)"
  if of then
    same(line, ffi.offsetof(of, field), offset)
    same(line, size_of(of, field), bytes)
  end
  local name, value = line:match "^value (%S+) (-?%d+)"
  if name == "WI_ABI_VERSION" then
    same(line, wi.lib.wi_abi_version(), value)
  elseif name then
    same(line, wi.lib[name], value)
  end
  local symbol = line:match "^symbol (%S+)"
  if symbol then same(line, wi.lib[symbol] and 1, 1) end
end
assert(lines > 300, "the manifest has only " .. lines .. " lines")
