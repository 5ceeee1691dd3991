-- SPDX-License-Identifier: AGPL-3.0-only
-- Hooks whose answer is the attack. See loops.lua.

--@ text | must return a table
return "x"

--@ function | must return a table
return function() while true do end end

--@ metatable that loops | without metatable
return setmetatable({}, { __index = function() while true do end end })

--@ key with tostring | must be a string
return { fairness_key = setmetatable({}, { __tostring = function() while true do end end }) }

--@ key of great length | 1 to 256 bytes
return { fairness_key = ("k"):rep(1000):rep(200) }

--@ empty key | 1 to 256 bytes
return { fairness_key = "" }

--@ key that is no text | UTF-8
return { fairness_key = "a\0b\255" }

--@ key that is a surrogate | UTF-8
return { fairness_key = "\xed\xa0\x80" }

--@ many throttle keys | more than 16
local t = {}
for i = 1, 1000 do t[i] = "k" .. i end
return { throttle_keys = t }

--@ endless throttle keys | metatable | answer
return { throttle_keys = setmetatable({}, { __index = function(_, i) return "k" .. i end,
  __len = function() return 1 << 40 end, __pairs = function() while true do end end }) }

--@ throttle keys by name | a list
return { throttle_keys = { provider = "stripe" } }

--@ throttle keys of everything | a list
return { throttle_keys = _G }

--@ throttle key of great length | 1 to 256 bytes
return { throttle_keys = { ("k"):rep(1000):rep(200) } }

--@ second throttle key of great length | 1 to 256 bytes
return { throttle_keys = { "a", ("k"):rep(257) } }

--@ throttle key that is no text | UTF-8
return { throttle_keys = { "\255" } }

--@ throttle key that is a table | must be a string
return { throttle_keys = { {} } }

--@ throttle keys in a table full of holes | answer
local t = {}
for i = 1, 15000 do t[i] = "k" end
for i = 1, 14999 do t[i] = nil end
return { throttle_keys = t }

--@ weight not a number | answer
return { weight = 0 / 0, throttle_cost = -0 / 0 }

--@ weight without end | answer
return { weight = math.huge, throttle_cost = -math.huge }

--@ weight beyond all integers | answer
return { weight = 1e300, throttle_cost = math.maxinteger }

--@ weight below zero | answer
return { weight = math.mininteger, throttle_cost = -1 }

--@ weight as text | answer
return { weight = "7" }

--@ weight as other text | must be a number
return { weight = "seven" }

--@ weight as text without end | must be a number
return { weight = ("1"):rep(1000):rep(200) }

--@ weight as a table | must be a number
return { weight = {} }

--@ answer that holds itself | must be a string
local t = {}
t.fairness_key = t
return t

--@ many answers | answer
return {}, {}, {}, "x", nil, {}
