-- Reads a long document once, then answers several questions about it at the same time, each from a fork.
--   luajit long_document.lua MODEL DOCUMENT QUESTION...
-- Ctrl-C ends reading and answering. Progress and statistics go to standard error.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local ffi = require "ffi"
local wi = require "waveinfer"

local most_tokens = 128

local function read_file(path)
  local file, why = io.open(path, "rb")
  local text = file and file:read "*a"
  if not text then error({ message = why or path .. " cannot be read" }, 0) end
  file:close()
  return text
end

-- A user's turn as the model's chat template has it, up to where the answer begins.
local function user_turn(model, text)
  local role = "user"
  local message = wi.new("wi_chat_message", { role = role, content = text, content_length = #text })
  local params = wi.new("wi_chat_params", { flags = wi.lib.WI_CHAT_ADD_GENERATION_PROMPT })
  local count = ffi.new "uint64_t[1]"
  wi.call("wi_model_chat_tokens", model, message, 1, params, nil, 0, count)
  local ids = ffi.new("int32_t[?]", count[0])
  wi.call("wi_model_chat_tokens", model, message, 1, params, ids, count[0], count)
  return { ids = ids, count = tonumber(count[0]) }
end

local function common(a, b)
  local same = 0
  while same < a.count and same < b.count and a.ids[same] == b.ids[same] do same = same + 1 end
  return same
end

-- While a call computes, Lua runs in its callbacks only. So Ctrl-C waits until one asks for it.
ffi.cdef [[
typedef struct { uint64_t words[16]; } long_document_signals;
int sigemptyset(long_document_signals*);
int sigaddset(long_document_signals*, int);
int sigismember(const long_document_signals*, int);
int sigpending(long_document_signals*);
int sigprocmask(int, const long_document_signals*, long_document_signals*);
]]
local interrupt, block = 2, 0 -- of Linux
local signals, pending = ffi.new "long_document_signals", ffi.new "long_document_signals"
ffi.C.sigemptyset(signals)
ffi.C.sigaddset(signals, interrupt)

local function interrupted()
  ffi.C.sigpending(pending)
  return ffi.C.sigismember(pending, interrupt)
end

local function read(session, ids, count)
  local progress = ffi.cast("wi_progress_callback", function(_, done, total)
    io.stderr:write(("\rreading: %3.0f %%"):format(100 * tonumber(done) / tonumber(total)))
    return interrupted()
  end)
  wi.call("wi_session_prefill", session, ids, count, wi.new("wi_prefill_params", { progress = progress }), nil)
  progress:free()
  io.stderr:write "\n"
end

local function print_answer(task)
  local ready, count, events = ffi.new "int32_t[1]", ffi.new "uint64_t[1]", ffi.new "wi_event[16]"
  for i = 0, 15 do events[i].struct_size = ffi.sizeof "wi_event" end
  local kind = wi.lib.WI_EVENT_TOKEN
  while kind == wi.lib.WI_EVENT_TOKEN do
    wi.call("wi_task_wait", task, 50e6, ready) -- ns, between looks at Ctrl-C
    if interrupted() == 1 then wi.lib.wi_task_cancel(task) end
    wi.call("wi_task_poll", task, events, 16, count)
    for i = 0, tonumber(count[0]) - 1 do
      io.write(ffi.string(events[i].text, events[i].text_length))
      kind = events[i].kind
    end
  end
  local info = wi.new "wi_task_info"
  wi.call("wi_task_get_info", task, info)
  if info.status ~= wi.lib.WI_OK then
    error({ status = ffi.string(wi.lib.wi_status_name(info.status)), message = ffi.string(info.message) }, 0)
  end
end

local function main(path, document_path, ...)
  local runtime = wi.make("wi_runtime", "wi_runtime_create", nil)
  local model = wi.make("wi_model", "wi_model_open", runtime, path, nil, nil)
  local document = wi.make("wi_session", "wi_session_create", model, nil)

  -- What all these conversations begin with is the document: it is read once.
  local text = read_file(document_path) .. "\n\n"
  local opening = user_turn(model, text)
  local asked, shared = {}, opening.count
  for i, question in ipairs { ... } do
    asked[i] = user_turn(model, text .. question)
    shared = math.min(shared, common(opening, asked[i]))
  end
  ffi.C.sigprocmask(block, signals, nil)
  read(document, opening.ids, shared)

  local tasks = {}
  for i, turn in ipairs(asked) do
    local fork = wi.make("wi_session", "wi_session_fork", document) -- the task keeps it
    local ask = wi.new("wi_task_params",
      { tokens = turn.ids + shared, token_count = turn.count - shared, max_tokens = most_tokens })
    tasks[i] = wi.make("wi_task", "wi_task_submit", fork, ask)
  end
  for i, question in ipairs { ... } do
    io.write(question, "\n  ")
    print_answer(tasks[i])
    io.write "\n"
  end

  local stats = wi.new "wi_session_stats"
  wi.call("wi_session_get_stats", document, stats)
  io.stderr:write(("%d tokens read in %.1f s, %d segments, %.1f MB of KV cache, %.1f MB of it index\n"):format(
    tonumber(stats.tokens), tonumber(stats.prefill_ns) / 1e9, stats.segments, tonumber(stats.kv_bytes) / 1e6,
    tonumber(stats.index_bytes) / 1e6))
end

if #arg < 3 then
  io.stderr:write "usage: luajit long_document.lua MODEL DOCUMENT QUESTION...\n"
  os.exit(1)
end
local done, why = pcall(main, unpack(arg))
if not done then
  local message = type(why) == "table" and (why.status and why.status .. ": " or "") .. why.message or tostring(why)
  io.stderr:write("\nlong_document: ", message, "\n")
  os.exit(1)
end
