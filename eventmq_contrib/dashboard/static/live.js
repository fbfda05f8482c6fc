// Live figures. One tab of a browser, the leader, holds the stream; the others get what it gets
// through a BroadcastChannel. Hidden tabs hold and show nothing. Without locks, or when the server
// has no stream left, a tab polls.
"use strict";

(function () {
  const body = document.body;
  if (!("live" in body.dataset)) return;

  const root = body.dataset.liveRoot;
  const name = `eventmq${root}`;
  const mark = document.getElementById("connection");
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(name) : null;
  const POLL = 2000; // milliseconds between two polls
  const RETRY = 30000; // milliseconds after which a stream is tried again
  let cells = {};
  let source = null;
  let release = null; // ends the leadership
  let waiting = null; // aborts the wait for it
  let poll = 0;
  let retry = 0;
  let refreshed = Date.now();

  const address = new URL(location.href);
  if (address.searchParams.has("note")) {
    address.searchParams.delete("note");
    history.replaceState(null, "", address);
  }

  function show(news) {
    Object.assign(cells, news);
    mark.classList.add("on");
    mark.setAttribute("aria-label", "live");
    for (const element of document.querySelectorAll("[data-cell]")) {
      const text = news[element.dataset.cell];
      if (text !== undefined && element.textContent !== text) element.textContent = text;
    }
    for (const element of document.querySelectorAll("[data-path]")) {
      const path = news[element.dataset.path];
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
    if (document.hidden || Date.now() - refreshed < 900) return;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input, select, button")) return;
    refreshed = Date.now();
    const at = [...live.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const sign = (each) => each.getAttribute("href") || each.getAttribute("aria-label");
    const focusedSign = focused && sign(focused);
    htmx
      .ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerHTML" })
      .then(function () {
        const fresh = document.getElementById("live");
        if (!fresh) return;
        fresh.querySelectorAll(".scroll").forEach(function (box, n) {
          [box.scrollLeft, box.scrollTop] = at[n] || [0, 0];
        });
        const all = focusedSign ? [...fresh.querySelectorAll("a, [tabindex]")] : [];
        const same = all.find((each) => sign(each) === focusedSign);
        if (same) same.focus({ preventScroll: true });
        follow();
      })
      .catch(lost);
  }

  function follow() { // keeps what runs in sight
    const node = document.querySelector(".graph .running rect");
    if (!node) return;
    const box = node.closest(".graph");
    const x = Number(node.getAttribute("x"));
    const seen = x >= box.scrollLeft && x < box.scrollLeft + box.clientWidth - 100;
    if (!seen) box.scrollLeft = x - box.clientWidth / 2;
  }

  function lost() {
    mark.classList.remove("on");
    mark.setAttribute("aria-label", "not live");
  }

  function take(news, whole) {
    if (whole) cells = {};
    show(news);
    if (channel) channel.postMessage({ kind: "cells", whole: whole, cells: news });
  }

  function stopPolling() {
    clearInterval(poll);
    clearTimeout(retry);
    poll = retry = 0;
  }

  async function ask() {
    try {
      const answer = await fetch(`${root}/live.json`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      take(await answer.json(), true);
    } catch (_) {
      lost();
    }
  }

  function startPolling() {
    if (poll) return;
    ask();
    poll = setInterval(ask, POLL);
    retry = setTimeout(function () {
      stopPolling();
      if (release) openStream();
    }, RETRY);
  }

  function openStream() {
    source = new EventSource(`${root}/live`);
    source.addEventListener("snapshot", (event) => take(JSON.parse(event.data), true));
    source.addEventListener("change", (event) => take(JSON.parse(event.data), false));
    source.addEventListener("error", function () {
      lost();
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        startPolling(); // no stream is left
      }
    });
  }

  function close() {
    stopPolling();
    if (source) source.close();
    source = null;
    if (waiting) waiting.abort();
    waiting = null;
    if (release) release();
    release = null;
    lost();
  }

  function open() {
    if (waiting || release || poll) return;
    if (!channel || !navigator.locks) {
      startPolling();
      return;
    }
    waiting = new AbortController();
    channel.postMessage({ kind: "hello" });
    navigator.locks
      .request(name, { signal: waiting.signal }, function () {
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
      if (event.data.kind === "hello" && release) {
        channel.postMessage({ kind: "cells", whole: true, cells: cells });
      } else if (event.data.kind === "cells" && !release && !document.hidden) {
        if (event.data.whole) cells = {};
        show(event.data.cells);
      }
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
