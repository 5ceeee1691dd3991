-- SPDX-License-Identifier: AGPL-3.0-only
-- Hooks that try to be long inside one C function, where no instruction is counted. See loops.lua.

--@ optional items | too expensive
return { string.find(("a"):rep(28), ("a?"):rep(28) .. ("a"):rep(28)) }

--@ lazy repetitions | too expensive
return { string.find(("a"):rep(1500), ".-.-.-.-b") }

--@ greedy repetitions | too expensive
return { string.find(("a"):rep(1500), ".*.*.*.*b") }

--@ lazy repetitions as a method | too expensive
return { (("a"):rep(1500)):match(".-.-.-.-b") }

--@ lazy repetitions in gsub | too expensive
return { (("a"):rep(1500)):gsub(".-.-.-.-b", "x") }

--@ lazy repetitions in gmatch | too expensive
for x in (("a"):rep(1500)):gmatch(".-.-.-.-b") do end

--@ repetitions hidden in captures | too expensive
return { (("a"):rep(1500)):match("(((.-)))(((.-)))(((.-)))b") }

--@ repetitions of sets that look like brackets | too expensive
return { (("]"):rep(1500)):match("[]]*[]]*[]]*[^]]") }

--@ repetitions behind an escaped bracket | too expensive
return { (("a"):rep(1500)):match("[%]a]*[%]a]*[%]a]*b") }

--@ back references | too expensive
return { (("a"):rep(3000)):match("(.*)(.*)%1%2b") }

--@ frontiers | too expensive
return { (("a"):rep(3000)):match(".-%f[%W].-%f[%W].-b") }

--@ balanced pairs | too expensive
return { (("("):rep(200000)):match("%b()") }

--@ one long pattern | longer than
return { ("a"):match(("a?"):rep(2000)) }

--@ pattern that is not finished | malformed
return { (("a"):rep(1500)):match(".-.-.-.-b[") }

--@ pattern that is not finished, caught | answer
pcall(string.match, ("a"):rep(1500), ".-.-.-.-b%")

--@ caught refusals | time limit
while true do pcall(string.find, ("a"):rep(1500), ".-.-.-.-b") end

--@ admitted patterns in a loop | time limit
local s = ("a"):rep(400)
while true do s:find("a*b") end

--@ new patterns in a loop | time limit
local i = 0
while true do i = i + 1; ("abc"):find("[^" .. i .. "]*x[a-f]*y[^z]-%d") end

--@ long string to find | too long
local s = ("a"):rep(1000)
return { s:rep(200):find(s:rep(60) .. "b", 1, true) }

--@ long string to find, no magic | too long
local s = ("a"):rep(1000)
return { s:rep(200):find(s:rep(60) .. "b") }

--@ strings to find in a loop | time limit
local s = ("a"):rep(1000):rep(50)
while true do s:find("aaaaaaaaaab", 1, true) end

--@ gsub with C functions in a loop | time limit | memory limit
local s = ("abcd"):rep(5000)
while true do s:gsub("..", tostring) end

--@ empty rep | answer
return { fairness_key = tostring(#string.rep("", 1 << 60)) }

--@ empty rep with empty separator | answer
return { fairness_key = tostring(#string.rep("", 1 << 60, "")) }

--@ negative rep | answer
return { fairness_key = tostring(#string.rep("x", -5)) }

--@ rep of no number | representation | too large
return { fairness_key = string.rep("x", 0 / 0) }

--@ rep of infinity | too large
return { fairness_key = string.rep("x", math.huge) }

--@ upper in a loop | time limit
local s = ("a"):rep(1000):rep(200)
while true do local x = s:upper() end

--@ reverse in a loop | time limit
local s = ("a"):rep(1000):rep(200)
while true do local x = s:reverse() end

--@ concatenation in a loop | time limit | memory limit
local s = ("a"):rep(1000):rep(200)
while true do local x = s .. s end

--@ format in a loop | time limit | memory limit
local s = ("a"):rep(1000):rep(200)
while true do local x = string.format("%s%s", s, s) end

--@ quoting in a loop | time limit | memory limit
local s = ("\0"):rep(1000):rep(100)
while true do local x = string.format("%q", s) end

--@ long numbers in a loop | time limit
while true do local x = string.format("%99.99f", 1e308) end

--@ equality of long strings | time limit
local s = ("a"):rep(1000):rep(200)
local a, b = s .. "x", s .. "x"
while a == b do end

--@ order of long strings | time limit
local s = ("a"):rep(1000):rep(200)
local a, b = s .. "x", s .. "y"
while a < b do end

--@ long numerals | time limit
local s = ("1"):rep(1000):rep(200)
while true do tonumber(s) tonumber(s, 2) end

--@ arithmetic on long numerals | time limit | attempt to
local s = ("0"):rep(1000):rep(200) .. "1"
while true do local x = s + 1 end

--@ utf8.len in a loop | time limit
local s = ("a"):rep(1000):rep(200)
while true do utf8.len(s) end

--@ utf8.offset in a loop | time limit
local s = ("a"):rep(1000):rep(200)
while true do utf8.offset(s, 199999) end

--@ bytes in a loop | time limit | memory limit
local s = ("a"):rep(10000)
while true do string.byte(s, 1, -1) end

--@ move of everything | too many
table.move({}, 1, 1 << 40, 2)

--@ move of more than everything | too many
table.move({}, math.mininteger, math.maxinteger, 2)

--@ move between floats | too many
table.move({}, 1.0, 2.0 ^ 40, 2)

--@ move between numerals | too many
table.move({}, "1", "1099511627776", 2)

--@ unpack between numerals | too many | memory limit | stack overflow
table.unpack({}, "1", "1e6")

--@ rep of a numeral | too large
("x"):rep("1e12")

--@ move in a loop | time limit
local t = {}
while true do table.move(t, 1, 65536, 2) end

--@ move with a metatable that answers for ever | metatable
table.move(setmetatable({}, { __index = rawlen }), 1, 60000, 1, {})

--@ move into a table with a metatable | metatable
table.move({}, 1, 60000, 1, setmetatable({}, { __newindex = rawlen }))

--@ concat of everything | invalid value
table.concat({}, "", 1, 1 << 40)

--@ remove with a length | metatable
table.remove(setmetatable({}, { __len = function() return 1 << 40 end }), 1)

--@ insert with a length | metatable
table.insert(setmetatable({}, { __len = function() return 1 << 40 end }), 1, 1)

--@ sort with a length | metatable
table.sort(setmetatable({}, { __len = function() return 2 ^ 30 | 0 end, __index = rawlen }))

--@ unpack with a length | metatable
table.unpack(setmetatable({}, { __len = function() return 1 << 40 end }))

--@ sort in a loop | time limit | memory limit
local t = {}
for i = 1, 10000 do t[i] = -i end
while true do
  table.sort(t)
  table.sort(t, function(a, b) return a > b end)
end

--@ sort of one long string | time limit
local s, t = ("a"):rep(1000):rep(200), {}
for i = 1, 10000 do t[i] = s end
table.sort(t)

--@ insert at the front | time limit | memory limit
local t = {}
for i = 1, 20000 do t[i] = i end
while true do table.insert(t, 1, 1) table.remove(t, 1) end

--@ unpack in a loop | time limit | memory limit
local t = {}
for i = 1, 15000 do t[i] = i end
while true do select("#", table.unpack(t)) end

--@ long argument lists | time limit | memory limit
local t = {}
for i = 1, 15000 do t[i] = i end
local function f(...) while true do select(15000, ...) end end
f(table.unpack(t))

--@ next over an emptied table | time limit | memory limit
local t = {}
for i = 1, 8000 do t["k" .. i] = i end
for i = 1, 8000 do t["k" .. i] = nil end
while true do next(t) end

--@ select from the end | answer
return { select(-1, 1, 2) }
