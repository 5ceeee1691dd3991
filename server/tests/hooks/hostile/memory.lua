-- SPDX-License-Identifier: AGPL-3.0-only
-- Hooks that try to use up memory, or to make the collector work without end. See loops.lua for the
-- form; test_hostile.py adds those that sit exactly at the allocator's limit.

--@ tables | memory limit | time limit
local t = {}
for i = 1, 1e9 do t[i] = {} end

--@ strings in a global | memory limit | time limit
G = {}
for i = 1, 1e9 do G[i] = "s" .. i end

--@ strings in a global, caught | memory limit | time limit
G = {}
pcall(function() for i = 1, 1e9 do G[i] = "s" .. i end end)
pcall(function() while true do G = { G } end end)
return { fairness_key = "x" }

--@ thrash after a caught error | memory limit | time limit
local t = {}
for i = 1, 1e9 do
  local ok = pcall(function() t[#t + 1] = {} end)
  if not ok then break end
end
while true do local x = {} end

--@ thrash after giving two tables back | memory limit | time limit
local t = {}
pcall(function() for i = 1, 1e9 do t[i] = {} end end)
t[#t] = nil
t[#t] = nil
while true do local x = {} end

--@ closures | memory limit | time limit
local t = {}
for i = 1, 1e9 do t[i] = function() return i end end

--@ linked list | memory limit | time limit
local t
while true do t = { t } end

--@ sparse keys | memory limit | time limit
local t = {}
for i = 1, 1e9 do t[i * 65536] = i end

--@ doubling a string | memory limit
local s = "x"
while true do s = s .. s end

--@ doubling a string, caught | memory limit
local s = "x"
while true do pcall(function() s = s .. s end) end

--@ rep | too large
return { fairness_key = string.rep("x", 1 << 40) }

--@ rep, in steps | too large | memory limit
local s = "x"
while true do s = s:rep(16) end

--@ rep with a separator | too large
return { fairness_key = string.rep("", 1 << 40, "xxxxxxxx") }

--@ gsub that multiplies | memory limit
local s, r = ("a"):rep(10000), ("%0"):rep(5000)
return { fairness_key = s:gsub("a", r) }

--@ format that multiplies | memory limit
local s = ("a"):rep(1000):rep(200)
return { fairness_key = string.format(("%s"):rep(50), s, s, s, s, s, s, s, s, s, s) }

--@ concat that multiplies | memory limit
local s, t = ("a"):rep(1000):rep(100), {}
for i = 1, 1000 do t[i] = s end
return { fairness_key = table.concat(t, s) }

--@ deep stack | memory limit | stack overflow
local function f(...) return 1, f(1, ...) end
f()

--@ wide stack | too many results | memory limit | stack overflow
return { select("#", table.unpack({}, 1, 1e6)) }

--@ all bytes of a string | too long | memory limit | stack overflow
local s = ("a"):rep(1000):rep(200)
return { string.byte(s, 1, -1) }

--@ all code points of a string | too long | memory limit | stack overflow
local s = ("a"):rep(1000):rep(200)
return { utf8.codepoint(s, 1, -1) }

--@ weak keys | __mode
setmetatable({}, { __mode = "k" })

--@ weak keys added later | answer
local mt = {}
local t, keys = setmetatable({}, mt), {}
mt.__mode = "k"
for i = 1, 2000 do keys[i] = {} end
for i = 1, 1999 do t[keys[i]] = keys[i + 1] end
local first = keys[1]
keys = nil
for i = 1, 3000 do local x = {} end
if not t[first] then return { fairness_key = "weak" } end

--@ slow leak | answer | memory limit
leak = leak or {}
for i = 1, 500 do leak[#leak + 1] = {} end

--@ leak close to the limit, then garbage | answer | memory limit | time limit
leak = leak or {}
if #leak < 9000 then for i = 1, 3000 do leak[#leak + 1] = {} end return end
for i = 1, 100000 do local x = { i } end

--@ table that is rehashed for each new key | time limit | memory limit
local t = {}
for i = 1, 8192 do t["k" .. i] = i end
local i = 8192
while true do
  t["k" .. (i - 8191)] = nil
  i = i + 1
  t["k" .. i] = i
end

--@ new keys of great length | time limit | memory limit
local s, t = ("a"):rep(1000):rep(200), {}
while true do t[s .. #t] = nil end

--@ bomb while loading | memory limit | time limit
function on_enqueue() end
G = {}
for i = 1, 1e9 do G[i] = {} end
