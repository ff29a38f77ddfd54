"use strict";
// Live updates and actions. The page works without this script. Only the rows of the live list
// are drawn here; the server draws everything else.

const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- texts ------------------------------------------------------------------------------------

const MARKS = { queued: "○", running: "◔", verifying: "◑", waiting: "◷", settled: "●",
  succeeded: "✓", escalated: "▲", cancelled: "✕" };

function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1).replace(".0", "")} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** Show times in the reader's time zone and update ages. */
function showTimes(within = document) {
  for (const time of all("time[data-ago]", within)) {
    const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
    const text = `${duration(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
    time.title = new Date(time.dateTime).toLocaleString();
  }
  for (const time of all("time[data-clock], time[data-time]", within)) {
    const moment = new Date(time.dateTime);
    const today = moment.toDateString() === new Date().toDateString();
    const hours = moment.toLocaleTimeString([], { hour12: false });
    time.textContent = today || "time" in time.dataset ? hours : `${moment.toLocaleDateString("sv")} ${hours}`;
    time.title = moment.toLocaleString();
  }
}

// -- messages ---------------------------------------------------------------------------------

function notify(text, failed = false) {
  const notice = document.createElement("div");
  notice.className = failed ? "notice failed" : "notice done";
  const words = document.createElement("p");
  words.textContent = `${failed ? "✗" : "✓"} ${text}`;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "×";
  close.setAttribute("aria-label", "Dismiss");
  close.addEventListener("click", () => notice.remove());
  notice.append(words, close);
  one(failed ? "#errors" : "#confirmations").append(notice);
  if (!failed) setTimeout(() => notice.remove(), 8000);
}

// -- the API ----------------------------------------------------------------------------------

class Refusal extends Error {}

async function call(url, body, method = "POST") {
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers: { "Content-Type": "application/json", "X-CSRF-Token": one('meta[name="csrf-token"]').content },
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
      credentials: "same-origin",
    });
  } catch {
    throw new Refusal("The console does not respond. Is it running?");
  }
  const result = await answer.json().catch(() => ({}));
  if (answer.ok) return result;
  const error = result.error ?? {};
  const lines = [error.message ?? `The console responded with status ${answer.status}.`, ...(error.details ?? [])];
  throw new Refusal([...new Set(lines)].join("\n"));
}

/** Run an action with its buttons disabled. */
async function busy(buttons, action) {
  for (const button of buttons) { button.disabled = true; button.setAttribute("aria-busy", "true"); }
  try {
    return await action();
  } finally {
    for (const button of buttons) { button.disabled = false; button.removeAttribute("aria-busy"); }
  }
}

async function runAction(button) {
  if (button.dataset.confirm && !(await confirmAction(button.dataset.confirm, button.textContent))) return;
  await busy([button], async () => {
    try {
      const body = JSON.parse(button.dataset.body || "{}");
      const answer = await call(button.dataset.call, body, button.dataset.method);
      if (body.ids && answer.entries && !answer.entries.length) throw new Refusal("Not changed: it is no longer quarantined, or there is nothing left to send");
      if (button.dataset.then) return location.assign(button.dataset.then);
      notify(button.dataset.done);
      await refresh();
    } catch (error) {
      notify(error.message, true);
    }
  });
  const again = button.isConnected ? button : button.id && document.getElementById(button.id);
  if (again && document.activeElement === document.body) again.focus();
}

/** Ask before an action that cannot be undone. */
function confirmAction(question, yes) {
  const dialog = document.createElement("dialog");
  const words = document.createElement("p");
  words.textContent = question;
  const form = document.createElement("form");
  form.method = "dialog";
  const deeds = document.createElement("div");
  deeds.className = "deeds";
  for (const [value, text] of [["no", "Close"], ["yes", yes]]) {
    const button = document.createElement("button");
    button.value = value;
    button.textContent = text;
    if (value === "yes") button.className = "risky";
    deeds.append(button);
  }
  form.append(words, deeds);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    resolve(dialog.returnValue === "yes");
    dialog.remove();
  }));
}

/** Send a dialog's form as one call, without its empty fields. */
async function submit(form, url) {
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const problem = one(".problem", form);
  problem.textContent = "";
  await busy(all("button:not([value=no])", form), async () => {
    try {
      await call(url, Object.fromEntries(fields));
      form.closest("dialog").close();
      form.reset();
      notify(form.dataset.done);
      await refresh();
    } catch (error) {
      problem.textContent = error.message;
    }
  });
}

// -- a document in a form: YAML or JSON, which the server reads ------------------------------------

/** Send the document of a form to the API. ``options`` are added to it. */
async function sendDocument(form, options) {
  const document = await call("/loops/document", { text: form.elements.text.value });
  return call(form.dataset.url, { ...document, ...options });
}

async function submitDocument(form, how) {
  const problem = one(".problem", form), plan = one(".dry", form);
  problem.textContent = "";
  if (plan) plan.textContent = "";
  await busy(all("button:not([value=no])", form), async () => {
    try {
      const answer = await sendDocument(form, how === "check" ? { dry_run: true } : how === "start" ? { start: true } : {});
      if (how === "check") { plan.textContent = planText(answer); return; }
      if (form.dataset.goes) return location.assign(form.dataset.goes + encodeURIComponent(answer.id));
      form.closest("dialog").close();
      form.reset();
      notify(form.dataset.done);
      await refresh();
    } catch (error) {
      problem.textContent = error.message;
    }
  });
}

function planText(plan) {
  const first = (ids) => `${ids.slice(0, 12).join(", ")}${ids.length > 12 ? ` and ${ids.length - 12} more` : ""}`;
  return [`${plan.id}: ${plan.order.length} item${plan.order.length === 1 ? "" : "s"}, in this order: ${first(plan.order)}.`,
    `At once: ${first(plan.ready) || "none"}.`,
    plan.name_in_use ? "A loop of this name exists already." : "Nothing was created yet."].join("\n");
}

// -- a whole group: a dry run first, then its progress ------------------------------------------

function openGroup(button) {
  const dialog = one("#group-dialog"), form = one("form", dialog);
  form.reset();
  form.dataset.run = "";
  form.dataset.signature = button.dataset.group;
  form.dataset.tenant = button.dataset.groupTenant ?? "";
  form.dataset.title = button.dataset.groupTitle + (form.dataset.tenant && `, ${form.dataset.tenant} only`);
  form.elements.action.value = button.dataset.groupAction;
  one("[data-group-name]", dialog).textContent = form.dataset.title;
  one(".problem", form).textContent = "";
  one(".dry", form).textContent = "";
  one(".progress", form).hidden = true;
  showStep(form, "dry");
  dialog.showModal();
}

function showStep(form, step) {
  one("[data-dry]", form).hidden = step !== "dry";
  one("[data-go]", form).hidden = step !== "go";
  one("[data-stop]", form).hidden = step !== "run";
  for (const field of all("textarea, input, select", form)) field.disabled = step === "run";
  one("[value=no]", form).textContent = step === "run" ? "Close (continues)" : "Close";
  one("[data-prompt]", form).hidden = form.elements.action.value !== "requeue";
}

const requestBody = (form, dry) => ({
  signature: form.dataset.signature,
  ...(form.dataset.tenant ? { tenant: form.dataset.tenant } : {}),
  ...(form.elements.note.value ? { note: form.elements.note.value } : {}),
  ...(form.elements.action.value === "requeue" && form.elements.prompt.value ? { prompt: form.elements.prompt.value } : {}),
  dry_run: dry,
});

async function group(form, dry) {
  const problem = one(".problem", form), action = form.elements.action.value;
  const body = requestBody(form, dry);
  problem.textContent = "";
  await busy(all("[data-dry], [data-go]", form), async () => {
    try {
      const answer = await call(`/api/escalations/${action}`, body);
      if (dry) return showDryRun(form, answer, action);
      showStep(form, "run");
      await follow(form, answer, action);
    } catch (error) {
      problem.textContent = error.message;
      showStep(form, "dry");
    }
  });
  if (dry) one("[data-go]:not([hidden])", form)?.focus();  // a disabled button cannot take the focus
}

function showDryRun(form, answer, action) {
  const total = answer.total;
  const types = Object.entries(answer.task_types ?? {}).map(([name, n]) => `${name} ${n}`).join(", ");
  one(".dry", form).textContent = total
    ? `This would ${action} ${total} job${total === 1 ? "" : "s"}${types ? `: ${types}` : ""}. Nothing has changed yet.`
    : "No open escalations are left.";
  if (!total) return;
  const go = one("[data-go]", form);
  showStep(form, "go");
  go.textContent = `${action[0].toUpperCase()}${action.slice(1)} ${total}`;
}

/** Show the progress while the dialog is open for this action, and the result in any case. */
async function follow(form, answer, action) {
  const box = one(".progress", form), title = form.dataset.title;
  form.dataset.run = one("[data-stop]", form).dataset.stop = answer.id;
  const isCurrent = () => form.dataset.run === answer.id;
  let now = answer;
  for (;;) {
    if (isCurrent()) showProgress(box, now);
    if (now.state !== "running") break;
    await new Promise((resolve) => setTimeout(resolve, 400));
    now = await call(`/api/bulk/${now.id}`, null, "GET");
  }
  if (isCurrent()) form.closest("dialog").close();
  const others = [now.skipped && `${now.skipped} already ended`,
    now.failed && `${now.failed} failed: ${now.problems[0]?.why ?? ""}`,
    now.state === "stopped" && "stopped early"].filter(Boolean);
  notify([`${title}: ${action} done for ${now.done}`, ...others].join("; "), now.failed > 0);
  await refresh();
}

function showProgress(box, now) {
  const past = now.done + now.skipped + now.failed;
  box.hidden = false;
  one("progress", box).max = Math.max(1, now.total);
  one("progress", box).value = past;
  one("p", box).textContent = `${past} of ${now.total}${now.failed ? `, ${now.failed} failed` : ""}`;
}

// -- refreshing the figures ----------------------------------------------------------------------

const PATIENCE = 5000;  // milliseconds until the page says that its figures are old
const QUIET = 4000;  // milliseconds without events until it asks: a frozen ledger sends none
let running = null, again = false, due = null, last = 0, shown = new Date();

/** Load the page again without its frame. A call during a refresh causes one more after it. */
function refresh() {
  if (running) {
    again = true;
    return running;
  }
  running = (async () => {
    do {
      again = false;
      await fetchFragment();
    } while (again);
  })().finally(() => { running = null; });
  return running;
}

async function fetchFragment() {
  const part = one("#part");
  last = Date.now();
  // A frozen console or Redis does not refuse: the request only takes long.
  const late = setTimeout(() => showUnreachable(`No answer for ${PATIENCE / 1000} s`), PATIENCE);
  try {
    const answer = await fetch(location.href, {
      headers: { "X-Fragment": "1", Accept: "text/html" }, credentials: "same-origin" });
    if (answer.redirected) return location.reload();
    if (answer.ok) {
      swap(part, await answer.text());
      shown = new Date();
    }
    showUnreachable(answer.ok ? "" : answer.status === 503 ? "The ledger cannot be reached" : `The console responded with status ${answer.status}`);
  } catch {
    showUnreachable("The console does not respond");
  } finally {
    clearTimeout(late);
  }
}

/** Keep the old figures and show that they are old. */
function showUnreachable(why) {
  const sign = one("#away");
  if (why) setTimeout(refresh, 5000);
  document.body.classList.toggle("stale", Boolean(why));
  sign.hidden = !why;
  const text = why && `◌ ${why}. Showing data from ${shown.toLocaleTimeString([], { hour12: false })}; retrying.`;
  if (sign.textContent !== text) sign.textContent = text;
}

function swap(part, text) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const open = all("details[open]", part).map((each) => each.id);
  const scrolled = all("pre[id]", part).map((each) => [each.id, each.scrollTop]);
  const fresh = new DOMParser().parseFromString(text, "text/html").body;
  keepUnchanged(part, fresh);
  part.replaceChildren(...fresh.childNodes);
  for (const id of open) { const each = id && document.getElementById(id); if (each) each.open = true; }
  for (const [id, top] of scrolled) { const each = document.getElementById(id); if (each) each.scrollTop = top; }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  showTimes(part);
  showEnd();
}

/** Keep what looks as before, with its place, its tooltip and its focus. */
function keepUnchanged(part, fresh) {
  for (const old of all("[data-same]", part)) {
    const now = fresh.querySelector(`#${old.id}`);
    if (!now) continue;
    const at = [old.scrollLeft, old.scrollTop];
    if (now.isEqualNode(old)) now.replaceWith(old);
    queueMicrotask(() => one(`#${old.id}`)?.scrollTo(...at));
  }
}

/** Refresh soon, but no more often than the page allows. */
function scheduleRefresh() {
  const part = one("#part");
  if (due || !part || !("live" in part.dataset) || document.hidden) return;
  const every = Number(part.dataset.every ?? 1000);
  due = setTimeout(() => {
    due = null;
    if (one("[aria-busy=true]", part) || one("select:focus", part)) return scheduleRefresh();
    refresh();
  }, Math.max(150, every - (Date.now() - last)));
}

// -- the stream of events -------------------------------------------------------------------------

let source = null, wait = 1000, lastId = "", broken = false;

function stream(state, text) {
  const sign = one("#stream");
  if (!sign) return;
  sign.dataset.state = state;
  if (sign.textContent !== text) sign.textContent = text;
}

function listen() {
  const { job, after, tenant } = one("#part").dataset;
  const url = job ? `/api/jobs/${encodeURIComponent(job)}/events` : "/api/events";
  lastId ||= after ?? "";
  const chosen = new URLSearchParams({ ...(lastId && { after: lastId }), ...(tenant && { tenant }) }).toString();
  source = new EventSource(chosen ? `${url}?${chosen}` : url);
  source.onopen = () => {
    wait = 1000;
    stream("live", "live");
    if (broken) scheduleRefresh();
    broken = false;
  };
  source.onerror = () => {
    broken = true;
    stream("broken", "reconnecting");
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(listen, wait);  // an error page closes an EventSource for good
    wait = Math.min(wait * 2, 15000);
  };
  for (const type of ["message", "job", "attempt", "cycle", "escalation", "loop", "item"]) source.addEventListener(type, onEvent);
}

function onEvent(message) {
  lastId = message.lastEventId || lastId;
  let event;
  try { event = JSON.parse(message.data); } catch { return; }
  event.type ??= message.type;
  event.job ??= event.job_id;
  updateLive(event);
  scheduleRefresh();
}

// -- the transcript of an attempt that runs --------------------------------------------------------

/** Show characters that hide or reorder a text, as the server does. */
const visible = (text) => text.replace(/[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu,
  (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

function followSession(list) {
  const session = new EventSource(`${list.dataset.stream}?after=${list.dataset.last}`);
  session.onopen = () => stream("live", "live");
  session.onerror = () => stream("broken", "reconnecting");
  session.addEventListener("session", (message) => {
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
    list.append(eventRow(JSON.parse(message.data)));
    if (atEnd) scrollTo({ top: document.documentElement.scrollHeight });
  });
  session.addEventListener("end", () => {
    session.close();
    one("#stream")?.remove();
    refresh();
  });
}

const SHOWN = 10;  // events at the end of a transcript on a board

function showEnd() {
  const list = one("#tail");
  if (list) list.scrollTop = list.scrollHeight;
}

/** Add what the agent of a board has done since. Of a silent one, only its repository could tell. */
async function extendTail() {
  const list = one("#tail");
  if (!list || list.dataset.last === "0" || document.hidden) return;
  const found = await call(`${list.dataset.events}?after=${list.dataset.last}`, null, "GET").catch(() => null);
  if (!found?.events.length) return;
  list.dataset.last = found.last;
  list.append(...found.events.slice(-SHOWN).map(eventRow));
  while (list.children.length > SHOWN) list.firstElementChild.remove();
  showEnd();
}

function eventRow(event) {
  const li = document.createElement("li");
  const add = (name, text, type = "") => {
    const each = document.createElement(name);
    each.className = type;
    each.textContent = visible(text);
    li.append(each, " ");
  };
  li.className = event.failed ? "failed" : event.kind;
  add("span", new Date(event.at * 1000).toLocaleTimeString([], { hour12: false }), "dim");
  add("strong", event.kind);
  if (event.name) add("code", event.name);
  if (event.failed) li.append("failed ");
  if (event.usage?.total_tokens != null) add("span", `${event.usage.total_tokens.toLocaleString("en")} tokens so far`, "dim");
  if (event.text.length > 100 || event.text.includes("\n")) add("pre", event.text);
  else if (event.text) add("span", event.text, "code");
  return li;
}

// -- the live list: one row per job, the newest first ----------------------------------------------

const rows = new Map();
let waiting = new Set(), drawing = null;

function updateLive(event) {
  if (!one("#live") || !event.job || !["job", "attempt"].includes(event.type)) return;
  const row = rows.get(event.job) ?? { scores: [], name: event.task_type };
  row.at = Date.now();
  row.name = event.name ?? row.name ?? event.task_type;
  if (event.type === "attempt") {
    row.attempt = event.attempt;
    row.state = event.state === "settled" && event.success === false ? "waiting" : event.state;
    row.how = attemptText(event);
    if (event.state === "settled") row.scores.push(event.score);
  } else {
    row.state = event.state;
    row.how = jobText(event);
  }
  rows.delete(event.job);
  rows.set(event.job, row);
  if (rows.size > 400) rows.delete(rows.keys().next().value);
  waiting.add(event.job);
  drawing ??= setTimeout(draw, 120);
}

function attemptText(event) {
  const n = event.attempt > 1 ? `attempt ${event.attempt} ` : "";
  if (event.state === "settled") return event.success ? `${n}passed` : `${event.kind ?? "failed"}${event.next ? ", retrying" : ""}`;
  if (event.state === "waiting") return `${n}waiting for ${event.waits_for}`;
  return n + event.state.replaceAll("_", " ");
}

function jobText(event) {
  if (event.state === "succeeded") return event.first_try === false || event.attempts > 1 ? "repaired" : "first try";
  if (event.state === "escalated") return `escalated: ${(event.reason ?? "").replaceAll("_", " ")}`;
  if (event.state === "queued" && event.requeued) return "requeued";
  return event.state;
}

/** Draw changed rows, unless the pointer or the keyboard focus is in the list. */
function draw() {
  drawing = null;
  const list = one("#live"), held = one("#live-held");
  if (list.matches(":hover, :focus-within")) {
    held.hidden = false;
    held.textContent = `Paused while you point at the list; ${waiting.size} changed`;
    drawing = setTimeout(draw, 500);
    return;
  }
  held.hidden = true;
  one("#live-empty").hidden = true;
  for (const job of waiting) if (rows.has(job)) list.prepend(rowOf(job, rows.get(job)));
  waiting = new Set();
  while (list.children.length > Number(list.dataset.most)) list.lastElementChild.remove();
}

function rowOf(job, row) {
  const old = all("li", one("#live")).find((each) => each.dataset.job === job);
  const before = old ? one(".path", old).textContent.split("→").filter((part) => /^\d/.test(part)) : [];
  old?.remove();
  const li = document.createElement("li");
  li.dataset.job = job;
  li.className = "fresh";
  const add = (name, ...content) => {
    const each = document.createElement("span");
    each.className = name;
    each.append(...content);
    li.append(each);
    return each;
  };
  const scores = row.scores.map((score) => (score == null ? "–" : String(Math.trunc(score))));
  row.shown ??= before;
  add("dim", new Date(row.at).toLocaleTimeString([], { hour12: false }));
  add("who", row.name || one(".who", old ?? li)?.textContent || job);
  add("path n", [...row.shown, ...scores].slice(-4).join("→"));
  const how = add("how", "");
  const mark = document.createElement("span");
  mark.className = `mark ${row.state}`;
  mark.setAttribute("aria-hidden", "true");
  mark.textContent = MARKS[row.state] ?? "·";
  how.append(mark, ` ${row.how}`);
  add("links", ...linksOf(job, row));
  return li;
}

function linksOf(job, row) {
  const story = document.createElement("a");
  story.href = `/jobs/${encodeURIComponent(job)}`;
  story.textContent = "details";
  const base = document.body.dataset.flower;
  if (!base || !row.attempt) return [story];
  const flower = document.createElement("a");
  flower.href = `${base}/task/${encodeURIComponent(job)}-${row.attempt}`;
  flower.textContent = "Flower";
  flower.rel = "noreferrer";
  return [story, " ", flower];
}

// -- buttons and forms-----------------------------------------------------------------------------

async function copy(button) {
  const text = one(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied");
  } catch {
    const range = document.createRange();
    one(button.dataset.copy).closest("details")?.setAttribute("open", "");
    range.selectNodeContents(one(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    notify("Selected; copy it with your keyboard");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.call) runAction(button);
  else if (button.dataset.copy) copy(button);
  else if (button.dataset.group) openGroup(button);
  else if ("dry" in button.dataset) group(button.form, true);
  else if (button.dataset.stop) busy([button], () => call(`/api/bulk/${button.dataset.stop}/cancel`).catch((error) => notify(error.message, true)));
  else if (button.dataset.open) openForm(button);
  else if ("check" in button.dataset) { if (button.form.reportValidity()) submitDocument(button.form, "check"); }
  else if (button.value === "no" && button.closest("dialog")) button.closest("dialog").close();
});

function openForm(button) {
  const dialog = one(button.dataset.open), form = one("form", dialog);
  form.dataset.url = button.dataset.url;
  form.dataset.done = button.dataset.done;
  one(".problem", form).textContent = "";
  const about = one("[data-about]", dialog);
  if (about) about.textContent = button.dataset.about ?? "";
  dialog.showModal();
}

async function pauseNamed(form) {
  const name = form.elements.name.value.trim(), what = `${form.elements.kind.value}:${name}`;
  if (!name) return;
  await busy(all("button", form), async () => {
    try {
      await call(`/api/pauses/${encodeURIComponent(what)}`, {}, "PUT");
      form.elements.name.value = "";
      notify(`${name} paused; running attempts finish`);
      await refresh();
    } catch (error) {
      notify(error.message, true);
    }
  });
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id === "group-form") { event.preventDefault(); group(form, one("[data-go]", form).hidden); }
  else if (form.id === "pause-form") { event.preventDefault(); pauseNamed(form); }
  else if ("document" in form.dataset) { event.preventDefault(); submitDocument(form, event.submitter?.value); }
  else if (form.dataset.url) { event.preventDefault(); submit(form, form.dataset.url); }
});

document.addEventListener("change", (event) => {
  const { fills } = event.target.dataset;
  if (fills) event.target.form.elements[fills].value = event.target.selectedOptions[0].dataset.text ?? "";
  if (event.target.closest("form[data-auto]")) event.target.form.requestSubmit();
  if (event.target.name === "action" && event.target.form.id === "group-form") showStep(event.target.form, "dry");
});

// A hidden tab closes its stream: a browser has few connections to one host.
let closing = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(closing);
  if (!one("#part[data-live]")) return;
  if (document.hidden) closing = setTimeout(() => { source?.close(); source = null; }, 30000);
  else if (source) scheduleRefresh();
  else if (one("dialog[open]")) { lastId = String(Date.now()); listen(); scheduleRefresh(); }
  else location.reload();
});

showTimes();
setInterval(showTimes, 5000);
if (one("#part[data-live]")) {
  listen();
  setInterval(() => { if (Date.now() - last >= QUIET) scheduleRefresh(); }, QUIET / 2);  // ages and queues change without events
} else if (one("#session[data-stream]")) followSession(one("#session"));
else one("#stream")?.remove();
const drawn = one("#graph-frame .node.running, #graph-frame .node.critical");  // a long graph begins with what is done
if (drawn) one("#graph-frame").scrollTo(drawn.getBBox().x - 40, drawn.getBBox().y - 120);
showEnd();
if (one("#part[data-live]")) setInterval(extendTail, 1500);
const poll = Number(one("#part")?.dataset.poll ?? 0);  // for pages without events
if (poll) setInterval(() => { if (Date.now() - last >= poll) scheduleRefresh(); }, poll);
const retry = Number(one("#part")?.dataset.retry ?? 0);
if (retry) setTimeout(() => location.reload(), retry);
