-- Release what waits behind a reason, as far as it has capacity now. A worker that knows when a
-- provider may be called again does this at that moment; the sweep does it a little later.
release_behind(R.reason, AT_ONCE)
return RELEASED
