// Live figures. One tab of a browser, the leader, holds the stream; the others get what it gets
// through a BroadcastChannel. Hidden tabs hold and show nothing. Without locks, or when the server
// has no stream left, a tab polls.
"use strict";

(function () {
  if (!("live" in document.body.dataset)) return;

  const root = document.body.dataset.liveRoot;
  const mark = document.getElementById("connection");
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(`eventmq${root}`) : null;
  const POLL = 2000; // milliseconds between two polls
  const RETRY = 30000; // milliseconds after which a stream is tried again
  let cells = {};
  let source = null;
  let release = null; // ends the leadership
  let waiting = null; // aborts the wait for it
  let poll = 0; // timer of the next poll
  let refreshed = Date.now();
  // When the request under way began: htmx would queue a second one, whose failure nobody catches.
  // If a handler of the page throws, htmx never settles the first, so another follows after 30 s.
  let loading = 0;

  function show(news) {
    cells = news;
    connected(true);
    for (const element of document.querySelectorAll("[data-cell]")) {
      const text = cells[element.dataset.cell];
      if (text !== undefined && element.textContent !== text) element.textContent = text;
    }
    for (const element of document.querySelectorAll("[data-path]")) {
      const path = cells[element.dataset.path];
      if (path !== undefined) element.setAttribute("d", path);
    }
    const live = document.getElementById("live");
    if (!live) return;
    const shape = cells[live.dataset.shape];
    const seconds = Number(live.dataset.refresh || 0);
    const due = seconds && Date.now() - refreshed >= seconds * 1000;
    if (due || (shape !== undefined && shape !== live.dataset.value)) reload(live);
  }

  function reload(live) {
    if (Date.now() - loading < 30000 || document.hidden || Date.now() - refreshed < 900) return;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input, select, button")) return;
    loading = refreshed = Date.now();
    const at = [...live.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const sign = (each) => each.getAttribute("href") || each.getAttribute("aria-label");
    htmx
      .ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerHTML" })
      .then(function () {
        const fresh = document.getElementById("live");
        if (!fresh) return;
        fresh.querySelectorAll(".scroll").forEach(function (box, n) {
          [box.scrollLeft, box.scrollTop] = at[n] || [0, 0];
        });
        const same = [...fresh.querySelectorAll("a, [tabindex]")].find(
          (each) => focused && sign(each) === sign(focused),
        );
        if (same) same.focus({ preventScroll: true });
        follow();
      })
      .catch(() => connected(false))
      .finally(() => (loading = 0));
  }

  function follow() { // keeps what runs in sight
    const node = document.querySelector(".graph .running rect");
    if (!node) return;
    const box = node.closest(".graph");
    const x = Number(node.getAttribute("x"));
    const seen = x >= box.scrollLeft && x < box.scrollLeft + box.clientWidth - 100;
    if (!seen) box.scrollLeft = x - box.clientWidth / 2;
  }

  function connected(yes) {
    mark.classList.toggle("on", yes);
    mark.setAttribute("aria-label", yes ? "live" : "not live");
  }

  function take(news) {
    show(news);
    if (channel) channel.postMessage(news);
  }

  async function ask(polls) {
    if (release && polls >= RETRY / POLL) {
      poll = 0;
      openStream();
      return;
    }
    poll = setTimeout(ask, POLL, polls + 1);
    try {
      const answer = await fetch(`${root}/live.json`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      take(await answer.json());
    } catch (_) {
      connected(false);
    }
  }

  function openStream() {
    source = new EventSource(`${root}/live`);
    source.addEventListener("snapshot", (event) => take(JSON.parse(event.data)));
    source.addEventListener("change", (event) => take({ ...cells, ...JSON.parse(event.data) }));
    source.addEventListener("error", function () {
      connected(false);
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        ask(0); // no stream is left
      }
    });
  }

  function close() {
    clearTimeout(poll);
    poll = 0;
    if (source) source.close();
    if (waiting) waiting.abort();
    if (release) release();
    source = waiting = release = null;
    connected(false);
  }

  function open() {
    if (waiting || release || poll) return;
    if (!channel || !navigator.locks) {
      ask(0);
      return;
    }
    waiting = new AbortController();
    navigator.locks
      .request(channel.name, { signal: waiting.signal }, function () {
        waiting = null;
        return new Promise(function (resolve) {
          release = resolve;
          openStream();
        });
      })
      .catch(() => {}); // this tab was hidden while it waited
  }

  if (channel) {
    channel.addEventListener("message", function (event) {
      if (!release && !document.hidden) show(event.data);
    });
  }
  follow();
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", () => document.hidden || open());
  document.addEventListener("click", function (event) {
    const all = event.target.closest("[data-selects]");
    if (!all) return;
    for (const box of document.getElementsByName(all.dataset.selects)) box.checked = all.checked;
  });
})();
