-- Read the items that have a slot.
allow_when_full()
return live_items()
