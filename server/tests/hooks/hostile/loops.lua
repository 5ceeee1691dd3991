-- SPDX-License-Identifier: AGPL-3.0-only
-- Hooks that try never to end. "--@ name | end | end" starts an attack: the body of an on_enqueue
-- function, or a whole script if it defines one. Every call must end in one of the ways named: a
-- part of the error's text, or "answer".

--@ while | time limit
while true do end

--@ repeat | time limit
repeat until false

--@ goto | time limit
::a:: goto a

--@ for | time limit
for i = 1, 1 << 62 do end

--@ for over floats | time limit
for i = 1, math.huge do end

--@ endless recursion in tail calls | time limit
local function f() return f() end
f()

--@ caught | time limit
while true do pcall(function() while true do end end) end

--@ caught three times | time limit
pcall(function() pcall(function() pcall(function() while true do end end) end) end)
return { fairness_key = "escaped" }

--@ caught, then a short answer | time limit
pcall(function() while true do end end)
return { fairness_key = "escaped" }

--@ pcall of pcall | time limit
while true do pcall(pcall, pcall, pcall, error) end

--@ pcall of error | time limit
for i = 1, 1e9 do pcall(error) end

--@ pcall recursion | answer
local function f(n) return pcall(f, n + 1) end
f(0)

--@ coroutine | nil value
coroutine.wrap(function() while true do end end)()

--@ xpcall | nil value
xpcall(function() while true do end end, function() while true do end end)

--@ close handler | time limit
local x <close> = setmetatable({}, { __close = function() while true do end end })

--@ many close handlers | time limit
local mt = { __close = function() while true do end end }
local function f(n)
  local x <close> = setmetatable({}, mt)
  if n > 0 then f(n - 1) end
end
f(150)

--@ thousands of close handlers | time limit | memory limit | stack overflow
local t = setmetatable({}, { __close = function() while true do end end })
local function f(n)
  local x <close> = t
  if n > 0 then f(n - 1) end
end
f(5000)

--@ close handlers that catch | time limit | memory limit | stack overflow
local t = setmetatable({}, { __close = function() pcall(function() while true do end end) end })
local function f(n)
  local x <close> = t
  if n > 0 then f(n - 1) end
end
f(150)

--@ close handlers that call C | time limit | memory limit | stack overflow
local s = ("a"):rep(1000):rep(200)
local t = setmetatable({}, { __close = function() while true do s:upper() end end })
local function f(n)
  local x <close> = t
  if n > 0 then f(n - 1) end
end
f(150)

--@ finalizer | __gc
setmetatable({}, { __gc = function() while true do end end })

--@ finalizer added later | answer
local mt = {}
local t = setmetatable({}, mt)
mt.__gc = function() while true do end end
t = nil
for i = 1, 3000 do local x = {} end

--@ finalizer added and set again | __gc
local mt = {}
local t = setmetatable({}, mt)
mt.__gc = function() while true do end end
setmetatable(t, mt)

--@ finalizer through a metatable of the metatable | answer
local mt = setmetatable({}, { __index = { __gc = function() while true do end end } })
setmetatable({}, mt)
for i = 1, 3000 do local x = {} end

--@ ipairs for ever | time limit
for _ in ipairs(setmetatable({}, { __index = rawlen and function() return 1 end })) do end

--@ pairs for ever | time limit
for _ in pairs(setmetatable({}, { __pairs = function() return type, 1 end })) do end

--@ sort with a liar | time limit
local t = {}
for i = 1, 500 do t[i] = i end
while true do pcall(table.sort, t, function() return true end) end

--@ equality that asks itself | stack overflow
local mt = {}
mt.__eq = function(a, b) return a == b end
return setmetatable({}, mt) == setmetatable({}, mt)

--@ concatenation that asks itself | stack overflow
local mt = {}
mt.__concat = function(a, b) return a .. b end
return setmetatable({}, mt) .. ""

--@ tostring that asks itself | stack overflow
local mt = {}
mt.__tostring = function(t) return tostring(t) end
return tostring(setmetatable({}, mt))

--@ index that asks itself | stack overflow
local t = setmetatable({}, { __index = function(t, k) return t[k] end })
return t.x

--@ index chain that bites its tail | loop
local t = {}
local u = setmetatable({}, { __index = t })
setmetatable(t, { __index = u })
return t.x

--@ recursion | stack overflow | memory limit
local function f() return 1 + f() end
f()

--@ recursion through C | stack overflow
local function f() return (string.gsub("a", "a", f)) end
f()

--@ loop in an environment's index | time limit | already has
setmetatable(_G, { __index = function() while true do end end })
return { fairness_key = unknown }

--@ loop in an environment's newindex | time limit | already has
setmetatable(_G, { __newindex = function() while true do end end })
unknown = 1

--@ loop while loading | time limit
function on_enqueue() end
while true do end

--@ caught loop while loading | time limit
function on_enqueue() end
while true do pcall(function() while true do end end) end
