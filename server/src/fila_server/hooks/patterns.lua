-- SPDX-License-Identifier: AGPL-3.0-only
-- How long Lua's pattern matcher can take, without running it.
--
-- The matcher backtracks inside C, where no hook can stop it. It goes through a pattern's items
-- from left to right and, when the rest fails, back to the last item that has another way to match.
-- So the work is bounded from the last item to the first by two amounts:
--   fail   the most that an attempt costs which fails in the end: a polynomial in N = bytes + 1, as
--          a list of coefficients from N^0 up. Going back repeats this, and only this.
--   done   what the one attempt that succeeds costs on top, in the same form, with N = the bytes
--          that it takes + 1.
-- One unit is one step of the matcher. Limits are not its business.
local byte, char, sub, find, gsub = string.byte, string.char, string.sub, string.find, string.gsub
local concat, error = table.concat, error

-- What an item does: take one byte of a class, perhaps one, any number of them; check something at
-- a cost that is linear in the subject; check one position; begin or end a capture.
local SINGLE, OPTIONAL, REPEATED, LINEAR, POSITION, CAPTURE = 1, 2, 3, 4, 5, 6

local EVERY_BYTE = {}
for i = 0, 255 do EVERY_BYTE[i + 1] = char(i) end
EVERY_BYTE = concat(EVERY_BYTE)

local function add(poly, degree, amount)
  poly[degree + 1] = (poly[degree + 1] or 0) + amount
end

local function add_all(poly, other)
  for i = 1, #other do add(poly, i - 1, other[i]) end
end

-- The cost of failing at every length up to N: the sum of m^k for m <= N is at most
-- N^(k+1)/(k+1) + N^k.
local function at_every_length(poly)
  local out = { 0 }
  for i = 1, #poly do
    out[i] = out[i] + poly[i]
    out[i + 1] = poly[i] / i
  end
  return out
end

-- True if no byte belongs to both classes.
local function disjoint(a, b)
  local without_a = gsub(EVERY_BYTE, a, "")
  local _, left = gsub(without_a, b, "")
  local _, all = gsub(EVERY_BYTE, b, "")
  return left == all
end

-- Reads a class of bytes at i as the matcher does. Returns where it ends and a pattern for it.
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

-- Reads one item at i. Returns where the next one starts, what it does, whether it can fail on its
-- own, and its class, if it has one.
local function read_item(p, i)
  local c, d = byte(p, i), byte(p, i + 1)
  if c == 40 or c == 41 then return i + 1, CAPTURE, false end -- ( )
  if c == 36 and i == #p then return i + 1, POSITION, true, "$" end
  if c == 37 and d == 98 then return i + 4, LINEAR, true end -- %bxy
  if c == 37 and d == 102 then -- %f[set]
    if byte(p, i + 2) ~= 91 then error("malformed pattern (missing '[' after '%f')", 0) end
    local after, class = read_class(p, i + 2)
    return after, POSITION, true, class
  end
  if c == 37 and d and d >= 48 and d <= 57 then return i + 2, LINEAR, true end -- %1
  local after, class = read_class(p, i)
  local suffix = byte(p, after)
  if suffix == 63 then return after + 1, OPTIONAL, false, class end -- ?
  if suffix == 42 or suffix == 45 then return after + 1, REPEATED, false, class end -- * -
  if suffix == 43 then return after + 1, REPEATED, true, class end -- +
  return after, SINGLE, true, class
end

local function read(p)
  local items = {}
  local i = byte(p, 1) == 94 and 2 or 1
  while i <= #p do
    local after, kind, can_fail, class = read_item(p, i)
    items[#items + 1] = { kind = kind, can_fail = can_fail, class = class }
    i = after
  end
  return items
end

-- A set is searched byte by byte.
local function steps_of(item) return 2 + #(item.class or "") end

-- Returns the cost of failing with an item put before a rest that can fail at cost `fail`.
-- `guard` is a class that the byte after the item must have, or nil.
local function before_rest(fail, item, guard, guard_steps)
  local kind, steps = item.kind, steps_of(item)
  if kind == LINEAR then
    add(fail, 1, 1)
  elseif kind == POSITION then
    add(fail, 0, 2 * steps)
  elseif kind == SINGLE or kind == CAPTURE then
    add(fail, 0, steps)
  elseif guard and disjoint(item.class, guard) then -- once sent back, the matcher fails at once
    add(fail, kind == REPEATED and 1 or 0, steps + guard_steps)
  elseif kind == OPTIONAL then
    for i = 1, #fail do fail[i] = 2 * fail[i] end
    add(fail, 0, steps)
  else
    fail = at_every_length(fail)
    add(fail, 1, steps)
  end
  return fail
end

-- Returns the cost of one attempt, and of attempts from every position of the subject. Raises an
-- error that says why if the matcher could not read the pattern.
return function(p)
  local fail, done, guard, guard_steps = { 0 }, { 1 }, nil, 0
  local rest_can_fail = false
  local fits_end = true -- all items so far match nothing at the end of the subject
  local items = read(p)
  for k = #items, 1, -1 do
    local item = items[k]
    local kind, class = item.kind, item.class
    if kind == REPEATED and class == "." and fits_end and rest_can_fail then
      -- It can always take everything, but may try the rest at every position before that.
      add_all(done, at_every_length(fail))
      rest_can_fail, fail = false, { 0 }
    end
    if rest_can_fail or kind == LINEAR or kind == POSITION then
      fail = before_rest(fail, item, guard, guard_steps)
    else
      local steps = steps_of(item)
      if item.can_fail then add(fail, 0, steps) end
      add(done, kind == REPEATED and 1 or 0, steps)
    end
    rest_can_fail = rest_can_fail or item.can_fail
    fits_end = fits_end and (not item.can_fail or class == "$" and kind == POSITION)
    if kind == CAPTURE then
      guard_steps = guard_steps + 2
    else
      guard = item.can_fail and kind ~= POSITION and class or nil
      guard_steps = 1 + steps_of(item)
    end
  end
  -- The attempts that succeed take each byte at most once: the longest bounds them all, except for
  -- what each costs at least, and what gsub then does with it.
  local scan = at_every_length(fail)
  add_all(scan, done)
  add(scan, 1, done[1] + 20)
  add_all(fail, done)
  return fail, scan
end
