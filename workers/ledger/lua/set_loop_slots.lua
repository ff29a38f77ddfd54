-- Set how many items of all loops run at once. Planning any loop gives free slots to all of them.
if given(R.slots) then
  redis.call('SET', P .. 'loops:slots', int(R.slots))
else
  redis.call('DEL', P .. 'loops:slots')
end
local loop = redis.call('SRANDMEMBER', P .. 'loops:active')
if loop then touch_loop(loop) end
return { 'set', table.concat(RELEASED, '\n') }
