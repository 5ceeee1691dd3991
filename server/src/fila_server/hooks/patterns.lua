-- SPDX-License-Identifier: AGPL-3.0-only
-- How long Lua's pattern matcher can take, without running it.
--
-- The matcher backtracks inside C, where no hook can stop it. The bound computed here is a
-- polynomial in N = subject length + 1: a list of coefficients from N^0 up, built from the
-- pattern's last item to its first. Limits are not its business.
local byte, char, sub, find, gsub = string.byte, string.char, string.sub, string.find, string.gsub
local concat, error = table.concat, error

local SINGLE, OPTIONAL, REPEATED, LINEAR, FIXED = 1, 2, 3, 4, 5

local EVERY_BYTE = {}
for i = 0, 255 do EVERY_BYTE[i + 1] = char(i) end
EVERY_BYTE = concat(EVERY_BYTE)

-- The cost of trying once at every length up to N; the sum of m^k for m <= N is at most
-- N^(k+1)/(k+1) + N^k.
local function at_every_length(poly)
  local out = { 0 }
  for i = 1, #poly do
    out[i] = out[i] + poly[i]
    out[i + 1] = poly[i] / i
  end
  return out
end

local function add(poly, degree, amount)
  poly[degree + 1] = (poly[degree + 1] or 0) + amount
end

-- True if no byte belongs to both classes.
local function disjoint(a, b)
  local without_a = gsub(EVERY_BYTE, a, "")
  local _, left = gsub(without_a, b, "")
  local _, all = gsub(EVERY_BYTE, b, "")
  return left == all
end

-- Reads the class of one byte at i as the matcher does. Returns where it ends and a pattern for it.
local function read_class(p, i)
  local c = byte(p, i)
  if c == 37 then -- %x
    if i == #p then error("malformed pattern (ends with '%')", 0) end
    return i + 2, sub(p, i, i + 1)
  elseif c == 91 then -- [set]
    local j = i + 1
    if byte(p, j) == 94 then j = j + 1 end
    repeat
      if j > #p then error("malformed pattern (missing ']')", 0) end
      if byte(p, j) == 37 then j = j + 1 end
      j = j + 1
    until byte(p, j) == 93
    return j + 1, sub(p, i, j)
  elseif c == 46 then -- .
    return i + 1, "."
  end
  local literal = sub(p, i, i)
  return i + 1, find(literal, "%w") and literal or "%" .. literal
end

-- Reads one item at i. Returns where the next one starts, its kind, whether it can fail, and its
-- class, if it has one.
local function read_item(p, i)
  local c, d = byte(p, i), byte(p, i + 1)
  if c == 40 or c == 41 then return i + 1, FIXED, false end -- ( )
  if c == 36 and i == #p then return i + 1, FIXED, true end -- $
  if c == 37 and d == 98 then return i + 4, LINEAR, true end -- %bxy
  if c == 37 and d == 102 then -- %f[set]
    if byte(p, i + 2) ~= 91 then error("malformed pattern (missing '[' after '%f')", 0) end
    return read_class(p, i + 2), FIXED, true
  end
  if c == 37 and d and d >= 48 and d <= 57 then return i + 2, LINEAR, true end -- %1
  local after, class = read_class(p, i)
  local suffix = byte(p, after)
  if suffix == 63 then return after + 1, OPTIONAL, false, class end -- ?
  if suffix == 42 or suffix == 45 then return after + 1, REPEATED, false, class end -- * -
  if suffix == 43 then return after + 1, REPEATED, true, class end -- +
  return after, SINGLE, true, class
end

-- Returns the cost of one attempt with an item put before those that `poly` stands for.
-- `guard` is the class that the byte after the item must have, or nil.
local function with_item(poly, kind, class, rest_can_fail, guard, guard_weight)
  local weight = class and 1 + #class or 2 -- a set is searched byte by byte
  if kind == LINEAR then
    add(poly, 1, 1)
  elseif kind == SINGLE or kind == FIXED then
    add(poly, 0, weight)
  elseif not rest_can_fail then -- nothing after the item can send the matcher back to it
    add(poly, kind == REPEATED and 1 or 0, weight)
  elseif guard and disjoint(class, guard) then -- sent back, the matcher fails at once
    add(poly, kind == REPEATED and 1 or 0, weight + guard_weight)
  elseif kind == OPTIONAL then
    for i = 1, #poly do poly[i] = 2 * poly[i] end
    add(poly, 0, weight)
  else
    poly = at_every_length(poly)
    add(poly, 1, weight)
  end
  return poly
end

-- Returns the cost of one attempt, and of attempts from every position of the subject. Raises an
-- error that says why if the matcher could not read the pattern.
return function(p)
  local kinds, can_fail, classes, count = {}, {}, {}, 0
  local i = byte(p, 1) == 94 and 2 or 1
  while i <= #p do
    count = count + 1
    i, kinds[count], can_fail[count], classes[count] = read_item(p, i)
  end
  local poly, rest_can_fail, guard, guard_weight = { 1 }, false, nil, 0
  -- True if an attempt that gets beyond the leading single bytes cannot fail any more.
  local sure = true
  for k = count, 1, -1 do
    local kind, class = kinds[k], classes[k]
    if kind == LINEAR or (kind ~= SINGLE and kind ~= FIXED and rest_can_fail) then sure = false end
    poly = with_item(poly, kind, class, rest_can_fail, guard, guard_weight)
    rest_can_fail = rest_can_fail or can_fail[k]
    if class then
      guard, guard_weight = can_fail[k] and class or nil, 3 + #class
    elseif can_fail[k] then
      guard = nil
    else
      guard_weight = guard_weight + 2 -- a capture is opened or closed before the guard is seen
    end
  end
  if not sure then return poly, at_every_length(poly) end
  -- What an attempt reads it also consumes, so the attempts together read the subject once.
  local sum = 0
  for k = 1, #poly do sum = sum + poly[k] end
  return poly, { 0, sum }
end
