-- SPDX-License-Identifier: AGPL-3.0-only
-- The trusted half of the sandbox: runs once in a fresh Lua state, before the user's script.
--
-- It owns the budget (instructions, CPU time, memory), the functions that a script may call, and
-- the entry points that Python calls. It knows nothing of queues, breakers or policies.
--
-- Rules that every line here obeys:
--   1. No value of the script is touched by an operation that may call a metamethod. Answers leave
--      as strings and numbers only.
--   2. No C function that can run long or allocate often is reachable without a bound. The count
--      hook sees Lua instructions; inside a C function nobody watches.
--   3. Nothing is looked up in a table that a script can change.
--
-- Arguments: what patterns.lua and library.lua return, the limits, and the name of the queue.
local analyse, library, CPU_SECONDS_MAX, STEPS_MAX, PATTERN_STEPS_MAX, STRING_BYTES_MAX,
  KEY_BYTES_MAX, THROTTLE_KEYS_MAX, QUEUE = ...

local type, tostring, tonumber, next, error, pcall, load =
  type, tostring, tonumber, next, error, pcall, load
local rawget, rawset, rawequal = rawget, rawset, rawequal
local setmetatable, getmetatable = setmetatable, getmetatable
local set_hook, clock, collect = debug.sethook, os.clock, collectgarbage
local sub, gsub, concat, unpack = string.sub, string.gsub, table.concat, table.unpack
local unpack_text = string.unpack

---------------------------------------------------------------------------------------- the budget
-- The hook fires every STRIDE instructions. One instruction can cost a tenth of a millisecond (a
-- long concatenation, a collection with the heap full), so this is also how late the end may come.
local STRIDE = 100
-- Reading the clock is a system call. While the heap is small no instruction takes long, so then it
-- is read only this often, and never for a short script.
local STEPS_PER_LOOK = 800
-- Work inside C functions, in units of about a nanosecond, after which the clock is read.
local UNITS_UNWATCHED = 16384

local TIME = "time limit exceeded"
local MEMORY = "memory limit exceeded"
local LUA_MEMORY = "not enough memory" -- Lua's own words, whoever raises them

local steps, spent, started = 0, 0, 0
local running = false -- true while the script has the word; nothing else is ever interrupted
local exceeded = false -- or why the call must end; a script cannot catch it
local heap_small_kib, heap_max_kib = 1 / 0, 1 / 0

local function exceed(why)
  exceeded = why
  error(why, 0)
end

local function look()
  if collect("count") > heap_max_kib then
    collect()
    if collect("count") > heap_max_kib then exceed(MEMORY) end
  end
  if started == 0 then
    started = clock()
  elseif clock() - started > CPU_SECONDS_MAX then
    exceed(TIME)
  end
end

local function tick()
  if not running then return end
  if exceeded then error(exceeded, 0) end
  steps = steps + STRIDE
  if steps % STEPS_PER_LOOK ~= 0 and collect("count") <= heap_small_kib then return end
  if steps > STEPS_MAX then exceed(TIME) end
  look()
end

-- Pays for work that a C function is about to do, or has done.
local function charge(units)
  spent = spent + units
  if spent < UNITS_UNWATCHED then return end
  spent = 0
  steps = steps + STRIDE
  if steps > STEPS_MAX then exceed(TIME) end
  look()
end

-- Called before C functions that allocate many small objects: with the heap full, each allocation
-- would collect all garbage first.
local function need_room()
  if collect("count") > heap_max_kib then look() end
end

local function begin()
  steps, started, running = 0, 0, true
end

-- Takes the word from the script and returns why the call was ended, if it was. Shorter than a
-- stride: if the hook fires in it, the next call of it goes through.
local function finish()
  local why = exceeded
  running, exceeded = false, false
  return why
end

-- A script's pcall caught e. The end of a call is not for a script to catch, and neither is a full
-- heap: going on there costs one full collection for every few allocations.
local function reraise(e)
  if exceeded then error(exceeded, 0) end
  if e == LUA_MEMORY then exceed(MEMORY) end
end

------------------------------------------------------------------------------- fila.* and messages
local env = library(analyse, charge, need_room, reraise, PATTERN_STEPS_MAX, STRING_BYTES_MAX)

local config = {}
env.fila = {
  get = function(key)
    if type(key) ~= "string" then
      error("bad argument #1 to 'fila.get' (string expected, got " .. type(key) .. ")", 2)
    end
    return config[key]
  end,
}

-- msg.headers is one empty table for ever; each call puts its own headers behind it.
local headers_meta = { __index = {}, __metatable = "read-only" }
local headers = setmetatable({}, headers_meta)

function headers_meta.__newindex() error("msg.headers is read-only", 2) end

function headers_meta.__pairs()
  local held = headers_meta.__index
  return function(_, k) return next(held, k) end, headers, nil
end

function env.next(t, k)
  if rawequal(t, headers) then t = headers_meta.__index end
  return next(t, k)
end

function env.rawget(t, k)
  if rawequal(t, headers) then t = headers_meta.__index end
  return rawget(t, k)
end

function env.rawset(t, k, v)
  if rawequal(t, headers) then error("msg.headers is read-only", 2) end
  return rawset(t, k, v)
end

------------------------------------------------------------------------------------------- answers
-- An answer is flat: 0 and the values, or 1 and what went wrong.
local function failed(e, why)
  if why then return 1, why end
  if e == LUA_MEMORY then return 1, MEMORY end
  if type(e) == "string" then return 1, sub(e, 1, 800) end
  return 1, "the script raised a " .. type(e) .. " value"
end

local function number_or_nil(v)
  if v == nil or type(v) == "number" then return v end
  return type(v) == "string" and #v <= 64 and tonumber(v) or false
end

local function late() return started ~= 0 and clock() - started > CPU_SECONDS_MAX end

local function key_problem(what, v)
  if type(v) ~= "string" then return what .. " must be a string, got " .. type(v) end
  return what .. " must have 1 to " .. KEY_BYTES_MAX .. " bytes, got " .. #v
end

local function many_keys(key, weight, cost, listed)
  local seen, out, n = {}, {}, 0
  for i, v in next, listed do
    if type(i) ~= "number" then return 1, "throttle_keys must be a list" end
    if type(v) == "number" then v = tostring(v) end
    if v and v ~= "" and not seen[v] then
      if type(v) ~= "string" or #v > KEY_BYTES_MAX then
        return 1, key_problem("a throttle key", v)
      end
      n = n + 1
      if n > THROTTLE_KEYS_MAX then
        return 1, "more than " .. THROTTLE_KEYS_MAX .. " throttle keys"
      end
      seen[v], out[n] = true, v
    end
  end
  return 0, key, weight, cost, unpack(out, 1, n)
end

local function enqueue_answer(ok, r)
  local why = finish()
  if not ok then return failed(r, why) end
  if late() then return 1, TIME end
  if r == nil then return 0, nil end
  if type(r) ~= "table" then return 1, "on_enqueue must return a table, got " .. type(r) end
  if getmetatable(r) ~= nil then return 1, "on_enqueue must return a table without metatable" end
  local key, weight, listed = r.fairness_key, r.weight, r.throttle_keys
  if key ~= nil then
    if type(key) == "number" then key = tostring(key) end
    if type(key) ~= "string" or key == "" or #key > KEY_BYTES_MAX then
      return 1, key_problem("fairness_key", key)
    end
  end
  weight = number_or_nil(weight)
  if weight == false then return 1, "weight must be a number" end
  local cost = number_or_nil(r.throttle_cost)
  if cost == false then return 1, "throttle_cost must be a number" end
  if listed == nil then return 0, key, weight, cost end
  if type(listed) ~= "table" then
    return 1, "throttle_keys must be a list, got " .. type(listed)
  end
  local i, only = next(listed)
  if i == nil then return 0, key, weight, cost end
  if i == 1 and type(only) == "string" and next(listed, 1) == nil and only ~= ""
    and #only <= KEY_BYTES_MAX then
    return 0, key, weight, cost, only
  end
  return many_keys(key, weight, cost, listed)
end

local function failure_answer(ok, r)
  local why = finish()
  if not ok then return failed(r, why) end
  if late() then return 1, TIME end
  if r == nil then return 0, nil end
  if type(r) ~= "table" then return 1, "on_failure must return a table, got " .. type(r) end
  if getmetatable(r) ~= nil then return 1, "on_failure must return a table without metatable" end
  local action, delay = r.action, number_or_nil(r.delay_ms)
  if action ~= "retry" and action ~= "dlq" then return 1, 'action must be "retry" or "dlq"' end
  if delay == false then return 1, "delay_ms must be a number" end
  return 0, action, delay
end

-------------------------------------------------------------------------------------- entry points
local E = {}
local hooks = {}

-- Runs the script. Returns 0 and the types of its two hook functions, or 1 and what went wrong.
function E.load(source, name)
  local chunk, e = load(source, name, "t", env)
  if not chunk then return failed(e) end
  begin()
  local ok
  ok, e = pcall(chunk)
  local why = finish()
  if not ok then return failed(e, why) end
  if late() then return 1, TIME end
  hooks.on_enqueue, hooks.on_failure = rawget(env, "on_enqueue"), rawget(env, "on_failure")
  return 0, type(hooks.on_enqueue), type(hooks.on_failure)
end

-- Both take a call with `count` headers. The parameters are spelt out for each count, because one
-- table of the right size is several times cheaper than varargs and a table that grows.
local TEMPLATES = {
  on_enqueue = [[
    local begin, answer, pcall, fn, meta, headers, queue = ...
    return function(size$params)
      begin()
      meta.__index = $headers
      return answer(pcall(fn, { queue = queue, payload_size = size, headers = headers }))
    end]],
  on_failure = [[
    local begin, answer, pcall, fn, meta, headers, queue = ...
    return function(id, attempts, err, reason, size, key, keys$params)
      begin()
      meta.__index = $headers
      return answer(pcall(fn, { queue = queue, id = id, attempts = attempts, error = err,
        reason = reason, payload_size = size, fairness_key = key, throttle_keys = listed(keys),
        headers = headers }, err, attempts))
    end]],
}

-- Throttle keys come as one text, each after its length, because their number varies.
local function listed(keys)
  local out, n, at, size = {}, 0, 1, #keys
  while at <= size do
    n = n + 1
    out[n], at = unpack_text("<s4", keys, at)
  end
  return out
end

local function paired(...)
  local flat, out = { ... }, {}
  for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1] end
  return out
end

-- Returns the entry point of a hook for `count` headers, or for any number if count is negative.
function E.entry(hook, count)
  local params, fields = {}, {}
  for i = 1, count do
    params[i] = ", k" .. i .. ", v" .. i
    fields[i] = "[k" .. i .. "] = v" .. i
  end
  local parts = { params = concat(params), headers = "{" .. concat(fields, ", ") .. "}" }
  if count < 0 then parts = { params = ", ...", headers = "paired(...)" } end
  local source = gsub(TEMPLATES[hook], "%$(%l+)", parts)
  local answer = hook == "on_enqueue" and enqueue_answer or failure_answer
  local make = load(source, "=entry", "t", { paired = paired, listed = listed })
  return make(begin, answer, pcall, hooks[hook], headers_meta, headers, QUEUE)
end

function E.configure(key, value) config[key] = value end

function E.forget_headers() headers_meta.__index = {} end

function E.set_heap(small_bytes, max_bytes)
  heap_small_kib, heap_max_kib = small_bytes / 1024, max_bytes / 1024
end

------------------------------------------------------------------------------------ close the door
-- lupa looks up _G.debug before every call, outside any pcall: the real _G must stay an ordinary
-- table, and with nothing in it lupa finds no traceback function to run on errors.
local globals = _G
for k in next, globals do globals[k] = nil end
set_hook(tick, "", STRIDE)
collect("generational")
return E.load, E.entry, E.configure, E.set_heap, E.forget_headers, finish
