-- SPDX-License-Identifier: AGPL-3.0-only
-- The functions of Lua that a script may call, each with a bound on what one call can do.
--
-- The count hook sees Lua instructions; inside a C function nobody watches. So a C function that
-- can run long is paid for with `charge`, one that allocates often asks for room first, and what
-- cannot be bounded is refused. What is not listed here does not exist for a script: no load,
-- require, coroutine, debug, io, os, package, collectgarbage, xpcall, string.dump, string.pack.
-- It knows nothing of messages: sandbox.lua adds `fila` and `msg`.
--
-- Arguments: patterns.lua's function, then the budget: charge(units) pays for work, need_room()
-- makes sure that there is memory left, reraise(e) raises e again if a script must not catch it.
local analyse, charge, need_room, reraise, PATTERN_STEPS_MAX, STRING_BYTES_MAX = ...

local type, tostring, tonumber, next, error, pcall = type, tostring, tonumber, next, error, pcall
local rawget, rawset, rawlen = rawget, rawset, rawlen
local setmetatable, getmetatable = setmetatable, getmetatable
local byte, char, sub, rep, format = string.byte, string.char, string.sub, string.rep, string.format
local find, match, gmatch, gsub = string.find, string.match, string.gmatch, string.gsub
local concat, unpack, insert, remove, sort, move =
  table.concat, table.unpack, table.insert, table.remove, table.sort, table.move
local number_type = math.type
local string_lib, table_lib, math_lib, utf8_lib = string, table, math, utf8

------------------------------------------------------------------------------------------ patterns
-- Lua's matcher backtracks inside C, so a pattern is admitted only if the most it can do with a
-- subject of that length is bearable.
local costs, costs_known = {}, 0

local function learn(p)
  if #p > 256 then error("pattern is longer than 256 bytes", 4) end
  local ok, once, scan = pcall(analyse, p)
  if not ok then
    reraise(once)
    error(once, 4)
  end
  if costs_known == 64 then costs, costs_known = {}, 0 end
  local cost = { once = once, scan = scan, anchored = byte(p, 1) == 94 }
  costs[p], costs_known = cost, costs_known + 1
  return cost
end

-- Refuses a pattern that could take too long on this subject.
local function admit(s, p, may_anchor)
  local cost = costs[p] or learn(p)
  local poly = may_anchor and cost.anchored and cost.once or cost.scan
  local n, steps_most = #s + 1, 0
  for i = #poly, 1, -1 do steps_most = steps_most * n + poly[i] end
  if steps_most > PATTERN_STEPS_MAX then
    error("pattern is too expensive for a string of " .. #s .. " bytes: anchor it with ^ or use "
      .. "fewer of * + - ?", 3)
  end
  charge(steps_most)
end

------------------------------------------------------------------------------------------- strings
local function text(v, i, name)
  if type(v) == "string" then return v end
  if type(v) == "number" then return tostring(v) end
  error("bad argument #" .. i .. " to '" .. name .. "' (string expected, got " .. type(v) .. ")", 3)
end

local S = { char = char, len = string_lib.len, sub = sub }

function S.find(s, p, init, plain)
  s, p = text(s, 1, "find"), text(p, 2, "find")
  if plain or not find(p, "[%^%$%*%+%?%.%(%[%%%-]") then
    -- Compares the whole of p at every position in the worst case.
    local most = #s * (4 + #p / 16)
    if most > PATTERN_STEPS_MAX then error("string to find is too long for this subject", 2) end
    charge(most)
    return find(s, p, init, true)
  end
  admit(s, p, true)
  return find(s, p, init)
end

function S.match(s, p, init)
  s, p = text(s, 1, "match"), text(p, 2, "match")
  admit(s, p, true)
  return match(s, p, init)
end

function S.gmatch(s, p, init)
  s, p = text(s, 1, "gmatch"), text(p, 2, "gmatch")
  admit(s, p, false)
  return gmatch(s, p, init)
end

function S.gsub(s, p, repl, n)
  s, p = text(s, 1, "gsub"), text(p, 2, "gsub")
  admit(s, p, true)
  charge(#s)
  need_room()
  return gsub(s, p, repl, n)
end

function S.rep(s, n, sep)
  s = text(s, 1, "rep")
  sep = sep == nil and "" or text(sep, 3, "rep")
  local times = number_type(n) == "integer" and n or tonumber(n)
  if times == nil then error("bad argument #2 to 'rep' (number expected)", 2) end
  local size = #s + #sep
  if size == 0 or times < 1 then return "" end
  if not (size * (times + 0.0) <= STRING_BYTES_MAX) then error("resulting string too large", 2) end
  return rep(s, times, sep)
end

function S.format(...)
  need_room()
  local out = format(...)
  charge(#out)
  return out
end

function S.byte(s, i, j)
  s = text(s, 1, "byte")
  if j ~= nil then charge(#s * 4) end
  return byte(s, i, j)
end

for _, name in next, { "lower", "upper", "reverse" } do
  local f = string_lib[name]
  S[name] = function(s)
    s = text(s, 1, name)
    charge(#s)
    return f(s)
  end
end

-------------------------------------------------------------------------------------------- tables
-- The C functions of the table library honour metamethods, which may be C functions that answer
-- for ever. They get tables without a metatable only.
local function plain(t, name)
  if type(t) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(t) .. ")", 3)
  end
  if getmetatable(t) ~= nil then error("'" .. name .. "' takes no table with a metatable", 3) end
  local n = rawlen(t)
  charge(n * 8)
  return n
end

-- Returns how many elements lie between two indexes, which C also takes as floats and numerals.
local function span(i, j)
  i, j = tonumber(i), tonumber(j)
  if not (i and j and j >= i) then return 0 end
  return j + 0.0 - i + 1
end

local function less(a, b) return a < b end

local T = { pack = table_lib.pack }

function T.insert(t, ...)
  plain(t, "insert")
  return insert(t, ...)
end

function T.remove(t, ...)
  plain(t, "remove")
  return remove(t, ...)
end

function T.concat(t, sep, i, j)
  plain(t, "concat")
  need_room()
  local out = concat(t, sep, i, j)
  charge(#out)
  return out
end

function T.unpack(t, i, j)
  local n = plain(t, "unpack")
  charge(span(i or 1, j or n) * 8)
  return unpack(t, i, j)
end

-- Without a comparison in Lua, one call could compare long strings for seconds.
function T.sort(t, compare)
  plain(t, "sort")
  return sort(t, compare == nil and less or compare)
end

function T.move(a, f, e, t, b)
  plain(a, "move")
  if b ~= nil then plain(b, "move") end
  local n = span(f, e)
  if n > 65536 then error("too many elements to move", 2) end
  charge(n * 16)
  return move(a, f, e, t, b)
end

-------------------------------------------------------------------------- what a script can reach
local function copy(lib)
  local out = {}
  for k, v in next, lib do out[k] = v end
  return out
end

local env = {
  _VERSION = _VERSION, assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs,
  rawequal = rawequal, rawget = rawget, rawlen = rawlen, rawset = rawset, select = select,
  tostring = tostring, type = type,
  math = copy(math_lib), string = S, table = T, utf8 = copy(utf8_lib),
}
env._G = env
env.math.randomseed = nil

for _, name in next, { "codepoint", "len", "offset" } do
  local f = utf8_lib[name]
  env.utf8[name] = function(s, ...)
    s = text(s, 1, name)
    charge(#s * 4)
    return f(s, ...)
  end
end

function env.utf8.char(...)
  need_room()
  return utf8_lib.char(...)
end

function env.tonumber(v, ...)
  if type(v) == "string" then charge(#v * 4) end
  return tonumber(v, ...)
end

local function after_pcall(ok, e, ...)
  if not ok then reraise(e) end
  return ok, e, ...
end

function env.pcall(f, ...) return after_pcall(pcall(f, ...)) end

local METAMETHODS = {}
for name in gmatch("index newindex call tostring name len eq lt le concat unm close pairs add sub "
  .. "mul div mod pow idiv band bor bxor shl shr bnot metatable", "%w+") do
  METAMETHODS["__" .. name] = true
end

-- The table gets a copy: finalizers run with no hook and weak tables make collections quadratic,
-- and either could be added to the original later.
function env.setmetatable(t, mt)
  if type(t) ~= "table" then
    error("bad argument #1 to 'setmetatable' (table expected, got " .. type(t) .. ")", 2)
  end
  if type(mt) ~= "table" then
    error("bad argument #2 to 'setmetatable' (table expected, got " .. type(mt) .. ")", 2)
  end
  local own = { __metatable = mt }
  for k, v in next, mt do
    if METAMETHODS[k] then
      own[k] = v
    elseif k == "__gc" or k == "__mode" then
      error(k .. " is not allowed in a hook", 2)
    end
  end
  if getmetatable(t) ~= nil then error("the table already has a metatable", 2) end
  return setmetatable(t, own)
end

function env.getmetatable(v)
  if type(v) == "table" then return getmetatable(v) end
end

getmetatable("").__index = S
return env
