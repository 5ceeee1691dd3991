-- SPDX-License-Identifier: AGPL-3.0-only
-- Hooks that try to reach what they must not have, or to change what we rely on. See loops.lua.

--@ nothing dangerous is there | answer
for _, name in ipairs { "collectgarbage", "coroutine", "debug", "dofile", "io", "load", "loadfile",
  "loadstring", "os", "package", "print", "python", "require", "unpack", "warn", "xpcall" } do
  if _G[name] ~= nil then error("found " .. name) end
end
for _, name in ipairs { "dump", "pack", "packsize", "unpack" } do
  if string[name] ~= nil then error("found string." .. name) end
end
if math.randomseed ~= nil then error("found math.randomseed") end

--@ only names we know are there | answer
local known = " _G _VERSION assert error fila getmetatable ipairs math next on_enqueue pairs pcall "
  .. "rawequal rawget rawlen rawset select setmetatable string table tonumber tostring type utf8 "
for name, value in pairs(_G) do
  if not known:find(" " .. name .. " ", 1, true) then error("found " .. name) end
  if type(value) == "userdata" or type(value) == "thread" then error("found a " .. type(value)) end
end

--@ metatable of strings | answer
if getmetatable("") ~= nil then error("found it") end

--@ metatable of strings through index | nil value
getmetatable("").__index = nil

--@ metatable of functions and numbers | answer
if getmetatable(print or type) ~= nil or getmetatable(1) ~= nil then error("found it") end

--@ metatable of our own tables | index a string value
getmetatable(msg.headers).__index = nil

--@ Lua's environment upvalue | answer
if _ENV ~= _G then error("found another environment") end

--@ error in the lookup of globals | boom | already has
setmetatable(_G, { __index = function() error("boom") end })
return { fairness_key = tostring(unknown) }

--@ string functions replaced | nil value
string.find, string.format, string.sub = nil, nil, nil
return { fairness_key = ("x"):sub(1, 1) }

--@ base functions replaced | answer
type, next, rawget, pcall, error, tostring = nil, nil, nil, nil, nil, nil
getmetatable, setmetatable, rawequal, tonumber = nil, nil, nil, nil
math.type, table.unpack, string.sub = nil, nil, nil
return { fairness_key = "a", throttle_keys = { "b", 7 } }

--@ base functions replaced by loops | answer
local function loop() while true do end end
type, next, rawget, pcall, error, tostring, tonumber = loop, loop, loop, loop, loop, loop, loop
getmetatable, setmetatable, string.sub, table.unpack = loop, loop, loop, loop
return { fairness_key = "a", throttle_keys = { "b", 7 } }

--@ the hook removed | answer
on_enqueue = nil

--@ fila replaced | answer | nil value
fila.get = nil
fila = nil

--@ headers through rawset | read-only
rawset(msg.headers, "x", "y")

--@ headers through table.insert | metatable
table.insert(msg.headers, "y")

--@ headers through setmetatable | metatable
setmetatable(msg.headers, {})

--@ headers through pairs | read-only
local _, t = pairs(msg.headers)
t.x = "y"

--@ headers through next | read-only
local next, t = pairs(msg.headers)
rawset(t, "x", "y")

--@ error object | a table value
error({ 1 })

--@ error object with tostring | a table value
error(setmetatable({}, { __tostring = function() while true do end end }))

--@ error without object | a nil value
error(nil)

--@ error that is no text |
error("\255\254")

--@ error of great length | xxxx
error(("x"):rep(1000):rep(200))

--@ error that pretends to be the limit | time limit
error("time limit exceeded", 0)

--@ error that pretends to be out of memory | memory limit
pcall(error, "not enough memory", 0)

--@ assertion with an object | a table value
assert(false, setmetatable({}, {}))

--@ fila.get of an object | string expected
fila.get(setmetatable({}, { __tostring = function() return "x" end }))

--@ byte code | nil value
load("\27Lua")
