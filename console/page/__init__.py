"""The live page for ops: server-rendered, no build step, no CDN."""
